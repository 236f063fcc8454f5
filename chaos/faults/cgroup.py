"""memory_limit and slow_disk on hosts: the role in a cgroup of ours, version 1 or 2.

The process is moved into a new cgroup with the limit and back again on undo, together
with the children it had meanwhile; then the cgroup is removed. What it had allocated
before is still charged where it was, so a limit of memory is what it may take *more*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import NotHere, UsageError
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.host_process import come_back, is_back
from chaos.faults.programs import EMPTY_CGROUP, python
from chaos.faults.steps import Step, command, run, write
from chaos.hosts import capability
from chaos.hosts.facts import has_agent, scratch_of, tell, why_not
from chaos.safety.facts import cgroup_root

if TYPE_CHECKING:
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster, Process

_BYTES_PER_KB = 1000


class CgroupFault(HostFault):
    """A role lives in a cgroup with limits; the kinds say which."""

    def __init__(self, cluster: Cluster, role: str, told: str) -> None:
        super().__init__(cluster, f"{role}: {told}")
        self._role = role
        self._host = self._hosts.of(role)

    def hosts(self) -> list[Host]:
        return [self._host]

    def place(self, host: Host) -> tuple[str, str, str]:
        """Version, controller and root folder of the hierarchy with the limit."""
        raise NotImplementedError

    def limits(self, host: Host, version: str) -> dict[str, str]:
        """Texts by file name."""
        raise NotImplementedError

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        if not has_agent(host):
            ours = f"/sys/fs/cgroup/<hierarchy>/{self._name}"
            pid = f"<pid of {self._role}>"
            return [
                Step(do=run("mkdir", ours), undo=run("rmdir", ours)),
                Step(do=write(f"{ours}/cgroup.procs", pid)),
            ]
        reason = why_not(host, self.kind)
        if reason:
            raise NotHere(capability=self.kind, target="host", reason=reason)
        process = self._cluster.process(self._role)
        if process is None:
            raise UsageError(f"{self._role} is not running: it cannot be limited")
        version, controller, root = self.place(host)
        ours = f"{root}/{self._name}"
        back = f"{root}{_path_of(host, process, controller)}".rstrip("/")
        made = Step(
            do=run("mkdir", ours),
            undo=run(*python(EMPTY_CGROUP, ours, back)),
            verify=command("test", "-d", ours, rc=1),
        )
        limits = self.limits(host, version).items()
        return [
            made,
            *(Step(do=write(f"{ours}/{name}", text)) for name, text in limits),
            Step(do=write(f"{ours}/cgroup.procs", str(process.pid))),
        ]

    def revert(self) -> None:
        """A role that the kernel killed for its limit comes back as well."""
        super().revert()
        come_back(self._cluster, self._role)

    def verify_reverted(self) -> str:
        return super().verify_reverted() or is_back(self._cluster, self._role)

    def read(self, part: Part, name: str) -> str:
        """A file of our cgroup, "" when it is gone."""
        folder = f"{self.place(part.host)[2]}/{self._name}"
        return tell(part.host, ("cat", f"{folder}/{name}")).stdout

    @property
    def _name(self) -> str:
        return "moonquake_" + self.fault_id.replace("-", "_")


class HostMemoryLimit(CgroupFault):
    """The role may take so much more memory; beyond, it is throttled or killed."""

    kind = "memory_limit"
    measure = "times at the limit"

    def __init__(self, cluster: Cluster, role: str, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise UsageError(f"memory_limit of {limit_bytes} bytes; it must be above 0")
        super().__init__(cluster, role, f"{limit_bytes} bytes more")
        self._limit_bytes = limit_bytes

    def place(self, host: Host) -> tuple[str, str, str]:
        version = str(host.agent.probe()["cgroup"])
        controller = "memory" if version == "v1" else ""
        mounts = tell(host, ("cat", "/proc/self/mounts")).stdout
        return version, controller, cgroup_root(mounts, controller)

    def limits(self, host: Host, version: str) -> dict[str, str]:
        name = "memory.limit_in_bytes" if version == "v1" else "memory.max"
        return {name: str(self._limit_bytes)}

    def effect(self, part: Part) -> tuple[float, str]:
        if self.place(part.host)[0] == "v1":
            count = self.read(part, "memory.failcnt").strip() or "0"
            return float(count), f"failcnt {count}"
        rows = [line.split() for line in self.read(part, "memory.events").splitlines()]
        events = {row[0]: int(row[1]) for row in rows if len(row) == 2}
        return float(events.get("max", 0) + events.get("oom", 0)), f"events {events}"


class HostSlowDisk(CgroupFault):
    """The role reads and writes the scratch disk no faster than this.

    Version 1 holds up what goes to the disk at once (direct, or synced); what is only
    in the page cache goes as fast as before.
    """

    kind = "slow_disk"
    measure = "bytes through the throttle"

    def __init__(self, cluster: Cluster, role: str, kb_per_s: int) -> None:
        if kb_per_s < 1:
            raise UsageError(f"slow_disk of {kb_per_s} KB/s; it must be 1 or more")
        super().__init__(cluster, role, f"{kb_per_s} KB/s of the scratch disk")
        self._bytes_per_s = kb_per_s * _BYTES_PER_KB

    def place(self, host: Host) -> tuple[str, str, str]:
        told = {n: tell(host, argv) for n, argv in capability.COMMANDS.items()}
        found = capability.throttle_root(told)
        if found is None:
            reason = "no blkio or io controller"
            raise NotHere(capability=self.kind, target="host", reason=reason)
        return found[0], "blkio" if found[0] == "v1" else "", found[1]

    def limits(self, host: Host, version: str) -> dict[str, str]:
        device, rate = _disk(host), self._bytes_per_s
        if version == "v2":
            return {"io.max": f"{device} rbps={rate} wbps={rate}"}
        return {
            f"blkio.throttle.{way}_bps_device": f"{device} {rate}"
            for way in ("read", "write")
        }

    def effect(self, part: Part) -> tuple[float, str]:
        if self.place(part.host)[0] == "v1":
            text = self.read(part, "blkio.throttle.io_service_bytes")
            rows = [line.split() for line in text.splitlines()]
            moved = [int(r[2]) for r in rows if len(r) == 3 and r[1] in _ONCE]
            return float(sum(moved)), f"{sum(moved)} bytes"
        words = self.read(part, "io.stat").split()
        pairs = [word.partition("=") for word in words]
        moved = [int(value) for key, _, value in pairs if key in ("rbytes", "wbytes")]
        return float(sum(moved)), f"{sum(moved)} bytes"


#: The rows of a v1 counter overlap: reads and writes are all, once.
_ONCE = ("Read", "Write")


def _path_of(host: Host, process: Process, controller: str) -> str:
    """Where a process is in a hierarchy now, to be put back there."""
    told = tell(host, ("cat", f"/proc/{process.pid}/cgroup"))
    for line in told.stdout.splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(","):
            return path
    raise UsageError(f"{process.role} (pid {process.pid}) is in no cgroup")


def _disk(host: Host) -> str:
    """major:minor of the whole disk: partitions cannot be limited."""
    mountinfo = tell(host, ("cat", "/proc/self/mountinfo")).stdout
    device = capability.device_of(mountinfo, scratch_of(host))
    folder = f"/sys/dev/block/{device}"
    if tell(host, ("cat", f"{folder}/partition")).rc != 0:
        return device
    return tell(host, ("cat", f"{folder}/../dev")).stdout.strip() or device

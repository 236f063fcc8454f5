"""A lab: N machines with a real sshd each, on this one, for the ssh target.

Every machine is a host of a fabric with namespaces for processes, network, mounts and
host name, a `/run` (with the home of root in it) and a `/var/log` of its own, its own
SSH host key and its own boot id. A reboot ends all of its processes at once and starts
it anew with the same name, addresses and key, as a power cycle does. The kernel and all
other files are shared; the cgroups that a machine's processes were moved into go with
its power all the same.

What a lab needs lies in one directory (mode 0700): keys, known_hosts, logs. It writes
an inventory that a test uses as an operator uses the one of a staging cluster: strict
host keys, roles that the harness starts.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from chaos.errors import HarnessError, UsageError
from chaos.safety.identity import wait_until
from chaos.targets.fabric import Fabric, Machine, Member
from chaos.targets.namespaces import why_no_namespaces

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HOSTS: Final = 64
_FIRST_NUMBER = 10
_PORT = 22
_BANNER = b"SSH-"
_BOOT_TIMEOUT_S = 15.0
_CONNECT_TIMEOUT_S = 1.0
_KEY_TIMEOUT_S = 20.0
_CGROUP_TIMEOUT_S = 2.0
_HELPERS = 8
_MACHINE = Machine(
    init=True,
    private=("/run", "/var/log"),
    directories=("/run/sshd", "/run/lock", "/run/home"),
    scratch="/run/scratch",
)
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabShape:
    """What a lab consists of: the roles of each of its hosts, and its rails."""

    roles: tuple[tuple[str, ...], ...]
    rails: int = 2
    manage: bool = True
    environment: str = "lab"
    python: str = field(default=sys.executable)

    @classmethod
    def of(cls, count: int, *, engines: int = 0, **fields: Any) -> LabShape:
        """A lab of so many hosts, with one role each wherever that is possible.

        The first is the master, a fifth of the others (at least one) are engines unless
        it is said how many, the rest stores: 11 hosts are 1 master, 8 stores and 2
        engines. One host is all.

        Raises:
            UsageError: too many hosts, or none, or none left for a store.
        """
        if not 1 <= count <= MAX_HOSTS:
            raise UsageError(f"a lab has 1 to {MAX_HOSTS} hosts, not {count}")
        if engines and count < engines + 2:
            problem = f"{count} hosts have no room for {engines} engines and a store"
            raise UsageError(problem, f"take {engines + 2} hosts or more")
        return cls(roles=_spread(count, engines), **fields)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"lab{number}" for number in range(len(self.roles)))


class Lab:
    """A running lab; it ends with `down`, or with the process that holds it."""

    def __init__(self, fabric: Fabric, shape: LabShape, directory: Path) -> None:
        self.shape = shape
        self.directory = directory
        self._fabric = fabric
        self._sshd = sshd_path()

    @classmethod
    def up(
        cls,
        shape: LabShape,
        *,
        directory: Path,
        inventory: Path,
        block: int | None = None,
        leases: Path | None = None,
    ) -> Lab:
        """Starts all hosts, waits until each sshd answers, writes the inventory.

        Args:
            shape: hosts and roles.
            directory: of keys and logs; made when it is not there.
            inventory: the file to write.
            block: the fabric's number, or the first free one.
            leases: directory of the fabric's lease.

        Raises:
            UsageError: privileges, tools or directories are not as they need to be.
        """
        reason = why_no_lab(directory)
        if reason:
            raise UsageError(f"no lab here: {reason}")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        members = [
            Member(name=name, numbers=(_FIRST_NUMBER + number,))
            for number, name in enumerate(shape.names)
        ]
        fabric = Fabric.build(
            members, rails=shape.rails, machine=_MACHINE, block=block, directory=leases
        )
        lab = cls(fabric, shape, directory)
        try:
            lab._start(inventory)
        except BaseException:
            fabric.close()
            raise
        return lab

    @property
    def names(self) -> tuple[str, ...]:
        return self.shape.names

    @property
    def fabric(self) -> Fabric:
        return self._fabric

    def address(self, name: str) -> str:
        """Where the sshd of a host listens."""
        self._known(name)
        return self._fabric.address(name)

    def alive(self, name: str) -> bool:
        """Whether a host is up: its process 1 lives."""
        return self._fabric.is_up(name) and self._fabric.alive(name)

    def kill(self, name: str) -> None:
        """A power cut: the processes of a host, its devices and rules are gone."""
        self._known(name)
        groups = self._cgroups(name)
        self._fabric.kill(name)
        for group in groups:
            wait_until(partial(_removed, group), timeout_s=_CGROUP_TIMEOUT_S)

    def start(self, name: str) -> None:
        """Power for a host that was cut off; returns when its sshd answers."""
        self._known(name)
        self._fabric.revive(name)
        self._boot(name)
        self._wait_for_banner(name)

    def reboot(self, name: str) -> None:
        """A power cycle."""
        self.kill(name)
        self.start(name)

    def cut(self, name: str) -> None:
        """Nobody reaches a host by its management network any more; it lives on."""
        self._known(name)
        self._fabric.cut(name)

    def mend(self, name: str) -> None:
        """The management network of a host carries again."""
        self._known(name)
        self._fabric.mend(name)

    def log(self, name: str) -> str:
        """What the sshd of a host wrote."""
        path = self._of(name) / "sshd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def down(self) -> None:
        """Ends every host and the networks. Safe to call twice."""
        self._fabric.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # -- inside ------------------------------------------------------------------

    def _start(self, inventory: Path) -> None:
        make_key(self.directory / "client_key")
        with ThreadPoolExecutor(_HELPERS, thread_name_prefix="lab") as pool:
            list(pool.map(self._prepare, self.names))
            self._write_known_hosts()
            for name in self.names:
                self._boot(name)
            list(pool.map(self._wait_for_banner, self.names))
        text = yaml.safe_dump(self._inventory(), sort_keys=False)
        inventory.write_text(f"# Written by scripts/lab.\n{text}", encoding="utf-8")

    def _cgroups(self, name: str) -> list[Path]:
        """Groups that a fault made and moved processes of a host into."""
        if not self._fabric.is_up(name):
            return []
        space = _pid_space(self._fabric.namespaces(name).init)
        mine = [path for path in _PROC.glob("[0-9]*") if _pid_space(path.name) == space]
        return sorted({group for path in mine for group in _made_groups(path)})

    def _of(self, name: str) -> Path:
        return self.directory / "hosts" / name

    def _prepare(self, name: str) -> None:
        """The host key, which outlives reboots, and the configuration of sshd."""
        directory = self._of(name)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_key(directory / "host_key")
        lines = [
            f"ListenAddress {self._fabric.address(name)}:{_PORT}",
            f"HostKey {directory / 'host_key'}",
            f"AuthorizedKeysFile {self.directory / 'client_key.pub'}",
            *_SSHD_OPTIONS,
        ]
        text = "".join(f"{line}\n" for line in lines)
        (directory / "sshd_config").write_text(text, encoding="utf-8")

    def _write_known_hosts(self) -> None:
        lines = []
        for name in self.names:
            key = (self._of(name) / "host_key.pub").read_text(encoding="ascii")
            lines.append(f"{self._fabric.address(name)} {' '.join(key.split()[:2])}\n")
        known = self.directory / "known_hosts"
        known.write_text("".join(lines), encoding="ascii")

    def _boot(self, name: str) -> None:
        directory = self._of(name)
        argv = [self._sshd, "-D", "-e", "-f", str(directory / "sshd_config")]
        self._fabric.boot(name, argv, directory / "sshd.log")

    def _wait_for_banner(self, name: str) -> None:
        """Listening is not enough: an sshd that is coming up accepts and says nothing.

        Raises:
            HarnessError: it ended, or says nothing; with the end of its log.
        """
        address = self._fabric.address(name)
        greeted = False

        def answered() -> bool:
            nonlocal greeted
            greeted = _greets(address)
            return greeted or not self._fabric.alive(name)

        wait_until(answered, timeout_s=_BOOT_TIMEOUT_S, poll_s=0.02)
        if not greeted:
            lines = self.log(name).strip().splitlines() or ["its log is empty"]
            message = f"sshd of {name} does not answer at {address}: {lines[-1]}"
            raise HarnessError(message)

    def _known(self, name: str) -> None:
        if name not in self.names:
            known = ", ".join(self.names)
            raise UsageError(f"the lab has no host {name}", f"its hosts are {known}")

    def _inventory(self) -> dict[str, Any]:
        hosts = {name: self._entry(name) for name in self.names}
        shape = self.shape
        variables = {
            "environment": shape.environment,
            "chaos": "allowed",
            "manage": shape.manage,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.directory / "client_key"),
            "known_hosts": str(self.directory / "known_hosts"),
            "ansible_python_interpreter": shape.python,
            "pythonpath": str(_ROOT),
            "scratch": _MACHINE.scratch,
        }
        return {"all": {"vars": variables, "hosts": hosts}}

    def _entry(self, name: str) -> dict[str, Any]:
        fabric = self._fabric
        rails = [
            {
                "name": f"rail{number}",
                "device": f"rail{number}",
                "address": fabric.address(name, f"rail{number}"),
                "subnet": f"{fabric.planes[f'rail{number}'].prefix}.0/24",
                "numa": number % 2,
            }
            for number in range(fabric.rails)
        ]
        return {
            "ansible_host": fabric.address(name),
            "roles": list(self.shape.roles[self.names.index(name)]),
            "management": {"device": "mgmt0", "address": fabric.address(name)},
            "control": {"device": "ctl0", "address": fabric.address(name, "control")},
            "rails": rails,
        }


def why_no_lab(directory: Path | None = None) -> str:
    """Why there can be no lab here, "" when there can be one."""
    reason = why_no_namespaces()
    if reason:
        return reason
    try:
        sshd_path()
    except UsageError as error:
        return str(error)
    if shutil.which("ssh-keygen") is None:
        return "there is no ssh-keygen here: install openssh-client"
    for private in _MACHINE.private if directory is not None else ():
        if directory is not None and directory.resolve().is_relative_to(private):
            return (
                f"{directory} is not seen by its hosts: they have their own {private}"
            )
    return ""


def sshd_path() -> str:
    """The absolute path of sshd, as it wants to be started.

    Raises:
        UsageError: it is not installed.
    """
    found = shutil.which("sshd") or shutil.which("sshd", path=_SBIN)
    if found is None:
        raise UsageError("there is no sshd here", "install openssh-server")
    return found


def make_key(path: Path) -> None:
    """An ed25519 key pair without a passphrase; one that is there stays."""
    if path.exists():
        return
    done = subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path)],  # noqa: S607
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_KEY_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        message = f"ssh-keygen made no {path}: {done.stderr.strip()}"
        raise HarnessError(message)


_SSHD_OPTIONS = (
    "AllowTcpForwarding no",
    "AuthenticationMethods publickey",
    "KbdInteractiveAuthentication no",
    "LogLevel VERBOSE",
    "MaxSessions 200",
    "MaxStartups 200",
    "PasswordAuthentication no",
    "PermitRootLogin prohibit-password",
    "PidFile none",
    "PrintLastLog no",
    "PrintMotd no",
    "SetEnv HOME=/run/home",  # start files of our own shell are not the host's
    "StrictModes no",
    "Subsystem sftp internal-sftp",
    "UseDNS no",
    "UsePAM no",
    "X11Forwarding no",
)


def _spread(count: int, engines: int = 0) -> tuple[tuple[str, ...], ...]:
    if count == 1:
        return (("master", "store-0", "engine-0"),)
    if count == 2:
        return (("master", "engine-0"), ("store-0",))
    engines = engines or max(1, (count - 1) // 5)
    stores = count - 1 - engines
    names = ["master", *(f"store-{n}" for n in range(stores))]
    names += [f"engine-{n}" for n in range(engines)]
    return tuple((name,) for name in names)


def _greets(
    address: str, connect: Callable[..., socket.socket] = socket.create_connection
) -> bool:
    try:
        with connect((address, _PORT), timeout=_CONNECT_TIMEOUT_S) as channel:
            return channel.recv(len(_BANNER)) == _BANNER
    except OSError:
        return False  # not up yet; the caller has the deadline


def _pid_space(pid: int | str) -> str:
    """The process namespace of a process, "" when it has ended."""
    try:
        return str((_PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return ""


def _made_groups(process: Path) -> list[Path]:
    """Folders of the cgroups of ours that a process is in, in every hierarchy."""
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(":", 2)[2].lstrip("/") for line in lines}
    ours = [path for path in paths if "moonquake_" in path]
    roots = [_CGROUPS, *_CGROUPS.glob("*/")]
    return [root / path for path in ours for root in roots if (root / path).is_dir()]


def _removed(group: Path) -> bool:
    """Whether an empty group is gone now; one that has processes stays."""
    try:
        group.rmdir()
    except OSError:
        return not group.exists()
    return True

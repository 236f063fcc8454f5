"""Which faults a host can do, and why not the others: pure readings of its probes.

The agent tries each tool in a throw-away network namespace and says what happened
(`Agent.probe`); a few more facts come from commands that only read. Nothing is assumed
from versions or distributions: kernels are built without netem, containers come without
nft, and cgroups are version 1, 2, or both at once.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, Final

from chaos.safety.facts import Told, cgroup_root

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What each kind of fault needs, in the names of the agent's probe and of `extras`.
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "kill": ("pidfd",),
    "pause": ("pidfd",),
    "restart": ("pidfd",),
    "nic_down": ("root", "link"),
    "flap": ("root", "link"),
    "partition": ("root", "nft"),
    "blackhole": ("root", "nft"),
    "tap": ("root", "nft"),
    "reset": ("root", "nft", "nft_reject"),
    "loss": ("root", "nft", "nft_numgen"),
    "bandwidth": ("root", "nft", "nft_limit"),
    "latency": ("root", "netem"),
    "reorder": ("root", "netem"),
    "corrupt": ("root", "netem"),
    "memory": (),
    "memory_limit": ("root", "cgroup"),
    "cpu": (),
    "disk_full": ("scratch",),
    "slow_disk": ("root", "scratch", "block_device", "throttle"),
    "clock_step": (),
    "port_taken": (),
}

#: Reading only, besides the agent's own probes.
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "mountinfo": ("cat", "/proc/self/mountinfo"),
    "mounts": ("cat", "/proc/self/mounts"),
    "controllers": ("cat", "/sys/fs/cgroup/cgroup.controllers"),
}


def why_not(
    kind: str, probe: Mapping[str, Any], extras: Mapping[str, str] | None = None
) -> str:
    """Why a host cannot do a kind of fault, "" when it can.

    Args:
        kind: of fault.
        probe: the agent's answer.
        extras: reasons by name, "" for what is there; what is missing is not there.
    """
    if kind not in NEEDS:
        return f"no fault is called {kind!r}"
    for need in NEEDS[kind]:
        reason = lacking(need, probe, extras or {})
        if reason:
            return reason
    return ""


def lacking(need: str, probe: Mapping[str, Any], extras: Mapping[str, str]) -> str:
    """Why one thing is missing, "" when it is there."""
    if need in extras:
        return f"{need}: {extras[need]}" if extras[need] else ""
    if probe.get(need):
        return ""
    reasons: Mapping[str, Any] = probe.get("why_not", {})
    return f"{need}: {reasons.get(need) or 'not found by the probe of the host'}"


def table(
    probe: Mapping[str, Any], extras: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Every kind of fault with the reason why it cannot be done, "" when it can."""
    return {kind: why_not(kind, probe, extras) for kind in NEEDS}


def extras(told: Mapping[str, Told], scratch: str) -> dict[str, str]:
    """What the commands say about disks; `scratch` is the mount to be filled."""
    device = device_of(told["mountinfo"].stdout, scratch) if scratch else ""
    return {
        "scratch": _scratch(told["mountinfo"].stdout, scratch),
        "block_device": _block(device, scratch),
        "throttle": "" if throttle_root(told) else "no blkio or io controller",
    }


def device_of(mountinfo: str, path: str) -> str:
    """major:minor of the file system that a path is on, "" when nothing is mounted."""
    return _mount_of(mountinfo, path)[1]


def mount_of(mountinfo: str, path: str) -> str:
    """The mount point that a path is on."""
    return _mount_of(mountinfo, path)[0]


def throttle_root(told: Mapping[str, Told]) -> tuple[str, str] | None:
    """(version, folder) of the hierarchy that limits disks, None without any."""
    old = cgroup_root(told["mounts"].stdout, "blkio")
    if old:
        return ("v1", old)
    new = cgroup_root(told["mounts"].stdout, "")
    if new and "io" in told["controllers"].stdout.split():
        return ("v2", new)
    return None


def _scratch(mountinfo: str, scratch: str) -> str:
    if not scratch:
        return "no scratch mount is named for this host"
    if posixpath.normpath(scratch) != mount_of(mountinfo, scratch):
        return f"{scratch} is no mount point of its own"
    return ""


def _block(device: str, scratch: str) -> str:
    if device and not device.startswith("0:"):
        return ""
    return f"{scratch or 'the scratch mount'} is on no block device"


def _mount_of(mountinfo: str, path: str) -> tuple[str, str]:
    best = ("", "")
    for line in mountinfo.splitlines():
        fields = line.split()
        if len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, fields[2])
    return best

"""Memory and processors of the machine, beside those of like machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.parse.meminfo import amount, numa_nodes, numa_total
from checks.rules.declare import NotHere, compared
from checks.rules.segment import shown

if TYPE_CHECKING:
    from checks.node import Node

_THP = "/sys/kernel/mm/transparent_hugepage"
_CPU = "/sys/devices/system/cpu"
_SHM = "/dev/shm"  # noqa: S108 - a mount point
_CHOSEN = re.compile(r"\[(\S+)\]")
_SHM_SIZE = re.compile(r"(?:^|,)size=(\d+)([kmg]?)(?:,|$)")
_SIMILAR = 0.95
"""Sockets whose memory differs by less are equally filled: firmware takes its part."""


@compared(
    "mem-thp",
    group="memory",
    severity="I",
    why="transparent huge pages change latency, not correctness",
    fix=("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",),
    source=("kernel: transhuge.rst",),
    needs=(f"{_THP}/enabled", f"{_THP}/defrag"),
)
def thp(node: Node, _: None) -> str:
    return "/".join(_chosen(node.facts, f"{_THP}/{x}") for x in ("enabled", "defrag"))


def _chosen(facts: Facts, path: str) -> str:
    """The word in brackets: `always [madvise] never`."""
    found = _CHOSEN.search(facts.text(path))
    if found is None:
        raise Unread("garbled", path, "nothing is chosen")
    return found[1]


@compared(
    "mem-numa-balance-dimm",
    group="memory",
    severity="W",
    why="a socket with less memory has a dead DIMM, and a store that does not fit",
    fix=("dmidecode -t memory; ipmitool sel list",),
    source=("catalogue: per-node MemTotal",),
    needs=("/sys/devices/system/node/node*/meminfo", "/proc/meminfo"),
)
def dimms(node: Node, _: None) -> Outcome | str:
    nodes = numa_nodes(node.facts)
    sizes = {n: numa_total(node.facts, n) for n in nodes}
    filled = [size for size in sizes.values() if size]
    told = ", ".join(f"node{n} {shown(size)}" for n, size in sizes.items())
    if not filled:
        raise Unread("garbled", "/sys/devices/system/node", "no memory at all")
    if min(filled) < _SIMILAR * max(filled):
        return bad(told, "as much memory on every socket")
    return f"{round(sum(filled) / (8 << 30)) * 8} GiB"


@compared(
    "mem-swap",
    group="memory",
    severity="I",
    why="pages of an engine that are swapped out stall it; pinned pages are not",
    fix=("swapoff -a, and out of /etc/fstab",),
    source=("kubelet: failSwapOn",),
    needs=("/proc/meminfo",),
)
def swap(node: Node, _: None) -> Outcome | str:
    total = amount(node.facts, "SwapTotal")
    if node.profile.memory.swap is False:
        return bad(shown(total), "no swap (profile)") if total else ok("none")
    return "swap" if total else "none"


@compared(
    "mem-shm",
    group="memory",
    severity="W",
    why="workers of one engine talk through /dev/shm: too small is a bus error",
    fix=("mount -o remount,size=64G /dev/shm; --shm-size of the container",),
    source=("Primus node_smoke: /dev/shm",),
    needs=("/proc/mounts", "/proc/meminfo"),
)
def shm(node: Node, _: None) -> Outcome | str:
    size = _shm_bytes(node.facts)
    wanted = node.profile.memory.shm_bytes
    expected = f"at least {shown(wanted)}"
    return ok(shown(size), expected) if size >= wanted else bad(shown(size), expected)


def _shm_bytes(facts: Facts) -> int:
    """The size of the tmpfs; half of the memory where the mount does not say."""
    for line in reversed(facts.text("/proc/mounts").splitlines()):
        words = line.split()
        if words[1:2] != [_SHM] or len(words) < 4:
            continue
        found = _SHM_SIZE.search(words[3])
        if found is None:
            return amount(facts, "MemTotal") // 2
        return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]
    raise Unread("absent", "/proc/mounts", f"{_SHM} is not mounted")


@compared(
    "cpu-governor",
    group="memory",
    severity="I",
    why="a governor that saves power adds latency to every small transfer",
    fix=("cpupower frequency-set -g performance",),
    source=("oci-hpc healthchecks",),
    needs=(f"{_CPU}/cpu0/cpufreq/scaling_governor",),
)
def governor(node: Node, _: None) -> str:
    path = f"{_CPU}/cpu0/cpufreq/scaling_governor"
    if not node.facts.exists(path):
        return "no frequency scaling"
    return node.facts.line(path)


@compared(
    "cpu-smt",
    group="memory",
    severity="I",
    why="half of the nodes with and half without SMT pin their threads differently",
    fix=("echo off > /sys/devices/system/cpu/smt/control, or the firmware",),
    source=("oci-hpc healthchecks",),
    needs=(f"{_CPU}/smt/control",),
)
def smt(node: Node, _: None) -> str:
    return node.facts.line(f"{_CPU}/smt/control")


@compared(
    "cpu-numa-nodes",
    group="memory",
    severity="W",
    why="one store a NUMA node: another NPS or SNC setting breaks the layout",
    fix=("set NPS or SNC in the firmware as on the other nodes",),
    source=("article: one store per NUMA node",),
    needs=("/sys/devices/system/node",),
)
def numa_count(node: Node, _: None) -> str:
    return str(len(numa_nodes(node.facts)))


@compared(
    "time-clocksource",
    group="time",
    severity="W",
    why="hpet and acpi_pm cost microseconds at every reading of the clock",
    fix=("see dmesg why tsc was marked unstable; tsc=reliable on the command line",),
    source=("kernel: clocksource",),
    needs=("/sys/devices/system/clocksource/clocksource0/current_clocksource",),
)
def clocksource(node: Node, _: None) -> Outcome | str:
    base = "/sys/devices/system/clocksource/clocksource0"
    found = node.facts.line(f"{base}/current_clocksource")
    if node.profile.allowed("time-clocksource", "") is not None:
        return found
    return bad(found, "tsc") if found in {"hpet", "acpi_pm", "jiffies"} else found


@compared(
    "host-kernel",
    group="host",
    severity="W",
    why="another kernel or distribution brings other drivers and other defaults",
    fix=("install and boot the kernel of the other nodes",),
    source=("Primus node_smoke: stack drift",),
    needs=("uname -r", "/proc/version", "/etc/os-release"),
)
def kernel(node: Node, _: None) -> str:
    return f"{_release(node.facts)}, {_distribution(node.facts)}"


def _release(facts: Facts) -> str:
    for result in facts.find("uname"):
        if set(result.reading.options) == {"-r"}:
            text = result.text()
            if not text.endswith("\n"):
                raise Unread("garbled", result.line, "its line is not whole")
            return text.strip()
    found = re.match(r"Linux version (\S+) ", facts.text("/proc/version"))
    if found is None:
        raise Unread("garbled", "/proc/version", "no version")
    return found[1]


def _distribution(facts: Facts) -> str:
    rows = (line.partition("=") for line in facts.text("/etc/os-release").splitlines())
    fields = {name: value.strip('"') for name, _, value in rows}
    if "ID" not in fields:
        raise Unread("garbled", "/etc/os-release", "no ID")
    return f"{fields['ID']} {fields.get('VERSION_ID', '')}".strip()


@compared(
    "host-uptime",
    group="host",
    severity="W",
    why="a node that waits for a reboot runs what a reboot will replace",
    fix=("drain and reboot it before the rollout",),
    source=("Debian: /run/reboot-required",),
    needs=("/run/reboot-required",),
)
def reboot(node: Node, _: None) -> Outcome | str:
    pending = node.facts.exists("/run/reboot-required")
    return bad("a reboot is pending", "none") if pending else ok("none is pending")


@compared(
    "host-limits-sysctl",
    group="host",
    severity="I",
    why="the TCP fall-back path runs out of ports or buffers first",
    fix=("the same file in /etc/sysctl.d on every node",),
    source=("Mooncake: Cannot assign requested address",),
    needs=("/proc/sys/net/core/rmem_max", "/proc/sys/net/core/somaxconn"),
)
def sysctls(node: Node, _: None) -> str:
    names = ("core/rmem_max", "core/wmem_max", "core/somaxconn", "ipv4/tcp_tw_reuse")
    return " ".join(
        f"{name.rpartition('/')[2]}={node.facts.line(f'/proc/sys/net/{name}')}"
        for name in names
    )


@compared(
    "cpu-cstates",
    group="memory",
    severity="I",
    why="deep sleep states add tens of microseconds to the first packet",
    fix=("intel_idle.max_cstate=1 or processor.max_cstate=1 on the command line",),
    source=("oci-hpc healthchecks",),
    needs=("/proc/cmdline",),
)
def cstates(node: Node, _: None) -> str:
    words = node.facts.line("/proc/cmdline").partition(" -- ")[0].split()
    if not words:
        raise NotHere("an empty command line")
    names = ("intel_idle.max_cstate=", "processor.max_cstate=", "idle=")
    found = [word for word in words if word.startswith(names)]
    return " ".join(sorted(found)) or "the kernel's default"

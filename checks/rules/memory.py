"""Locked memory, capabilities, huge pages: whether a store can register its segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Result, Unread
from checks.finding import Outcome, bad, ok
from checks.parse.limits import MEMLOCK, NOFILE, NPROC, UNLIMITED, limit
from checks.parse.meminfo import amount, huge_pages, numa_nodes
from checks.parse.proc_status import CAP_IPC_LOCK, has_capability, memory_nodes, status
from checks.parse.services import services
from checks.parse.sysctl import number, setting
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.segment import (
    DEFAULT_SEGMENT,
    huge_page_bytes,
    planned,
    shown,
    wants_huge_pages,
)
from checks.rules.service import each_store, is_master, service_env
from checks.selector import mooncake_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.node import Node
    from checks.parse.services import Service

_LIMITS = each_store("limits")
_TIB = 1 << 40
_DEFAULT_MAPS = 65530
_ULIMIT_KIB = 1024


def _memlock_subjects(
    node: Node,
) -> Sequence[Subject[Service]] | Sequence[Subject[Result]]:
    """Processes of services; else `ulimit -l` as somebody asked it, also in pods."""
    try:
        return _LIMITS(node)
    except Unread:
        asked = _ulimits(node)
        if not asked:
            raise
        return asked


def _ulimits(node: Node) -> list[Subject[Result]]:
    facts = node.facts
    return [
        Subject(item=result, label=f"ulimit -l {where}".strip(), key="ulimit -l")
        for where in ("", *facts.places())
        for program in ("ulimit", "bash", "sh")
        for result in facts.find(program, where=where)
        if "ulimit" in result.line and "-l" in result.line.split()
    ]


@check(
    "mem-memlock",
    group="memory",
    severity="C",
    why="a store locks its segment once for every NIC: registration fails, ENOMEM [12]",
    fix=(
        "LimitMEMLOCK=infinity in the unit, or ulimits memlock=-1 of the container",
        "or the capability IPC_LOCK; then restart the service (a login is not enough)",
    ),
    source=("R60 nccl-tests#206", "R62 Mooncake#1382, PR#1405"),
    needs=("/proc/<pid>/limits", "/proc/<pid>/status", "/proc/<pid>/environ"),
    over=_memlock_subjects,
)
def memlock(node: Node, item: Service | Result) -> Outcome:
    locked = _locked(node, item)
    service = None if isinstance(item, Result) else item
    if locked == UNLIMITED:
        return ok("unlimited")
    seen = f"may lock {shown(locked)}"
    told = _capability(node, service)
    if told is True:
        return ok(f"{seen}, but has IPC_LOCK", "unlimited, or IPC_LOCK")
    return _beside_need(node, locked, f"{seen}{told or ''}", service)


def _locked(node: Node, item: Service | Result) -> int:
    if isinstance(item, Result):
        word = item.text().strip()
        if word == "unlimited":
            return UNLIMITED
        if not word.isdigit() or not item.stdout.endswith("\n"):
            raise Unread("garbled", item.line, f"no limit: {word[:40]!r}")
        return int(word) * _ULIMIT_KIB
    return limit(node.facts, item.pid, MEMLOCK)


def _capability(node: Node, service: Service | None) -> bool | str:
    """Whether it may lock without limit; words where that was not collected."""
    if service is None:
        return ""
    try:
        return has_capability(node.facts, service.pid, CAP_IPC_LOCK)
    except Unread as error:
        if error.kind != "missing":
            raise
        return " (its capabilities were not collected)"


def _beside_need(
    node: Node, locked: int, seen: str, service: Service | None
) -> Outcome:
    """A finite limit beside NICs x segment; what is not known counts for the least."""
    size = planned(node, service)
    nics = _nics(node)
    least = max(1, nics or 1) * (DEFAULT_SEGMENT if size is None else size)
    expected = f"{nics or '?'} NICs x {_named(size)}, or unlimited, or IPC_LOCK"
    if locked < least:
        return bad(seen, f"{shown(least)}: {expected}")
    if size is None:
        raise Unread("missing", "MOONCAKE_GLOBAL_SEGMENT_SIZE", f"{seen}; not told")
    if nics is None:
        raise Unread("missing", "/sys/class/infiniband", f"{seen}; NICs not known")
    return ok(seen, expected)


def _named(size: int | None) -> str:
    told = shown(DEFAULT_SEGMENT if size is None else size)
    return told if size is not None else f"{told} (Mooncake's default)"


def _nics(node: Node) -> int | None:
    """RDMA devices a store registers with; None where they cannot be told."""
    try:
        return len({port.device for port in node.ports}) or None
    except Unread:
        return len(set(mooncake_devices(node.facts)[1])) or None


@check(
    "mem-cap-ipc-lock",
    group="memory",
    severity="C",
    why="without IPC_LOCK a finite limit decides, and every new NIC or segment adds up",
    fix=("securityContext.capabilities.add: [IPC_LOCK]; SYS_RAWIO is not needed",),
    source=("R62 Mooncake#1382, llm-d PR#2442",),
    needs=("/proc/<pid>/status", "/proc/<pid>/limits"),
    follows=("mem-memlock",),
    over=each_store("status"),
)
def ipc_lock(node: Node, service: Service) -> Outcome:
    expected = "IPC_LOCK in CapEff, or an unlimited memlock"
    if has_capability(node.facts, service.pid, CAP_IPC_LOCK):
        return ok("IPC_LOCK is effective", expected)
    locked = limit(node.facts, service.pid, MEMLOCK)
    if locked == UNLIMITED:
        return ok("no IPC_LOCK, memlock is unlimited", expected)
    return bad(f"no IPC_LOCK, memlock is {shown(locked)}", expected)


@compared(
    "mem-nofile",
    group="memory",
    severity="W",
    why="every endpoint and queue pair holds file descriptors",
    fix=("LimitNOFILE= in the unit, or ulimits nofile of the container",),
    source=("Mooncake: endpoints hold descriptors",),
    needs=("/proc/<pid>/limits",),
    over=_LIMITS,
)
def nofile(node: Node, service: Service) -> Outcome | str:
    return _at_least(node, service, NOFILE, node.profile.memory.nofile)


@compared(
    "mem-nproc",
    group="memory",
    severity="W",
    why="a transfer engine starts threads for every NIC",
    fix=("LimitNPROC= in the unit, or the pids limit of the container",),
    source=("Mooncake: worker threads",),
    needs=("/proc/<pid>/limits",),
    over=_LIMITS,
)
def nproc(node: Node, service: Service) -> Outcome | str:
    return _at_least(node, service, NPROC, node.profile.memory.nproc)


def _at_least(
    node: Node, service: Service, name: str, wanted: int | None
) -> Outcome | str:
    """The limit beside the profile; without one, what like processes have."""
    found = limit(node.facts, service.pid, name)
    told = "unlimited" if found == UNLIMITED else str(found)
    if wanted is None:
        return told
    expected = f"at least {wanted} (profile)"
    enough = found == UNLIMITED or found >= wanted
    return ok(told, expected, value=told) if enough else bad(told, expected)


@compared(
    "mem-max-map-count",
    group="memory",
    severity="W",
    why="a pool of terabytes needs more mappings than the kernel's default allows",
    fix=("sysctl -w vm.max_map_count=16777216, and a file in /etc/sysctl.d",),
    source=("Mooncake: deployment guide",),
    needs=("/proc/sys/vm/max_map_count", "/proc/meminfo"),
)
def max_map_count(node: Node, _: None) -> Outcome | str:
    found = number(node.facts, "vm.max_map_count")
    wanted = node.profile.memory.max_map_count
    if wanted is not None:
        expected = f"at least {wanted} (profile)"
        return (
            ok(found, expected, value=found)
            if found >= wanted
            else bad(found, expected)
        )
    if found <= _DEFAULT_MAPS and _is_large(node):
        return bad(f"{found}, with a pool of terabytes", "16777216")
    return str(found)


def _is_large(node: Node) -> bool:
    size = planned(node)
    return size is not None and size >= _TIB


@check(
    "mem-hugepages",
    group="memory",
    severity="E",
    why="the store is pinned to a NUMA node: free pages of the other do not help it",
    fix=(
        "echo N > /sys/devices/system/node/nodeX/hugepages/*/nr_hugepages",
        "reserve them per node at boot: memory is fragmented later",
    ),
    source=("Mooncake: troubleshooting", "atop#287"),
    needs=(
        "/sys/devices/system/node/node*/hugepages/*/free_hugepages",
        "/proc/<pid>/status",
    ),
)
def hugepages(node: Node, _: None) -> Outcome:
    if not wants_huge_pages(node):
        service_env(node)
        raise NotHere("the store does not use huge pages")
    size = planned(node)
    if size is None:
        raise Unread("missing", "MOONCAKE_GLOBAL_SEGMENT_SIZE", "not told")
    page = huge_page_bytes(node)
    nodes = _pinned(node)
    free = sum(huge_pages(node.facts, n, page, "free_hugepages") for n in nodes)
    used = _held_already(node, page)
    where = f"NUMA {', '.join(map(str, nodes))}"
    seen = f"{free} free pages of {shown(page)} on {where}{used}"
    needed = -(-size // page)
    expected = f"{needed} for a segment of {shown(size)}"
    return ok(seen, expected) if free >= needed or used else bad(seen, expected)


def _pinned(node: Node) -> tuple[int, ...]:
    """NUMA nodes of the store; all of them where no store was read."""
    for service in services(node.facts):
        if is_master(service) or not node.facts.matching(f"/proc/{service.pid}/status"):
            continue
        return memory_nodes(node.facts, service.pid)
    return numa_nodes(node.facts)


def _held_already(node: Node, page: int) -> str:
    """Words where the store has its pages already: then none need be free."""
    size = planned(node) or 0
    for service in services(node.facts):
        try:
            held = status(node.facts, service.pid).get("HugetlbPages", "0 kB")
        except Unread:
            continue
        words = held.split()
        if words[:1] and words[0].isdigit() and int(words[0]) * 1024 >= size > 0:
            return ", and the store holds its own"
    return ""


@check(
    "mem-hugepage-align",
    group="memory",
    severity="W",
    why="a segment that ends inside a huge page is refused: EINVAL (-600)",
    fix=("make MOONCAKE_GLOBAL_SEGMENT_SIZE a multiple of the huge page",),
    source=("R64 Mooncake PR#3845, FlexKV PR#275",),
    needs=("/proc/<pid>/environ", "/proc/sys/vm/nr_hugepages"),
)
def hugepage_align(node: Node, _: None) -> Outcome:
    _need_huge_pages(node)
    size = planned(node)
    if size is None:
        raise Unread("missing", "MOONCAKE_GLOBAL_SEGMENT_SIZE", "not told")
    page = huge_page_bytes(node)
    over = size % page
    expected = f"a multiple of {shown(page)}"
    return (
        bad(f"{size}: {over} bytes too many", expected)
        if over
        else ok(f"{size} bytes", expected)
    )


def _need_huge_pages(node: Node) -> None:
    said = wants_huge_pages(node)
    asked = said is not None or node.profile.memory.segment_bytes is not None
    if not asked:
        service_env(node)
    if said is False or (said is None and number(node.facts, "vm.nr_hugepages") == 0):
        raise NotHere("the store does not use huge pages")


@compared(
    "mem-numa-balancing",
    group="memory",
    severity="W",
    why="the kernel's scans stop worker threads: 16 ms more in one dispatch",
    fix=("sysctl -w kernel.numa_balancing=0, and a file in /etc/sysctl.d",),
    source=("R65 DeepEP#624",),
    needs=("/proc/sys/kernel/numa_balancing",),
)
def numa_balancing(node: Node, _: None) -> Outcome | str:
    try:
        found = number(node.facts, "kernel.numa_balancing")
    except Unread as error:
        if error.kind != "absent":
            raise
        return ok("this kernel has no NUMA balancing", "0", value="0")
    if node.profile.allowed("mem-numa-balancing", "") is None and found & 1:
        return bad(found, "0")
    if node.profile.allowed("mem-numa-balancing", "") is None:
        return ok(found, "0", value=found)
    return str(found)


@check(
    "mem-free",
    group="memory",
    severity="C",
    why="a store that registers more than is free is killed, or kills its neighbours",
    fix=("a smaller MOONCAKE_GLOBAL_SEGMENT_SIZE, or free memory first",),
    source=("Mooncake: troubleshooting",),
    needs=("/proc/meminfo", "/proc/<pid>/environ", "/proc/<pid>/status"),
)
def free(node: Node, _: None) -> Outcome:
    size = planned(node)
    if size is None:
        service_env(node)
        raise NotHere("no service plans a segment")
    available = amount(node.facts, "MemAvailable")
    held = size if wants_huge_pages(node) else _registered(node)
    needed = max(0, size - held) + node.profile.memory.headroom_bytes
    seen = f"{shown(available)} available"
    if held:
        seen = f"{seen}, {shown(min(held, size))} of the segment held already"
    expected = f"{shown(needed)}: what is missing of {shown(size)}, and headroom"
    return ok(seen, expected) if available >= needed else bad(seen, expected)


def _registered(node: Node) -> int:
    """Memory that the largest store holds already, pinned or not."""
    most = 0
    for service in services(node.facts):
        try:
            fields = status(node.facts, service.pid)
        except Unread:
            continue
        for name in ("VmPin", "VmLck", "VmRSS"):
            word = fields.get(name, "").split()[:1]
            most = max(most, int(word[0]) * 1024 if word and word[0].isdigit() else 0)
    return most


@compared(
    "mem-overcommit",
    group="memory",
    severity="I",
    why="nodes that overcommit differently fail differently",
    fix=("sysctl -w vm.overcommit_memory=...",),
    source=("kernel: vm.rst",),
    needs=("/proc/sys/vm/overcommit_memory",),
)
def overcommit(node: Node, _: None) -> str:
    return setting(node.facts, "vm.overcommit_memory")


@compared(
    "mem-zone-reclaim",
    group="memory",
    severity="I",
    why="reclaim before falling back to the other NUMA node stalls allocations",
    fix=("sysctl -w vm.zone_reclaim_mode=0",),
    source=("kernel: vm.rst",),
    needs=("/proc/sys/vm/zone_reclaim_mode",),
)
def zone_reclaim(node: Node, _: None) -> str:
    return setting(node.facts, "vm.zone_reclaim_mode")


@compared(
    "mem-min-free",
    group="memory",
    severity="I",
    why="too little memory kept free makes the network drop under pressure",
    fix=("sysctl -w vm.min_free_kbytes=...",),
    source=("kernel: vm.rst",),
    needs=("/proc/sys/vm/min_free_kbytes",),
)
def min_free(node: Node, _: None) -> str:
    return setting(node.facts, "vm.min_free_kbytes")

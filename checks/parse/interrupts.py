"""Interrupts of a NIC: `irqs BDF` of the collector, and whether irqbalance moves them.

`# N interrupts`, then N lines `IRQ CPUS`, where CPUS is `smp_affinity_list` and `?`
where it could not be read. On a large machine /proc/interrupts is megabytes of counts.
"""

from __future__ import annotations

import re
from functools import lru_cache

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled
from checks.parse.meminfo import NODES, numa_nodes

IRQBALANCE = "systemctl is-active irqbalance.service"
_COUNT = re.compile(r"# (\d+) interrupts")
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_RUNS = frozenset({"active", "activating", "reloading", "refreshing"})
_RESTS = frozenset({"inactive", "failed", "deactivating", "unknown", "maintenance"})
Homes = tuple[tuple[int, str], ...]
"""NUMA nodes with their processors, as `cpulist` has them."""


def parse_interrupts(text: str, source: str) -> tuple[str, ...]:
    """The processors of each interrupt, as lists of the kernel."""
    lines = text.split("\n")
    count = _COUNT.fullmatch(lines[0])
    if count is None or len(lines) != int(count[1]) + 2 or lines[-1]:
        raise Garbled(source, "not as many lines as interrupts")
    found = tuple(line.partition(" ")[2] for line in lines[1:-1])
    if "?" in found:
        raise Unread("missing", source, "an affinity could not be read")
    return found


@derived
def affinities(facts: Facts, bdf: str) -> tuple[str, ...]:
    """The processors of each interrupt of a PCI function."""
    source = f"irqs {bdf}"
    return parse_interrupts(facts.result("irqs", bdf).text(), source)


@derived
def homes(facts: Facts) -> Homes:
    """The processors of every NUMA node."""
    return tuple(
        (node, facts.line(f"{NODES}/node{node}/cpulist")) for node in numa_nodes(facts)
    )


@lru_cache(maxsize=4096)
def nodes_of(lists: frozenset[str], places: Homes) -> tuple[int, ...]:
    """NUMA nodes on which these lists of processors allow an interrupt."""
    allowed: frozenset[int] = frozenset().union(*(_cpus(each) for each in lists))
    found = tuple(node for node, cpus in places if cpus and allowed & _cpus(cpus))
    if not found:
        raise Garbled("smp_affinity_list", "processors of no NUMA node")
    return found


@lru_cache(maxsize=4096)
def _cpus(text: str) -> frozenset[int]:
    """Processors of `0-3,8`."""
    if not _CPUS.fullmatch(text):
        raise Garbled("smp_affinity_list", f"no list of processors: {text[:40]!r}")
    ends = (part.partition("-") for part in text.split(","))
    return frozenset(
        cpu
        for first, _, last in ends
        for cpu in range(int(first), int(last or first) + 1)
    )


@derived
def balances(facts: Facts) -> bool:
    """Whether irqbalance runs, and moves interrupts as it sees fit."""
    result = facts.result("systemctl", "is-active", "irqbalance.service").ended()
    word = result.stdout.removesuffix("\n")
    if word == result.stdout or word not in _RUNS | _RESTS:
        raise Unread("failed", result.line, f"rc {result.rc}: {result.complaint}")
    return word in _RUNS

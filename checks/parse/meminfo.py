"""Memory: /proc/meminfo, /sys/devices/system/node/node*/{meminfo,hugepages}."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

NODES = "/sys/devices/system/node"
_ROW = re.compile(r"^(?:Node \d+ )?([\w()]+):\s+(\d+)(?: kB)?\s*$")


def parse_meminfo(text: str) -> dict[str, int]:
    """Amounts by name: bytes, or a count of huge pages."""
    found = {}
    for line in text.splitlines():
        row = _ROW.match(line)
        if row:
            found[row[1]] = int(row[2]) * (1024 if " kB" in line else 1)
    return found


@derived
def meminfo(facts: Facts) -> Mapping[str, int]:
    """Of the whole node."""
    return parse_meminfo(facts.text("/proc/meminfo"))


def amount(facts: Facts, name: str) -> int:
    """One row of /proc/meminfo."""
    found = meminfo(facts)
    if name not in found:
        raise Garbled("/proc/meminfo", f"no row {name}")
    return found[name]


@derived
def numa_nodes(facts: Facts) -> tuple[int, ...]:
    """NUMA nodes of the machine."""
    numbers = {
        int(name[4:])
        for name in facts.names(NODES)
        if name.startswith("node") and name[4:].isdigit()
    }
    if not numbers:
        raise Unread("missing", NODES, "no NUMA node was read")
    return tuple(sorted(numbers))


def numa_total(facts: Facts, node: int) -> int:
    """Bytes of memory of one NUMA node."""
    path = f"{NODES}/node{node}/meminfo"
    found = parse_meminfo(facts.text(path))
    if "MemTotal" not in found:
        raise Garbled(path, "no row MemTotal")
    return found["MemTotal"]


def huge_pages(facts: Facts, node: int, page_bytes: int, leaf: str) -> int:
    """Huge pages of one NUMA node; `leaf` is `nr_hugepages` or `free_hugepages`."""
    kib = page_bytes // 1024
    return facts.number(f"{NODES}/node{node}/hugepages/hugepages-{kib}kB/{leaf}")

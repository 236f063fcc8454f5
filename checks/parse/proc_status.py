"""`/proc/<pid>/status`: capabilities and the memory nodes a process may use.

`CapEff` is a hexadecimal mask of sixteen digits; fewer mean that the text is cut off.
`Mems_allowed_list` is a list of NUMA nodes such as `0-1,3`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

CAP_IPC_LOCK = 14
_MASK = re.compile(r"[0-9a-f]{16}")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@derived
def status(facts: Facts, pid: int) -> Mapping[str, str]:
    """Fields by name."""
    rows = (
        line.partition(":") for line in facts.text(f"/proc/{pid}/status").splitlines()
    )
    return {name.strip(): value.strip() for name, colon, value in rows if colon}


def has_capability(facts: Facts, pid: int, bit: int) -> bool:
    """Whether a capability is effective."""
    mask = _field(facts, pid, "CapEff").lower()
    if not _MASK.fullmatch(mask):
        raise Garbled(f"/proc/{pid}/status", f"CapEff is no mask: {mask!r}")
    return bool(int(mask, 16) >> bit & 1)


def memory_nodes(facts: Facts, pid: int) -> tuple[int, ...]:
    """NUMA nodes that the process may take memory of."""
    text = _field(facts, pid, "Mems_allowed_list")
    return parse_list(text, f"/proc/{pid}/status")


def parse_list(text: str, where: str) -> tuple[int, ...]:
    """A kernel list `0-1,3` as numbers."""
    found: list[int] = []
    for part in text.strip().split(","):
        row = _RANGE.fullmatch(part)
        if row is None:
            raise Garbled(where, f"no list of numbers: {text[:60]!r}")
        found.extend(range(int(row[1]), int(row[2] or row[1]) + 1))
    return tuple(found)


def _field(facts: Facts, pid: int, name: str) -> str:
    found = status(facts, pid)
    if name not in found:
        raise Garbled(f"/proc/{pid}/status", f"no field {name}")
    return found[name]

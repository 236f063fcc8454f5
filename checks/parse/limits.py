"""`/proc/<pid>/limits`: what a running process may use, not what a login may.

Fixed columns `Limit  Soft Limit  Hard Limit  Units`; the soft limit is in force. A row
is read only where all of its columns are there. Raising `limits.conf` or `ulimit -l` in
a shell changes nothing for a process that already runs (nccl-tests#206).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

UNLIMITED = -1
MEMLOCK = "Max locked memory"
NOFILE = "Max open files"
NPROC = "Max processes"
_AMOUNT = r"(\d+|unlimited)"
_ROW = re.compile(rf"^(Max [a-z ]+?)\s{{2,}}{_AMOUNT}\s+{_AMOUNT}(?:\s+([a-z]+))?\s*$")


def parse_limits(text: str) -> dict[str, int]:
    """Soft limits by name, in their units; rows that are not whole are left out."""
    found = {}
    for line in text.splitlines():
        row = _ROW.match(line)
        if row and (row[4] or row[1].startswith(("Max nice", "Max realtime p"))):
            found[row[1]] = UNLIMITED if row[2] == "unlimited" else int(row[2])
    return found


@derived
def limits(facts: Facts, pid: int) -> Mapping[str, int]:
    """The limits of one process."""
    return parse_limits(facts.text(f"/proc/{pid}/limits"))


def limit(facts: Facts, pid: int, name: str) -> int:
    """One limit; a file without its row is cut off."""
    found = limits(facts, pid)
    if name not in found:
        raise Garbled(f"/proc/{pid}/limits", f"no row {name!r}")
    return found[name]

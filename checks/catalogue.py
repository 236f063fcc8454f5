"""Every check of the catalogue, implemented or not, so that what is missing is visible.

A row is implemented where a rule of its id is declared; `batch` is 1 or 2 for the
checks that come first, 0 for the rest. The table itself is `catalogue.tsv`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).parent / "catalogue.tsv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check of the catalogue; `severity` is C, E, W or I."""

    id: str
    group: str
    severity: str
    batch: int
    bad_when: str


@cache
def catalogue() -> dict[str, Row]:
    """Rows by id, ordered by id."""
    rows = [
        line.split("\t") for line in _FILE.read_text(encoding="utf-8").splitlines()[1:]
    ]
    return {
        name: Row(
            id=name,
            group=group,
            severity=severity,
            batch=int(batch),
            bad_when=bad_when,
        )
        for name, group, severity, batch, bad_when in rows
    }

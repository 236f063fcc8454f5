"""Get sessions: one lookup, then ranges of its objects while its lease lasts."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from refimpl.core.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from refimpl.client import Lookup
    from refimpl.compat.link import Link

    Pieces = Sequence[tuple[int, memoryview]]
    """(first byte within the object, where it goes)"""

_SESSIONS_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Found:
    """One object of one lookup."""

    lookup: Lookup
    row: int

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return int(self.lookup.size[self.row])


class ReadSessions:
    """Open get sessions by name. Safe from several threads.

    Args:
        link: asks the master and reads.
        clock: monotonic seconds, the client's.
    """

    def __init__(
        self, link: Link, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Found] = {}

    def start(self, names: Sequence[str]) -> list[int]:
        """Looks objects up; a code each. A session of the same name begins anew."""
        found = self._link.lookup(names)
        codes: list[int] = found.status.tolist()
        with self._lock:
            for row, name in enumerate(names):
                self._open.pop(name, None)
                if codes[row] == Code.OK and len(self._open) < _SESSIONS_MAX:
                    self._open[name] = Found(found, row)
                elif codes[row] == Code.OK:
                    codes[row] = Code.INVALID_PARAMS
        return codes

    def read(self, names: Sequence[str], pieces: Sequence[Pieces | None]) -> list[int]:
        """Reads ranges; bytes in all, or a code, for each object.

        `None` for pieces is a refused row. Nobody asks the master; an object whose
        lease is over is LEASE_EXPIRED and its session ends.
        """
        codes: list[int] = [Code.INVALID_PARAMS] * len(names)
        chosen: dict[int, tuple[Lookup, list[tuple[int, int, Pieces]]]] = {}
        with self._lock:
            for at, (name, wanted) in enumerate(zip(names, pieces, strict=True)):
                found = self._open.get(name)
                if found is None or wanted is None:
                    continue
                if self._clock() > found.lookup.lease_until:
                    del self._open[name]
                    codes[at] = Code.LEASE_EXPIRED
                    continue
                group = chosen.setdefault(id(found.lookup), (found.lookup, []))
                group[1].append((at, found.row, wanted))
        for lookup, rows in chosen.values():
            for at, code in read_pieces(self._link, lookup, rows).items():
                codes[at] = code
                if code == Code.LEASE_EXPIRED:
                    self.end([names[at]])
        return codes

    def end(self, names: Sequence[str]) -> None:
        """Forgets sessions; names without one are fine."""
        with self._lock:
            for name in names:
                self._open.pop(name, None)


def read_pieces(
    link: Link, lookup: Lookup, rows: Sequence[tuple[int, int, Pieces]]
) -> dict[int, int]:
    """Reads all pieces of (key, row of the lookup, pieces) in one call.

    Answers bytes in all, or the first bad code, by key.
    """
    flat = [(k, row, at, v) for k, row, many in rows for at, v in many if len(v)]
    codes = link.get_ranges(
        lookup,
        [row for _, row, _, _ in flat],
        [at for _, _, at, _ in flat],
        [view for _, _, _, view in flat],
    ).tolist()
    answers = {
        key: sum(len(view) for _, view in many)
        if lookup.status[row] == Code.OK
        else int(lookup.status[row])
        for key, row, many in rows
    }
    for (key, _, _, _), code in zip(flat, codes, strict=True):
        if code != Code.OK and answers[key] >= 0:
            answers[key] = code
    return answers

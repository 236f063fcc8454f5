"""Put sessions: places first, ranges in any order, then complete or given up.

Places are taken in the pool when a session starts, so that nobody else writes the key
and a full pool says so at once. Ranges are staged in memory of this client and written
when the session ends: the pool keeps one checksum of each object, and only then are all
of its bytes known. (Upstream writes each range through and keeps no checksum of such
objects.) Staged bytes are bounded; ranges that nobody wrote are zeros.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from refimpl.compat.memory import LocalBuffer
from refimpl.core.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from refimpl.client import Reservation
    from refimpl.compat.config import ReplicateConfig
    from refimpl.compat.link import Link
    from refimpl.compat.read_sessions import Pieces

STAGED_BYTES_MAX: Final = 1 << 30


@dataclass(slots=True, eq=False)
class _Session:
    """One object under way."""

    held: Reservation
    row: int
    staged: bytearray
    writable: bool = True


class PutSessions:
    """Open put sessions by name. Safe from several threads.

    Args:
        link: takes places, writes, gives back.
        staged_bytes_max: of all sessions together.
    """

    def __init__(self, link: Link, *, staged_bytes_max: int = STAGED_BYTES_MAX) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._open: dict[str, _Session | None] = {}
        self._budget = LocalBuffer(staged_bytes_max)

    def start(
        self, names: Sequence[str], sizes: Sequence[int], config: ReplicateConfig
    ) -> list[int]:
        """Takes places; a code each. A name with a session is INVALID_PARAMS."""
        codes: list[int] = [Code.INVALID_PARAMS] * len(names)
        rows = self._admit(names, sizes, codes)
        if not rows:
            return codes
        staged = [bytearray(sizes[row]) for row in rows]
        held = None
        try:
            held = self._link.reserve([names[row] for row in rows], staged, config)
        finally:
            with self._lock:
                for at, row in enumerate(rows):
                    code = Code.INTERNAL_ERROR if held is None else int(held.codes[at])
                    codes[row] = code
                    if held is not None and code == Code.OK:
                        self._open[names[row]] = _Session(held, at, staged[at])
                    else:
                        self._drop(names[row], sizes[row])
        return codes

    def write(self, names: Sequence[str], pieces: Sequence[Pieces | None]) -> list[int]:
        """Stages ranges; bytes in all for each object, INVALID_PARAMS when refused."""
        codes: list[int] = [Code.INVALID_PARAMS] * len(names)
        with self._lock:
            for at, (name, given) in enumerate(zip(names, pieces, strict=True)):
                session = self._open.get(name)
                if session is None or given is None or not session.writable:
                    continue
                size = len(session.staged)
                if any(first + len(view) > size for first, view in given):
                    continue
                for first, view in given:
                    session.staged[first : first + len(view)] = view
                codes[at] = sum(len(view) for _, view in given)
        return codes

    def end(self, names: Sequence[str]) -> list[int]:
        """Writes objects and makes them readable.

        A session whose end failed stays, to be ended again or revoked.
        """
        return self._finish(
            names,
            lambda held, rows: held.complete(rows, timeout_s=self._link.timeout_s),
        )

    def revoke(self, names: Sequence[str]) -> list[int]:
        """Gives objects up."""
        return self._finish(
            names, lambda held, rows: held.revoke(rows, timeout_s=self._link.timeout_s)
        )

    def close(self) -> None:
        """Gives up what is open; the master forgets what does not reach it by time."""
        with self._lock:
            names = [name for name, session in self._open.items() if session]
        self.revoke(names)

    def _admit(
        self, names: Sequence[str], sizes: Sequence[int], codes: list[int]
    ) -> list[int]:
        """Rows that may start; their names are taken from here on."""
        rows = []
        with self._lock:
            for row, (name, size) in enumerate(zip(names, sizes, strict=True)):
                if not name or name in self._open or not 0 < size < 1 << 32:
                    continue
                if not self._budget.take(size):
                    codes[row] = Code.NO_AVAILABLE_HANDLE
                    continue
                self._open[name] = None
                rows.append(row)
        return rows

    def _finish(
        self,
        names: Sequence[str],
        finish: Callable[[Reservation, list[int]], NDArray[np.int16]],
    ) -> list[int]:
        """Seals sessions, finishes them reservation by reservation, drops good ones."""
        codes: list[int] = [Code.INVALID_PARAMS] * len(names)
        groups: dict[int, tuple[Reservation, list[tuple[int, int]]]] = {}
        with self._lock:
            for at, name in enumerate(names):
                session = self._open.get(name)
                if session is None:
                    continue
                session.writable = False
                group = groups.setdefault(id(session.held), (session.held, []))
                group[1].append((at, session.row))
        for held, chosen in groups.values():
            answers = finish(held, [row for _, row in chosen]).tolist()
            for (at, _), code in zip(chosen, answers, strict=True):
                codes[at] = code
                if code == Code.OK:
                    self._forget(names[at])
        return codes

    def _forget(self, name: str) -> None:
        with self._lock:
            session = self._open.get(name)
            if session is not None:
                self._drop(name, len(session.staged))

    def _drop(self, name: str, size: int) -> None:
        self._open.pop(name, None)
        self._budget.give(size)

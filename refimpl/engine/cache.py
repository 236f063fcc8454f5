"""HiCache behind a wall: whatever it raises, the request goes on without it.

The law of the house stands here in code. Every exception is counted by the call in
which it happened, logged once in a while, and read as "nothing reused".
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Fill = Callable[[bytes, NDArray[np.uint8]], object]

_log = logging.getLogger(__name__)


class ReuseLike(Protocol):
    """What the engine reads of HiCache's `Reuse`."""

    @property
    def l1_pages(self) -> int: ...
    @property
    def l2_pages(self) -> int: ...
    @property
    def l3_pages(self) -> int: ...
    @property
    def outcome(self) -> Any: ...
    @property
    def wait_s(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def stores(self) -> Sequence[str]: ...
    @property
    def touched_fault(self) -> bool: ...
    @property
    def pages(self) -> Sequence[memoryview]: ...


class HiCacheLike(Protocol):
    """What the engine asks of HiCache; `begin` is ended by `commit` or `abort`."""

    on_ready: Callable[[], None]

    def begin(self, request_id: str, page_keys: bytes, policy: str = "") -> Any: ...
    def ready(self, prefetch: Any, now: float) -> bool: ...
    def finish(self, prefetch: Any) -> ReuseLike: ...
    def commit(self, prefetch: Any, fill: Fill) -> object: ...
    def abort(self, prefetch: Any) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reused:
    """The leading pages that a request need not compute, and how they came."""

    l1_pages: int = 0
    l2_pages: int = 0
    l3_pages: int = 0
    outcome: str = "none"
    wait_s: float = 0.0
    deadline_s: float = 0.0
    stores: tuple[str, ...] = ()
    touched_fault: bool = False
    pages: Sequence[memoryview] = field(default=(), repr=False)


class CacheErrors:
    """Counts what HiCache raised, by call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def note(self, call: str, error: Exception) -> None:
        """Counts and logs one exception."""
        with self._lock:
            self._counts[call] += 1
            count = self._counts[call]
        if count & (count - 1) == 0:  # 1st, 2nd, 4th, 8th, ...: the log stays bounded
            _log.error("cache %s failed (%d times)", call, count, exc_info=error)

    def snapshot(self) -> dict[str, int]:
        """Exceptions by call."""
        with self._lock:
            return dict(self._counts)

    def clear(self) -> None:
        """Forgets all counts."""
        with self._lock:
            self._counts.clear()


class CacheUse:
    """One request's use of HiCache, ended exactly once, by `commit` or `abort`."""

    def __init__(self, cache: HiCacheLike, errors: CacheErrors) -> None:
        self._cache = cache
        self._errors = errors
        self._prefetch: Any = None
        self._failed = False

    def begin(self, request_id: str, keys: bytes, policy: str) -> None:
        """Looks into L1 and L2 and starts the prefetch of the rest."""
        try:
            self._prefetch = self._cache.begin(request_id, keys, policy)
        except Exception as error:
            self._fail("begin", error)

    def is_ready(self, now: float) -> bool:
        """True when the prefetch may end, and always after a failure."""
        if self._prefetch is None or self._failed:
            return True
        try:
            return bool(self._cache.ready(self._prefetch, now))
        except Exception as error:
            self._fail("ready", error)
            return True

    def finish(self, most_pages: int) -> Reused:
        """Ends the prefetch; what arrived is protected until `commit` or `abort`."""
        if self._prefetch is None or self._failed:
            return Reused(outcome="error")
        try:
            return _checked(self._cache.finish(self._prefetch), most_pages)
        except Exception as error:
            self._fail("finish", error)
            return Reused(outcome="error")

    def commit(self, fill: Fill) -> None:
        """Hands over the computed pages; after a failure it only lets go."""
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is None:
            return
        if self._failed:
            self._let_go(prefetch)
            return
        try:
            self._cache.commit(prefetch, fill)
        except Exception as error:
            self._fail("commit", error)

    def abort(self) -> None:
        """Lets go of everything. Safe at any point, and twice."""
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None:
            self._let_go(prefetch)

    def _let_go(self, prefetch: Any) -> None:
        try:
            self._cache.abort(prefetch)
        except Exception as error:
            self._fail("abort", error)

    def _fail(self, call: str, error: Exception) -> None:
        self._failed = True
        self._errors.note(call, error)


def _checked(reuse: ReuseLike, most_pages: int) -> Reused:
    """The reuse as the engine counts it.

    Raises:
        ValueError: its numbers contradict each other or the prompt.
    """
    pages = reuse.pages
    total = reuse.l1_pages + reuse.l2_pages + reuse.l3_pages
    if total != len(pages) or total > most_pages:
        raise ValueError(
            f"cache says {total} pages and hands out {len(pages)} of {most_pages}"
        )
    outcome = getattr(reuse.outcome, "value", reuse.outcome)
    return Reused(
        l1_pages=reuse.l1_pages,
        l2_pages=reuse.l2_pages,
        l3_pages=reuse.l3_pages,
        outcome=str(outcome),
        wait_s=reuse.wait_s,
        deadline_s=reuse.deadline_s,
        stores=tuple(reuse.stores),
        touched_fault=bool(reuse.touched_fault),
        pages=pages,
    )

"""What one arm measured, as columns: the only thing the gate looks at.

A source (JSONL, HdrHistogram, Prometheus) fills one of these for each arm. What was
not measured is NaN (or None, or an absent counter), never 0: the gate answers
INCONCLUSIVE to what it cannot see. Times are real seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

UNKNOWN = -1
ARMS = ("baseline", "canary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Columns of n rows, one row a request; codes of -1 are unknown.

    Raises:
        ValueError: a column is longer or shorter than `ok`.
    """

    arm: str
    request: NDArray[np.int64] | None
    """Pairing id: the row of the trace. None: this arm cannot be paired."""
    session: NDArray[np.int64]
    """Cluster codes, indices of `session_names` where there are names."""
    host: NDArray[np.int64]
    klass: NDArray[np.int64]
    class_names: tuple[str, ...]
    start_s: NDArray[np.float64]
    """When the request was to start, from the beginning of the load."""
    ok: NDArray[np.bool_]
    cause: tuple[str, ...] = ()
    """Why a request failed, "" if it did not; as long as the rows, or empty."""
    metrics: Mapping[str, NDArray[np.float64]]
    """"ttft_s", "tpot_s", "e2e_s", "cache_wait_s", "rpcs", ...; NaN: not measured."""
    hit_tokens: NDArray[np.float64]
    prompt_tokens: NDArray[np.float64]
    lag_s: NDArray[np.float64]
    """How much later than intended the load generator sent it; NaN: not measured."""
    counters: Mapping[str, int]
    """Counters of the whole arm; one that was not observed is absent, never 0."""
    complete: bool
    """The recorder said that this arm was measured to its planned end."""
    problems: tuple[str, ...]
    """What forbids PASS: a truncated log, a dead arm, NaNs written as numbers, ..."""
    meta: Mapping[str, Any]
    """The rest of `meta.json`: system, build, seed, time_scale, started_at, ..."""
    session_names: tuple[str, ...] = ()
    host_names: tuple[str, ...] = ()
    turn: NDArray[np.int64] | None = None
    """Which arm was served first for this row (arm-swapped replay); None: not known."""

    def __post_init__(self) -> None:
        for name, column in self._columns():
            if column.shape != (len(self.ok),):
                raise ValueError(
                    f"column {name} of arm {self.arm!r} has shape {column.shape},"
                    f" not ({len(self.ok)},)"
                )
        if self.cause and len(self.cause) != len(self.ok):
            raise ValueError(f"arm {self.arm!r} has {len(self.cause)} causes")

    def __len__(self) -> int:
        return len(self.ok)

    def metric(self, name: str) -> NDArray[np.float64]:
        """One metric, all NaN when this arm did not measure it."""
        found = self.metrics.get(name)
        return np.full(len(self), np.nan) if found is None else found

    def measured(self, name: str) -> bool:
        """Whether any row has a value of this metric."""
        return bool(np.any(~np.isnan(self.metric(name))))

    def _columns(self) -> list[tuple[str, NDArray[Any]]]:
        names = [
            "session",
            "host",
            "klass",
            "start_s",
            "ok",
            "hit_tokens",
            "prompt_tokens",
            "lag_s",
        ]
        columns = [(name, getattr(self, name)) for name in names]
        columns += [(f"metrics[{name}]", one) for name, one in self.metrics.items()]
        for name in ("request", "turn"):
            if getattr(self, name) is not None:
                columns.append((name, getattr(self, name)))
        return columns


def codes(names: Sequence[str | None]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Names as codes in order of first appearance; None and "" are unknown (-1)."""
    known: dict[str, int] = {}
    column = [known.setdefault(n, len(known)) if n else UNKNOWN for n in names]
    return np.array(column, dtype=np.int64), tuple(known)


def unknown(rows: int) -> NDArray[np.int64]:
    """A column of codes that nobody knows."""
    return np.full(rows, UNKNOWN, dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class Columns:
    """Builds `Samples` from what a source has; the rest is "not measured".

    Every field takes anything numpy makes an array of; None is not measured.
    """

    arm: str
    ok: ArrayLike
    metrics: Mapping[str, ArrayLike] = field(default_factory=dict)
    request: ArrayLike | None = None
    sessions: Sequence[str | None] | None = None
    hosts: Sequence[str | None] | None = None
    classes: Sequence[str | None] | None = None
    start_s: ArrayLike | None = None
    cause: tuple[str, ...] = ()
    hit_tokens: ArrayLike | None = None
    prompt_tokens: ArrayLike | None = None
    lag_s: ArrayLike | None = None
    turn: ArrayLike | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    complete: bool = False
    problems: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    def samples(self) -> Samples:
        """The finished columns.

        Raises:
            ValueError: columns of different lengths.
        """
        ok = np.asarray(self.ok, dtype=np.bool_)
        session, session_names = self._codes(self.sessions, len(ok))
        host, host_names = self._codes(self.hosts, len(ok))
        klass, class_names = self._codes(self.classes, len(ok))
        return Samples(
            arm=self.arm,
            request=_whole(self.request),
            session=session,
            session_names=session_names,
            host=host,
            host_names=host_names,
            klass=klass,
            class_names=class_names,
            start_s=_floats(self.start_s, len(ok)),
            ok=ok,
            cause=self.cause,
            metrics={k: _floats(v, len(ok)) for k, v in self.metrics.items()},
            hit_tokens=_floats(self.hit_tokens, len(ok)),
            prompt_tokens=_floats(self.prompt_tokens, len(ok)),
            lag_s=_floats(self.lag_s, len(ok)),
            turn=_whole(self.turn),
            counters=dict(self.counters),
            complete=self.complete,
            problems=self.problems,
            meta=dict(self.meta),
        )

    @staticmethod
    def _codes(
        names: Sequence[str | None] | None, rows: int
    ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        return (unknown(rows), ()) if names is None else codes(names)


def _floats(column: ArrayLike | None, rows: int) -> NDArray[np.float64]:
    if column is None:
        return np.full(rows, np.nan)
    return np.asarray(column, dtype=np.float64)


def _whole(column: ArrayLike | None) -> NDArray[np.int64] | None:
    return None if column is None else np.asarray(column, dtype=np.int64)

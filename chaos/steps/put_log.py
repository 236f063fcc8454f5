"""Puts that go on while something happens: what failed, and where the bytes went.

Times are seconds on the monotonic clock that the harness shares with its processes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from chaos.judge.limit import at_most, inconclusive, none_of
from chaos.steps import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.judge.verdict import Judgement
    from chaos.systems.base import KvProbe

ROWS_KEPT = 20_000
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One batch: `failed` counts its keys without OK, `stores` its objects by store."""

    sent_s: float
    done_s: float
    failed: int
    stores: Counter[str] = field(default_factory=Counter)


class PutLog:
    """Puts a small batch every `every_s` in the background, while its block runs.

    Args:
        probe: of this log alone; it is used from the log's own thread.
        name: prefix of the keys.
        batch: objects of one put.
        size_bytes: of one object.
        every_s: seconds between the starts of two puts.
        host: where the writer claims to run.
    """

    def __init__(
        self,
        probe: KvProbe,
        name: str,
        *,
        batch: int = 16,
        size_bytes: int = 16 << 10,
        every_s: float = 0.02,
        host: str = "",
    ) -> None:
        self.rows: list[Row] = []
        self._probe = probe
        self._name = name
        self._batch = batch
        self._size = size_bytes
        self._every_s = every_s
        self._host = host
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._body, name="puts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(_END_S)

    def go_on_for(self, seconds: float) -> None:
        """Waits until puts were sent for so long from now on."""
        end_s = time.monotonic() + seconds
        wait_for(
            lambda: bool(self.rows) and self.rows[-1].sent_s >= end_s,
            f"{seconds:g} s of puts",
            timeout_s=seconds + _END_S,
        )

    def last_failure_s(self, since_s: float) -> float:
        """Seconds from an instant until the last put that failed; 0 when none did."""
        ends = [row.done_s for row in self.rows if row.failed and row.done_s >= since_s]
        return max(ends) - since_s if ends else 0.0

    def between(self, begin_s: float, end_s: float) -> list[Row]:
        """Puts sent within an interval."""
        return [row for row in self.rows if begin_s <= row.sent_s < end_s]

    def over_by(self, instant_s: float) -> list[Row]:
        """Puts that had ended by an instant: what happens then cannot have met them."""
        return [row for row in self.rows if row.done_s <= instant_s]

    def _body(self) -> None:
        number = 0
        while not self._ended.is_set() and len(self.rows) < ROWS_KEPT:
            sent_s = time.monotonic()
            self.rows.append(self._put(number, sent_s))
            number += 1
            self._ended.wait(max(0.0, sent_s + self._every_s - time.monotonic()))

    def _put(self, number: int, sent_s: float) -> Row:
        names = [f"{self._name}-{number}-{index}" for index in range(self._batch)]
        codes = self._probe.write(names, size_bytes=self._size, host=self._host)
        done_s = time.monotonic()
        stores = Counter(name for one in self._probe.owners(names) for name in one)
        failed = sum(code != 0 for code in codes)
        return Row(sent_s=sent_s, done_s=done_s, failed=failed, stores=stores)


def judge_puts_fail_briefly(log: PutLog, since_s: float, limit_s: float) -> Judgement:
    """A3: a put that meets a dead store excludes it at once."""
    return at_most(
        "A3",
        "puts fail for a moment at most after a store died",
        log.last_failure_s(since_s),
        limit_s,
        samples=len(log.between(since_s, float("inf"))),
        unit="s",
        needed=10,
        kind="counter",
    )


def judge_share_in_windows(
    rows: Sequence[Row],
    store: str,
    *,
    stores: int,
    window_s: float,
    factor: float = 2.0,
) -> Judgement:
    """A3: no window in which the newcomer takes more than `factor` fair shares.

    Windows begin with every put, so that the worst one is seen.
    """
    claim = f"a newcomer takes <= {factor:g} x its fair share in any window"
    shares = [
        share_of(
            [row for row in rows if 0 <= row.sent_s - first.sent_s < window_s], store
        )
        for first in rows
        if rows[-1].sent_s - first.sent_s >= window_s
    ]
    if not shares:
        return inconclusive("A3", claim, "no whole window of puts", kind="counter")
    return at_most(
        "A3",
        claim,
        max(shares),
        factor / stores,
        samples=len(shares),
        unit="share",
        label="took",
        needed=10,
        kind="counter",
        reason=f"over all it took {100 * share_of(rows, store):.1f} %",
    )


def judge_no_allocation(
    rows: Sequence[Row], store: str, oracle: str, claim: str
) -> Judgement:
    """Nothing that was put in these rows lies on a store."""
    return none_of(
        oracle,
        claim,
        sum(row.stores[store] for row in rows),
        of=sum(row.stores.total() for row in rows),
        what="objects on it",
        needed=10,
    )


def share_of(rows: Sequence[Row], store: str) -> float:
    """The share of the objects of some puts that one store took."""
    total = sum(row.stores.total() for row in rows)
    return sum(row.stores[store] for row in rows) / total if total else 0.0

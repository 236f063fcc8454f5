"""Rows of requests out of bucket counts: what was counted, as the gate judges it.

A row stands for one request of one target between two scrapes. Which value of one
metric belongs to which value of another is not known, so nothing here is paired; rows
of the same target and scrape are one cluster, because they lived through the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chaos.canary.sources.buckets import Edge, Growth

_SEED: Final = 20_260
"""Of thinning a metric that counts more often than requests; part of the method."""


@dataclass(slots=True, kw_only=True)
class Rows:
    """Rows while they are gathered; `began` is the start of the window."""

    metrics: tuple[str, ...]
    began: float
    edge: Edge
    _rng: np.random.Generator = field(
        default_factory=lambda: np.random.default_rng(_SEED)
    )
    _groups: list[tuple[str, float, int]] = field(default_factory=list)
    """(host, instant, rows) of each scrape of each target with requests."""
    _values: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)
    _failed: list[tuple[str, float, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(rows for _, _, rows in (*self._groups, *self._failed))

    def add(self, requests: Growth, metrics: Mapping[str, Sequence[Growth]]) -> None:
        """The requests of one target; other metrics of its host and scrape beside."""
        for scrape, count in enumerate(requests.totals):
            if not count:
                continue
            at = float(requests.at[scrape])
            self._groups.append((requests.host, at, int(count)))
            for metric in self.metrics:
                grown = requests if metric == self.metrics[0] else None
                grown = grown or _beside(requests, metrics[metric])
                self._draw(metric, grown, at, int(count))

    def fail(self, failed: Sequence[Growth]) -> None:
        """Requests that failed: rows without a value."""
        for growth in failed:
            for at, count in zip(growth.at, growth.totals, strict=True):
                if count:
                    self._failed.append((growth.host, float(at), int(count)))

    def spread(self, tokens: Sequence[Growth]) -> NDArray[np.float64] | None:
        """Tokens of a host, evenly over its requests since its last scrape.

        Only sums over many requests mean anything; that is all the gate takes of it.
        """
        if not tokens or not self._groups:
            return None
        sums = np.zeros(len(self._groups))
        for growth in tokens:
            mine = [
                i for i, group in enumerate(self._groups) if group[0] == growth.host
            ]
            if mine:
                mine.sort(key=lambda i: self._groups[i][1])
                instants = np.array([self._groups[i][1] for i in mine])
                places = np.searchsorted(instants, growth.at).clip(max=len(mine) - 1)
                np.add.at(sums, np.array(mine)[places], growth.totals)
        counts = np.array([rows for _, _, rows in self._groups])
        missing = np.full(len(self) - int(counts.sum()), np.nan)
        return np.concatenate([np.repeat(sums / counts, counts), missing])

    def columns(self) -> dict[str, Any]:
        """What `Columns` takes, failed requests last."""
        groups = (*self._groups, *self._failed)
        good = sum(rows for _, _, rows in self._groups)
        total = len(self)
        padding = np.full(total - good, np.nan)
        return {
            "ok": np.arange(total) < good,
            "hosts": [host for host, _, rows in groups for _ in range(rows)],
            "sessions": [f"{h}@{at}" for h, at, rows in groups for _ in range(rows)],
            "start_s": np.array(
                [at - self.began for _, at, rows in groups for _ in range(rows)]
            ),
            "cause": tuple("" if i < good else "failed" for i in range(total)),
            "metrics": {
                metric: np.concatenate([*self._values.get(metric, []), padding])
                for metric in self.metrics
            },
        }

    def _draw(self, metric: str, growth: Growth | None, at: float, rows: int) -> None:
        column = np.full(rows, np.nan)
        if growth is not None:
            places = np.flatnonzero(growth.at == at)
            if len(places):
                values = growth.drawn(int(places[0]), rows, self.edge, self._rng)
                column[: len(values)] = values
        self._values.setdefault(metric, []).append(column)


def _beside(requests: Growth, others: Sequence[Growth]) -> Growth | None:
    """The growth of another metric of the same target: same host, same scrapes."""
    for each in others:
        same = each.host == requests.host and np.array_equal(each.at, requests.at)
        if same:
            return each
    return None

"""Two arms from a Prometheus server: bucket counts of histograms, growing counters.

Values in a bucket are only known up to its bounds, so every arm is read twice, at the
lower and at the upper bounds. `worst` sets the baseline low and the canary high: what
passes there passes. `best` is the other way round: what fails there fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from chaos.canary.samples import Columns, Samples
from chaos.canary.sources.bucket_rows import Rows
from chaos.canary.sources.buckets import (
    Edge,
    Growth,
    check_window,
    counters,
    histograms,
)
from chaos.canary.sources.flaws import Flaws
from chaos.canary.sources.prometheus_api import bare
from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.canary.sources.prometheus_api import PrometheusServer, Series
    from chaos.canary.sources.queries import Queries

MAX_ROWS: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketedArms:
    """(baseline, canary), each at the edges that are worst and best for the canary."""

    worst: tuple[Samples, Samples]
    best: tuple[Samples, Samples]


def read_prometheus(
    server: PrometheusServer,
    baseline_selector: str,
    canary_selector: str,
    start: float,
    end: float,
    queries: Queries,
) -> BucketedArms:
    """Reads both arms over the same time, seconds since the epoch.

    Raises:
        UsageError: No answer, or the two selectors are not two arms.
    """
    if not start < end:
        raise UsageError(f"--from {start:.0f} is not before --to {end:.0f}")
    if bare(baseline_selector) == bare(canary_selector):
        raise UsageError("both selectors are the same", "name two groups of targets")
    baseline = _Arm(arm="baseline", queries=queries)
    canary = _Arm(arm="canary", queries=queries)
    for arm, inside in ((baseline, baseline_selector), (canary, canary_selector)):
        arm.read(server, inside, start, end)
    shared = baseline.keys & canary.keys
    if shared:
        labels = dict(next(iter(sorted(shared))))
        told = f"{len(shared)} series are in both arms, e.g. {labels}"
        raise UsageError(told, "let the two selectors exclude each other")
    return BucketedArms(
        worst=(baseline.samples("low"), canary.samples("high")),
        best=(baseline.samples("high"), canary.samples("low")),
    )


@dataclass(slots=True, kw_only=True)
class _Arm:
    """What was read of one arm, before it becomes rows."""

    arm: str
    queries: Queries
    flaws: Flaws = field(default_factory=Flaws)
    keys: set[tuple[tuple[str, str], ...]] = field(default_factory=set)
    start: float = 0.0
    end: float = 0.0
    inside: str = ""
    metrics: dict[str, list[Growth]] = field(default_factory=dict)
    failed: list[Growth] = field(default_factory=list)
    tokens: dict[str, list[Growth]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    born: list[tuple[str, str, Series]] = field(default_factory=list)
    """(name, host, series) of everything that was read and has samples."""

    def read(
        self, server: PrometheusServer, inside: str, start: float, end: float
    ) -> None:
        self.start, self.end, self.inside = start, end, inside
        wanted = self.queries
        for metric, name in wanted.metrics.items():
            found = self._series(server, _buckets(name))
            self.metrics[metric] = histograms(
                found, name=name, host=wanted.host, flaws=self.flaws
            )
            self._check(self.metrics[metric], name)
        if not any(
            each.totals.any() for each in self.metrics[next(iter(self.metrics))]
        ):
            self.flaws.add("empty", f"no request in this time matches {inside}")
        self._check_up(server)
        if wanted.failed is None:
            self.flaws.add("failed", "no series counts failed requests; say `failed`")
        else:
            self.failed = self._counter(server, wanted.failed)
        for column in ("hit_tokens", "prompt_tokens"):
            name = getattr(wanted, column)
            self.tokens[column] = self._counter(server, name) if name else []
        for counter, name in wanted.counters.items():
            grown = self._counter(server, name)
            if grown:
                self.counted[counter] = sum(int(each.totals.sum()) for each in grown)
        self._check_births()

    def samples(self, edge: Edge) -> Samples:
        """A row a request, of every target and scrape; then those that failed."""
        rows = Rows(metrics=tuple(self.metrics), began=self.start, edge=edge)
        first = next(iter(self.metrics))
        for growth in self.metrics[first]:
            rows.add(growth, self.metrics)
        rows.fail(self.failed)
        if len(rows) > MAX_ROWS:
            told = f"{self.inside}: {len(rows)} requests in this time are too many"
            raise UsageError(told, f"take a shorter one, {MAX_ROWS} requests at most")
        return Columns(
            arm=self.arm,
            counters=self.counted,
            complete=True,
            problems=self.flaws.told(),
            meta={
                "system": "prometheus",
                "time_scale": 1.0,
                "build": bare(self.inside),
                "started_at": self.start,
                "ended_at": self.end,
                "requests": len(rows),
            },
            hit_tokens=rows.spread(self.tokens["hit_tokens"]),
            prompt_tokens=rows.spread(self.tokens["prompt_tokens"]),
            **rows.columns(),
        ).samples()

    def _series(self, server: PrometheusServer, name: str) -> list[Series]:
        found = server.samples(name, self.inside, self.start, self.end)
        self.keys |= {(*each.key, ("", name)) for each in found}
        self._born(name, found)
        if not found:
            self.flaws.add(f"none {name}", f"no series {name} matches {self.inside}")
        return found

    def _counter(self, server: PrometheusServer, name: str) -> list[Growth]:
        found = self._series(server, name)
        grown = counters(found, name=name, host=self.queries.host, flaws=self.flaws)
        self._check(grown, name)
        silent = sorted(self._hosts() - {each.host for each in grown})
        if grown and silent:
            told = f"{name} is not counted by {', '.join(silent[:3])}"
            self.flaws.add(f"hosts {name}", told)
            return []
        return grown

    def _hosts(self) -> set[str]:
        """The hosts that served requests."""
        first = next(iter(self.metrics))
        return {each.host for each in self.metrics[first]}

    def _check_up(self, server: PrometheusServer) -> None:
        """A target that could not be scraped counted nothing, and may be broken."""
        found = server.samples("up", self.inside, self.start, self.end)
        self._born("up", found)
        for each in found:
            if (each.values == 0).any():
                who = each.labels.get(self.queries.host, str(dict(each.labels)))
                down = int((each.values == 0).sum())
                self.flaws.add("up", f"{who} did not answer {down} scrapes")

    def _born(self, name: str, found: Sequence[Series]) -> None:
        known = [each for each in found if len(each.times)]
        self.born += [
            (name, each.labels.get(self.queries.host, ""), each) for each in known
        ]

    def _check_births(self) -> None:
        """A series that appears with its first count has counted what nobody saw."""
        first: dict[str, float] = {}
        for _, host, series in self.born:
            first[host] = min(float(series.times[0]), first.get(host, math.inf))
        for name, host, series in self.born:
            late = float(series.times[0]) - first[host] > _step(series) / 2
            if late and name != "up" and series.values[0] != 0:
                told = f"appears with {series.values[0]:g} counted already"
                self.flaws.add(f"born {name}", f"{name} of {host or 'a target'} {told}")

    def _check(self, grown: Sequence[Growth], name: str) -> None:
        check_window(grown, name=name, start=self.start, end=self.end, flaws=self.flaws)


def _step(series: Series) -> float:
    """The time from one scrape to the next, 0 where there is one only."""
    times = series.times
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0


def _buckets(name: str) -> str:
    base, brace, inside = name.partition("{")
    return f"{base}_bucket{brace}{inside}"

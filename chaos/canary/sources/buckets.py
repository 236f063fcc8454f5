"""Histograms as Prometheus keeps them: counts between bounds, a scrape each.

A value is only known to lie between two bounds, so there are two measurements in one:
every value at its lower bound, and every value at its upper bound. A verdict that both
give is a verdict (see `bounded.py`); everything between is the histogram's fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from chaos.canary.sources.prometheus_api import same_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chaos.canary.sources.flaws import Flaws
    from chaos.canary.sources.prometheus_api import Series

Edge = Literal["low", "high"]
BEYOND_S: Final = 1e6
"""What stands for a value above the last bound: longer than any request lasts."""
_MISSED: Final = 2.5
"""Scrapes that may be missing at an end of the window before that is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What was counted between one scrape and the next, of one target.

    `at` are the later instants; `counts` has a row a scrape. For a histogram its
    columns are the buckets between `bounds`, the last one open.
    """

    host: str
    at: NDArray[np.float64]
    counts: NDArray[np.int64]
    bounds: tuple[float, ...] = ()

    @property
    def totals(self) -> NDArray[np.int64]:
        """Over all columns, a value a scrape."""
        return np.asarray(self.counts.sum(axis=1), dtype=np.int64)

    def drawn(
        self, scrape: int, rows: int, edge: Edge, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """At most `rows` values of one scrape, each at an edge of its bucket.

        More than that are thinned by systematic sampling from a random start, which
        gives every value the same chance.
        """
        counts = self.counts[scrape]
        total = int(counts.sum())
        edges = np.array(self._edges(edge))
        if total <= rows:
            return np.repeat(edges, counts)
        places = (rng.random() + np.arange(rows)) * (total / rows)
        found = np.searchsorted(np.cumsum(counts), places, side="right")
        return np.asarray(edges[np.minimum(found, len(edges) - 1)])

    def _edges(self, edge: Edge) -> list[float]:
        uppers = [bound if math.isfinite(bound) else BEYOND_S for bound in self.bounds]
        return uppers if edge == "high" else [0.0, *uppers[:-1]]


def histograms(
    series: Sequence[Series], *, name: str, host: str, flaws: Flaws
) -> list[Growth]:
    """The growth of a histogram, a target each; `series` are its buckets."""
    targets: dict[tuple[tuple[str, str], ...], dict[float, list[Series]]] = {}
    for each in series:
        bound = _bound(each.labels.get("le", ""))
        if bound is None:
            flaws.add(f"le {name}", f"{name}: {dict(each.labels)} has no bound")
            continue
        key = tuple(pair for pair in each.key if pair[0] != "le")
        targets.setdefault(key, {}).setdefault(bound, []).append(each)
    found = [_histogram(t, dict(k), name, host, flaws) for k, t in targets.items()]
    return [growth for growth in found if growth is not None]


def counters(
    series: Sequence[Series], *, name: str, host: str, flaws: Flaws
) -> list[Growth]:
    """The growth of a counter, a series each."""
    found = []
    for each in series:
        counts = _growth(each, name, flaws)
        if counts is not None:
            where = each.labels.get(host, "")
            columns = counts.reshape(-1, 1)
            found.append(Growth(host=where, at=each.times[1:], counts=columns))
    return found


def check_window(
    growths: Sequence[Growth], *, name: str, start: float, end: float, flaws: Flaws
) -> None:
    """Tells of series that begin late or end early: a target came, went or was mute."""
    for each in growths:
        step = float(np.median(np.diff(each.at))) if len(each.at) > 1 else 0.0
        late = each.at[0] - step - start
        early = end - each.at[-1]
        who = each.host or "a target"
        if max(late, early) > _MISSED * step:
            when = (
                f"begins {late:.0f} s late"
                if late > early
                else f"ends {early:.0f} s early"
            )
            flaws.add(f"window {name}", f"{name} of {who} {when}")
        gap = float(np.diff(each.at).max()) if len(each.at) > 1 else 0.0
        if gap > (_MISSED + 1) * step:
            flaws.add(f"gap {name}", f"{name} of {who} was not scraped for {gap:.0f} s")


def _histogram(
    buckets: Mapping[float, Sequence[Series]],
    labels: Mapping[str, str],
    name: str,
    host: str,
    flaws: Flaws,
) -> Growth | None:
    bounds = tuple(sorted(buckets))
    single = [buckets[bound][0] for bound in bounds]
    if any(len(each) > 1 for each in buckets.values()) or bounds[-1] != math.inf:
        flaws.add(f"le {name}", f"{name}: the bounds of {dict(labels)} are not whole")
        return None
    if not same_times(single):
        flaws.add(f"torn {name}", f"{name}: a scrape of {dict(labels)} is not whole")
        return None
    columns = [_growth(each, name, flaws) for each in single]
    kept = [column for column in columns if column is not None]
    if len(kept) < len(columns):
        return None
    cumulative = np.stack(kept, axis=1)
    counts = np.diff(cumulative, axis=1, prepend=0)
    if (counts < 0).any():
        flaws.add(f"torn {name}", f"{name}: buckets of {dict(labels)} do not add up")
        return None
    return Growth(
        host=labels.get(host, ""), at=single[0].times[1:], counts=counts, bounds=bounds
    )


def _growth(series: Series, name: str, flaws: Flaws) -> NDArray[np.int64] | None:
    """Counts between scrapes; None when they cannot be known."""
    who = dict(series.labels)
    if len(series.times) < 2:
        flaws.add(f"short {name}", f"{name}: {who} has fewer than two samples")
        return None
    values = series.values
    if not np.isfinite(values).all() or (np.rint(values) != values).any():
        flaws.add(f"counts {name}", f"{name}: {who} has values that are no counts")
        return None
    grown = np.diff(values).astype(np.int64)
    if (grown < 0).any():
        flaws.add(f"reset {name}", f"{name}: {who} began again at 0: it was restarted")
        return None
    return grown


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound

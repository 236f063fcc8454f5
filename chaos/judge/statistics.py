"""Statistics of the judges: paired, clustered by session, with bounds. Vectorised.

Measured pitfalls that shape this file: requests of one session are not independent
(resample whole sessions), means hide tails (judge quantiles), a p99 from 1,000 samples
is +/- 17 %, and pairing by request is five times tighter than two independent traces.
Every function takes a seeded generator, so a verdict can be computed again.

`scipy.stats` takes a second to import, so it is where it is used: a run that judges no
times, or ends before, does not pay for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chaos.load.sample import Sample

REPLICATES = 2_000
# Weighted medians are taken this many matrix cells at a time (32 MB of floats).
_CELLS = 4_000_000
# Below this a time is a clock artefact; ratios of it would mean nothing.
RESOLUTION_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with a two-sided confidence interval on `samples` in `clusters`."""

    estimate: float
    low: float
    high: float
    samples: int
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Two values per request id, `left` over `right`, with the session as cluster."""

    ids: tuple[str, ...]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    clusters: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sessions(self) -> int:
        return len(np.unique(self.clusters))

    @property
    def log_ratio(self) -> NDArray[np.float64]:
        left = np.maximum(self.left, RESOLUTION_S)
        right = np.maximum(self.right, RESOLUTION_S)
        return np.asarray(np.log(left / right), dtype=np.float64)


def pair_ttft(left: Sequence[Sample], right: Sequence[Sample]) -> Pairs:
    """Pairs the TTFT of two arms by request id; what one arm lacks is left out."""
    other = {s.request.request_id: s.ttft_s for s in right if s.judged}
    rows = [s for s in left if s.judged and s.request.request_id in other]
    names: dict[str, int] = {}
    clusters = [names.setdefault(s.request.session, len(names)) for s in rows]
    ids = tuple(s.request.request_id for s in rows)
    return Pairs(
        ids=ids,
        left=np.array([s.ttft_s for s in rows], dtype=np.float64),
        right=np.array([other[name] for name in ids], dtype=np.float64),
        clusters=np.array(clusters, dtype=np.int64),
    )


def median_interval(
    values: NDArray[np.float64],
    clusters: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    replicates: int = REPLICATES,
) -> Interval:
    """The median with a bootstrap interval that resamples whole clusters.

    With few clusters the percentile interval is too narrow; it is widened by
    t(clusters - 1) / z, the usual small-sample correction.
    """
    _, index = np.unique(clusters, return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count == 0:
        return Interval(
            estimate=math.nan, low=-math.inf, high=math.inf, samples=0, clusters=0
        )
    estimate = float(np.median(values))
    if count == 1:
        return Interval(
            estimate=estimate,
            low=-math.inf,
            high=math.inf,
            samples=len(values),
            clusters=1,
        )
    medians = _resampled_medians(values, index, count, rng, replicates)
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    from scipy import stats

    widen = float(stats.t.ppf(1 - tail, count - 1) / stats.norm.ppf(1 - tail))
    return Interval(
        estimate=estimate,
        low=estimate - widen * max(0.0, estimate - float(low)),
        high=estimate + widen * max(0.0, float(high) - estimate),
        samples=len(values),
        clusters=count,
    )


def aa_floor(
    values: NDArray[np.float64],
    clusters: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    replicates: int = 400,
) -> float:
    """The noise floor: how large a median |log-ratio| two equal arms would show.

    Were the arms equal, swapping them within a session would change nothing; so the
    signs of the centred log-ratios are flipped session by session.
    """
    if not len(values):
        return math.inf
    _, index = np.unique(clusters, return_inverse=True)
    centred = values - np.median(values)
    signs = rng.choice((-1.0, 1.0), size=(replicates, int(index.max()) + 1))
    medians = np.median(signs[:, index] * centred, axis=1)
    return float(np.quantile(np.abs(medians), confidence))


def samples_to_bound(quantile: float, confidence: float = 0.95) -> int:
    """Samples needed before any of them bounds this quantile: ln(1-c) / ln(q)."""
    return math.ceil(math.log(1 - confidence) / math.log(quantile))


def quantile_interval(
    values: Sequence[float] | NDArray[np.float64],
    quantile: float,
    *,
    confidence: float = 0.95,
) -> Interval:
    """A quantile with bounds from order statistics; no distribution assumed.

    Each bound is one-sided at (1 + confidence) / 2; infinite where the samples do not
    reach.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    if n == 0:
        return Interval(
            estimate=math.nan, low=-math.inf, high=math.inf, samples=0, clusters=0
        )
    tail = (1 - confidence) / 2
    from scipy import stats

    below = int(stats.binom.ppf(tail, n, quantile))
    above = int(stats.binom.ppf(1 - tail, n, quantile)) + 1
    return Interval(
        estimate=float(ordered[min(n, math.ceil(quantile * n)) - 1]),
        low=float(ordered[below - 1]) if below >= 1 else -math.inf,
        high=float(ordered[above - 1]) if above <= n else math.inf,
        samples=n,
        clusters=n,
    )


def mean_interval(
    values: Sequence[float] | NDArray[np.float64], *, confidence: float = 0.95
) -> Interval:
    """The mean with a Student interval; for service levels that name a mean."""
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if n < 2:
        estimate = float(data[0]) if n else math.nan
        return Interval(
            estimate=estimate, low=-math.inf, high=math.inf, samples=n, clusters=n
        )
    from scipy import stats

    half = float(stats.t.ppf((1 + confidence) / 2, n - 1) * stats.sem(data))
    mean = float(data.mean())
    return Interval(
        estimate=mean, low=mean - half, high=mean + half, samples=n, clusters=n
    )


def quantile_ratio_interval(
    pairs: Pairs,
    quantile: float,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    replicates: int = 500,
) -> Interval:
    """log(q(left) / q(right)) with a bootstrap interval over whole sessions."""
    _, index = np.unique(pairs.clusters, return_inverse=True)
    count = int(index.max()) + 1
    logs = np.empty(replicates)
    sides = [_sorted_side(side, index) for side in (pairs.left, pairs.right)]
    for i in range(replicates):
        weights = np.bincount(rng.integers(0, count, count), minlength=count)
        left, right = (_weighted_quantile(s, weights, quantile) for s in sides)
        logs[i] = math.log(left / right)
    tail = (1 - confidence) / 2
    low, high = np.quantile(logs, [tail, 1 - tail])
    ones = np.ones(count, dtype=np.int64)
    left, right = (_weighted_quantile(s, ones, quantile) for s in sides)
    return Interval(
        estimate=math.log(left / right),
        low=float(low),
        high=float(high),
        samples=len(pairs),
        clusters=count,
    )


def seeded(seeds: Mapping[str, int] | int) -> np.random.Generator:
    """A generator from a run's seed (or several named ones, in order of name)."""
    if isinstance(seeds, int):
        return np.random.default_rng(seeds)
    return np.random.default_rng([seeds[name] for name in sorted(seeds)])


def _resampled_medians(
    values: NDArray[np.float64],
    index: NDArray[np.intp],
    clusters: int,
    rng: np.random.Generator,
    replicates: int,
) -> NDArray[np.float64]:
    """Weighted medians, the weight of a value being how often its cluster was drawn."""
    order = np.argsort(values, kind="stable")
    ordered, owners = values[order], index[order]
    step = max(1, _CELLS // max(1, len(values)))
    parts = []
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        drawn = _drawn(rng, rows, clusters)
        weight = np.cumsum(drawn[:, owners], axis=1, dtype=np.int32)
        half = weight[:, -1:] / 2
        lower = np.argmax(weight >= half, axis=1)
        upper = np.argmax(weight > half, axis=1)
        parts.append((ordered[lower] + ordered[upper]) / 2)
    return np.concatenate(parts)


def _drawn(rng: np.random.Generator, rows: int, clusters: int) -> NDArray[np.int32]:
    """How often each cluster is drawn in each replicate; every row sums to all."""
    picks = rng.integers(0, clusters, (rows, clusters))
    flat = (picks + clusters * np.arange(rows)[:, None]).ravel()
    counts = np.bincount(flat, minlength=rows * clusters)
    return counts.reshape(rows, clusters).astype(np.int32)


def _sorted_side(
    side: NDArray[np.float64], index: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    order = np.argsort(side, kind="stable")
    return np.maximum(side[order], RESOLUTION_S), index[order]


def _weighted_quantile(
    side: tuple[NDArray[np.float64], NDArray[np.intp]],
    weights: NDArray[np.int64],
    quantile: float,
) -> float:
    ordered, owners = side
    total = np.cumsum(weights[owners])
    return float(ordered[np.searchsorted(total, quantile * total[-1])])

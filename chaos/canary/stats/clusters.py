"""How precise a mean of scores is when rows are not independent.

Requests of one session, of one host or of the same moments go well or badly together,
so a variance that takes rows as independent is too small: treating cache blocks as
independent made a hit rate look 51 times as certain as it was. The variance here is
the largest of those that each clustering gives, and of the independent one; it comes
with the degrees of freedom of the clustering it was taken from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# As many blocks of time as 10 rows a block allow, within these bounds. Fewer than 60
# made the variance itself so uncertain that the largest of several was 7 % too wide.
MAX_BLOCKS = 100
MIN_BLOCKS = 20
_ROWS_A_BLOCK = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """Which rows belong together: `index` in 0..count-1 for every row."""

    name: str
    index: NDArray[np.intp]
    count: int

    def taken(self, rows: NDArray[np.intp]) -> Clustering:
        """The same clusters for some of the rows (in order), empty ones left out."""
        if len(rows) == len(self.index):
            return self
        return clustering(self.name, self.index[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The variance of a mean of scores, its degrees of freedom and its clusters."""

    variance: float
    df: float
    clusters: int
    by: str


def clustering(name: str, codes: NDArray[np.integer]) -> Clustering:
    """Clusters from codes; a row of unknown code (-1) is a cluster of its own."""
    known = codes >= 0
    _, index = np.unique(codes[known], return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    full = np.empty(len(codes), dtype=np.intp)
    full[known] = index
    strangers = int(np.count_nonzero(~known))
    full[~known] = count + np.arange(strangers)
    return Clustering(name=name, index=full, count=count + strangers)


def distinct(codes: NDArray[np.integer]) -> int:
    """How many different codes there are; sorting is faster than hashing them."""
    ordered = np.sort(codes)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + (len(codes) > 0)


def time_blocks(start_s: NDArray[np.float64]) -> Clustering | None:
    """Blocks of neighbouring moments with as many rows each; None for few rows."""
    blocks = min(MAX_BLOCKS, len(start_s) // _ROWS_A_BLOCK)
    if blocks < MIN_BLOCKS or np.isnan(start_s).any():
        return None
    index = np.empty(len(start_s), dtype=np.intp)
    order = np.argsort(start_s, kind="stable")
    index[order] = np.arange(len(start_s)) * blocks // len(start_s)
    return Clustering(name="moment", index=index, count=blocks)


def spread(
    scores: NDArray[np.float64], clusterings: Sequence[Clustering] = ()
) -> Spread:
    """The spread of the mean of `scores`, which are centred here.

    One cluster says nothing about the spread between clusters: the variance is then
    infinite.
    """
    rows = len(scores)
    if rows < 2:
        return Spread(variance=np.inf, df=1.0, clusters=rows, by="row")
    centred = scores - scores.mean()
    variance = float(centred @ centred) / (rows - 1) / rows
    widest = Spread(variance=variance, df=rows - 1.0, clusters=rows, by="row")
    for each in clusterings:
        if each.count == rows:
            continue
        found = _clustered(centred, each)
        if found.variance > widest.variance:
            widest = found
    return widest


def _clustered(centred: NDArray[np.float64], by: Clustering) -> Spread:
    if by.count < 2:
        return Spread(variance=np.inf, df=1.0, clusters=by.count, by=by.name)
    sums = np.bincount(by.index, weights=centred, minlength=by.count)
    variance = float(sums @ sums) * by.count / (by.count - 1) / len(centred) ** 2
    return Spread(variance=variance, df=by.count - 1.0, clusters=by.count, by=by.name)

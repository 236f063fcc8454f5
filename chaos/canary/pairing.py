"""Which rows of both arms are compared with which, and what clusters they form.

The same `request` number in both arms is the same row of the trace. Pairs are used
when both arms have numbers; the clusters of a pair are the baseline's. Without pairs
each arm has clusters of its own: sessions, hosts and moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chaos.canary.stats.clusters import Clustering, clustering, distinct, time_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chaos.canary.samples import Samples

# Fewer hosts an arm than this say too little about how hosts differ.
MIN_HOSTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Rows to compare, and their clusters; paired rows stand at the same place."""

    paired: bool
    baseline: NDArray[np.intp]
    canary: NDArray[np.intp]
    baseline_clusters: tuple[Clustering, ...]
    canary_clusters: tuple[Clustering, ...]
    unpaired_share: float = 0.0
    """Of all requests of both arms, those without a partner (0 when unpaired)."""
    confounded_hosts: int | None = None
    """Hosts of the arm that has fewer, when arms have hosts of their own and so few
    that a slow host looks like a slow build; None: no such doubt."""


def pair(baseline: Samples, canary: Samples) -> Pairing:
    """Pairs two arms by request, or says that they cannot be paired."""
    confounded = _confounded(baseline, canary)
    if baseline.request is None or canary.request is None:
        return Pairing(
            paired=False,
            baseline=np.arange(len(baseline)),
            canary=np.arange(len(canary)),
            baseline_clusters=_clusters(baseline, confounded is None),
            canary_clusters=_clusters(canary, confounded is None),
            confounded_hosts=confounded,
        )
    both, left, right = np.intersect1d(
        baseline.request, canary.request, return_indices=True
    )
    rows = len(baseline) + len(canary) - len(both)
    clusters = _pair_clusters(baseline, canary, left, right, confounded is None)
    return Pairing(
        paired=True,
        baseline=left,
        canary=right,
        baseline_clusters=clusters,
        canary_clusters=clusters,
        unpaired_share=1 - len(both) / rows if rows else 0.0,
        confounded_hosts=confounded,
    )


def clusters_of(samples: Samples) -> tuple[Clustering, ...]:
    """The clusters of all rows of one arm by itself."""
    return _clusters(samples, hosts=True)


def host_names(samples: Samples) -> set[str]:
    """The hosts that rows came from; codes where there are no names."""
    known = np.unique(samples.host[samples.host >= 0])
    names = samples.host_names
    return {names[c] if c < len(names) else f"#{samples.arm}-{c}" for c in known}


def _confounded(baseline: Samples, canary: Samples) -> int | None:
    left, right = host_names(baseline), host_names(canary)
    if not left or not right or left == right:
        return None
    fewer = min(len(left), len(right))
    return fewer if fewer < MIN_HOSTS else None


def _clusters(samples: Samples, hosts: bool) -> tuple[Clustering, ...]:
    found = [clustering("session", samples.session)]
    if hosts and distinct(samples.host[samples.host >= 0]) >= MIN_HOSTS:
        found.append(clustering("host", samples.host))
    moments = time_blocks(samples.start_s)
    return (*found, moments) if moments else tuple(found)


def _pair_clusters(
    baseline: Samples,
    canary: Samples,
    left: NDArray[np.intp],
    right: NDArray[np.intp],
    hosts: bool,
) -> tuple[Clustering, ...]:
    found = [each.taken(left) for each in _clusters(baseline, hosts)]
    if hosts and distinct(canary.host[canary.host >= 0]) >= MIN_HOSTS:
        codes = canary.host[right]
        if not np.array_equal(codes, baseline.host[left]):
            found.append(clustering("canary host", codes))
    return tuple(found)

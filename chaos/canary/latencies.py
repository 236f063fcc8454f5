"""One metric of one arm, made ready to be ranked: what counts, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chaos.canary.samples import Samples


OF_THE_REQUEST = frozenset({"ttft_s", "tpot_s", "e2e_s", "cache_wait_s"})
"""What a request waits for: one that failed waits for ever. Other metrics (calls,
waits within a fault, ...) need not exist for every request: failed ones just lack."""
LARGEST = 1e12
"""No measurement of ours is larger, in any unit: an overflow or another's garbage."""


def ranked(samples: Samples, metric: str) -> NDArray[np.float64]:
    """All rows; NaN is missing, a failed request is infinite, whatever it recorded:
    a build that fails at once is not a fast one."""
    values = samples.metric(metric)
    if metric not in OF_THE_REQUEST or samples.ok.all():
        return values
    return np.where(samples.ok, values, np.inf)


def unmeasured_share(samples: Samples, metric: str) -> float:
    """Share of the rows that have no value and no excuse for it."""
    missing = np.isnan(samples.metric(metric))
    if metric in OF_THE_REQUEST:
        missing &= samples.ok
    return float(missing.mean()) if len(samples) else 1.0


def most_unmeasured(allowed: float, beyond: float | None) -> float:
    """How many values may be missing where `beyond` is the share that is judged.

    What is missing may be the slowest: a rule about the slowest 1 % is blind when as
    many have no value. A fifth of them moves a quantile by less than limits allow.
    """
    return allowed if beyond is None else min(allowed, beyond / 5)


def oddity(samples: Samples, metric: str) -> str:
    """Says what no measurement can be: negative, infinite, too large; "" if none is."""
    values = samples.metric(metric)
    if np.any(values < 0):
        return f"{metric} of the {samples.arm} has negative values"
    if np.any(values > LARGEST):
        return f"{metric} of the {samples.arm} has values that are impossibly large"
    return ""

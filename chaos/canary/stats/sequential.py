"""A test that may be looked at as often as one likes.

Looking 12 times at a fixed 5 % test gives 22 % false alarms. The mixture sequential
probability ratio test (Robbins 1970; Johari et al. 2017) bounds the chance that its
p-value ever falls below alpha, however often and whenever it is looked at.
"""

from __future__ import annotations

import math


def always_valid_p(estimate: float, se: float, null: float, scale: float) -> float:
    """P-value of "the effect is no larger than null", valid at every look.

    The alternatives are mixed over a half-normal of standard deviation `scale` above
    `null`: the size of effect worth stopping for. For a one-sided mixture the
    likelihood ratio is twice the two-sided one times the mass above the null.
    """
    if not (math.isfinite(estimate) and math.isfinite(se)) or scale <= 0:
        return 1.0
    over = estimate - null
    if over <= 0:
        return 1.0
    if se <= 0:
        return 0.0
    shrink = scale**2 / (scale**2 + se**2)
    exponent = over**2 / (2 * se**2) * shrink
    log_ratio = 0.5 * math.log(1 - shrink) + exponent
    above = 0.5 * math.erfc(-over * math.sqrt(shrink) / se / math.sqrt(2))
    return math.exp(-max(0.0, log_ratio + math.log(2 * above)))

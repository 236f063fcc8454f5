"""How small a change could be seen, and how many samples a decision still needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scipy import stats

from chaos.canary.stats.effect import critical

if TYPE_CHECKING:
    from chaos.canary.stats.effect import Effect

POWER = 0.8
# More than so many times the rows there are is no advice to anybody.
MAX_GROWTH = 100
_Z_POWER = float(stats.norm.ppf(POWER))


def detectable(effect: Effect, null: float) -> float | None:
    """The smallest true effect shown to be above `null` in 4 of 5 runs like this."""
    if not math.isfinite(effect.se):
        return None
    return null + (critical(effect.alpha, effect.df) + _Z_POWER) * effect.se


def samples_needed(
    effect: Effect, *, null: float, limit: float, floor_sd: float
) -> int | None:
    """Samples an arm, in all, for a decision in 4 of 5 runs; None: no number will do.

    Below the limit it is what shows that the effect is below; above it what shows that
    it is harm. `floor_sd` is the part of the noise that more samples do not reduce.
    """
    rows = min(effect.n_baseline, effect.n_canary)
    upward = effect.estimate > limit
    gap = effect.estimate - null if upward else limit - max(effect.estimate, 0.0)
    se = effect.se if upward else effect.se_high
    if not (math.isfinite(gap) and math.isfinite(se)) or gap <= 0:
        return None
    wanted = (gap / (critical(effect.alpha) + _Z_POWER)) ** 2 - floor_sd**2
    if wanted <= 0:
        return None
    needed = math.ceil(rows * max(0.0, se**2 - floor_sd**2) / wanted)
    return needed if needed <= MAX_GROWTH * rows else None

"""When a prefetch may end and how much of it counts (SGLang HiCache, facts 5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Self

import numpy as np

from refimpl.core.scaling import scale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@unique
class Policy(Enum):
    """`--hicache-storage-prefetch-policy`."""

    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchSettings:
    """Upstream's defaults since sglang#23309."""

    policy: str = Policy.TIMEOUT.value
    base_s: float = 2.0
    per_ki_token_s: float = 0.1
    max_s: float = 30.0
    threshold_tokens: int = 256
    capacity_ratio: float = 0.5
    storage_batch_pages: int = 128
    poll_s: float = 0.02
    """How often the scheduler looks; the machine's granularity: never scaled."""

    def scaled(self, factor: float) -> Self:
        """Every duration but the poll times `factor`."""
        return scale(self, factor, fixed=("poll_s",))


def deadline_s(settings: PrefetchSettings, tokens: int) -> float:
    """T = min(max, base + per_ki_token * tokens / 1024).

    `tokens` are those the hit query found; 0 until it answered, so that a hung query
    costs exactly the base (sglang#10512, #23309).
    """
    linear = settings.base_s + settings.per_ki_token_s * tokens / 1024
    return min(settings.max_s, linear)


def may_terminate(
    policy: str | Policy, *, complete: bool, elapsed_s: float, deadline_s: float
) -> bool:
    """Whether a request may go on with what has arrived.

    Completeness covers every pool of the page. Time decides last and alone: a pending
    sidecar must not set a deadline back (sglang#35181).
    """
    match Policy(policy):
        case Policy.BEST_EFFORT:
            return True
        case Policy.WAIT_COMPLETE:
            return complete
        case Policy.TIMEOUT:
            return complete or elapsed_s > deadline_s


def common_prefix(flags: Sequence[NDArray[np.bool_]]) -> int:
    """Pages that count: the leading run that is there in every pool (sglang#31108).

    Args:
        flags: one array a pool, True where the page arrived. Shorter arrays end there.
    """
    return min((_leading(pool) for pool in flags), default=0)


def _leading(flags: NDArray[np.bool_]) -> int:
    if flags.size == 0 or flags.all():
        return int(flags.size)
    return int(np.argmin(flags))


class Occupancy:
    """Tokens that prefetches hold, limited to a share of the host pool.

    As upstream, a prefetch is refused when the limit is already reached, not when it
    would be passed: a prompt longer than the limit still gets its turn. Leaking one
    token on any exit turns L3 off for good (sglang#9927, #30053): negative counts are
    a broken law and raise.
    """

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.tokens = 0

    def take(self, tokens: int) -> bool:
        """Books `tokens`, or answers False and books nothing."""
        if self.tokens >= self.limit_tokens:
            return False
        self.tokens += tokens
        return True

    def give(self, tokens: int) -> None:
        """Gives back what one `take` booked."""
        if tokens < 0 or tokens > self.tokens:
            raise ValueError(f"gives back {tokens} of {self.tokens} tokens held")
        self.tokens -= tokens

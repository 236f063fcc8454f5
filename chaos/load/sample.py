"""What the load generator saw of one request, and of a whole run.

Three clocks per request: `intended_s` (the plan), `sent_s`, `done_s`, all on the clock
of the run. Latency counts from the plan, so a stalled system cannot hide its stall by
holding the generator back (coordinated omission).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.systems.base import Answer, Request


@unique
class Ending(Enum):
    """How a request ended, seen from the client."""

    DONE = "done"  # the system answered, well or badly
    HUNG = "hung"  # no answer within the timeout
    SHED = "shed"  # never sent: the in-flight cap was reached
    CANCELLED = "cancelled"  # the run was stopped while it was waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request of a run. `answer` is None unless the ending is DONE."""

    request: Request
    engine: str
    intended_s: float
    sent_s: float
    done_s: float
    answer: Answer | None
    ending: Ending = Ending.DONE

    @property
    def latency_s(self) -> float:
        """From the intended start; a hung request has at least its timeout."""
        return self.done_s - self.intended_s

    @property
    def lag_s(self) -> float:
        """How late the generator itself was."""
        return self.sent_s - self.intended_s

    @property
    def ttft_s(self) -> float:
        """Time to first token from the intended start.

        Prefill is modelled by the engine, waits are real. Without a good answer it is
        the time waited, so a failure never looks fast.
        """
        if self.answer is None or not self.answer.ok:
            return self.latency_s
        return self.lag_s + self.answer.ttft_modelled_s

    @property
    def judged(self) -> bool:
        """Whether the system had its chance: sent, and not stopped by us."""
        return self.ending in (Ending.DONE, Ending.HUNG)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """All samples of one run in order of their intended start.

    `lag_s` has the scheduler lag of every request that was sent. `late` counts answers
    that arrived after their request had been recorded as hung, `callback_errors` the
    exceptions of the per-sample callback.
    """

    samples: tuple[Sample, ...]
    lag_s: tuple[float, ...]
    started_s: float = 0.0
    late: int = 0
    callback_errors: int = 0

    def count(self, ending: Ending) -> int:
        return sum(sample.ending is ending for sample in self.samples)

    @property
    def offered(self) -> int:
        """Requests that the plan wanted sent; those of a stopped run do not count."""
        return len(self.samples) - self.count(Ending.CANCELLED)

    @property
    def sent(self) -> int:
        return self.offered - self.count(Ending.SHED)

    @property
    def achieved_share(self) -> float:
        """Sent / offered; 0 when nothing was offered."""
        return self.sent / self.offered if self.offered else 0.0

    @property
    def lag_p99_s(self) -> float:
        """The value that at most 1 % of the lags exceed; infinite without samples."""
        if not self.lag_s:
            return math.inf
        ordered = sorted(self.lag_s)
        return ordered[math.ceil(0.99 * len(ordered)) - 1]

    @property
    def lag_max_s(self) -> float:
        return max(self.lag_s, default=math.inf)


def answered(samples: tuple[Sample, ...]) -> list[tuple[Sample, Answer]]:
    """The samples with a good answer, each beside it."""
    return [
        (sample, sample.answer)
        for sample in samples
        if sample.answer is not None and sample.answer.ok
    ]

"""Streams of requests with a known truth, to measure the gate's error rates on.

Time to first token is lognormal (sigma 0.6, as in the measurements that shaped the
gate) of three parts: the prompt and the session, which both arms share when they play
the same trace, and the service. Everything is modelled and says so; nothing here is a
measurement of a system.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from chaos.canary.samples import Samples, unknown

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIGMA = 0.6
MEDIAN_S = 0.4
RATE_PER_S = 10 / 3.6
"""10,000 requests are an hour: sixty points of one a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How both arms are measured, and how the noise is made up."""

    name: str
    rows: int
    paired: bool = False
    session_rows: int = 1
    """Requests a session; 1: requests are independent, and sessions not recorded."""
    prompt_sigma: float = 0.4
    session_sigma: float = 0.2
    host_sd: float = 0.0
    """Each arm on a host of its own, whose speed has this standard deviation."""
    hit_sd: float = 0.1
    """Standard deviation of the share of a prompt that is found, request by request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is really different in the canary."""

    name: str
    scale: float = 1.0
    tail_p99: float = 1.0
    """Ratio of the p99 alone: nothing below the p95 changes."""
    slow_share: float = 0.0
    slow_times: float = 1.0
    hit_drop: float = 0.0
    base_errors: float = 0.0
    more_errors: float = 0.0


def arms(
    design: Design, truth: Truth, rng: np.random.Generator
) -> tuple[Samples, Samples]:
    """One measured pair of arms."""
    trace = _Trace(design, rng)
    baseline = trace.played("baseline", replace(truth, **_NOTHING), rng)
    if not design.paired:
        trace = _Trace(design, rng)
    return baseline, trace.played("canary", truth, rng)


_NOTHING = {
    "scale": 1.0,
    "tail_p99": 1.0,
    "slow_share": 0.0,
    "hit_drop": 0.0,
    "more_errors": 0.0,
}


class _Trace:
    """The part of the noise that comes from what is asked, not from who answers."""

    def __init__(self, design: Design, rng: np.random.Generator) -> None:
        self.design, rows = design, design.rows
        sessions = rows // design.session_rows
        of = rng.integers(0, sessions, rows) if sessions < rows else np.arange(rows)
        effect = rng.normal(0, design.session_sigma, sessions)
        self.session = of if sessions < rows else unknown(rows)
        self.prompt = rng.normal(0, 1, rows)
        self.logs = effect[of] + design.prompt_sigma * self.prompt
        self.hit = np.clip(rng.normal(0.6, design.hit_sd, rows), 0, 1)
        self.start_s = np.arange(rows) / RATE_PER_S

    def played(self, arm: str, truth: Truth, rng: np.random.Generator) -> Samples:
        design, rows = self.design, self.design.rows
        rest = SIGMA**2 - design.prompt_sigma**2 - design.session_sigma**2
        logs = self.logs + rng.normal(0, np.sqrt(rest), rows)
        ttft = _harmed(logs, truth, rng) * np.exp(rng.normal(0, design.host_sd))
        tokens = np.round(2000 * np.exp(0.6 * self.prompt)) + 1
        # What one build finds of the same prompts differs a little from run to run.
        found = np.clip(self.hit + rng.normal(0, 0.02, rows) - truth.hit_drop, 0, 1)
        errors = truth.base_errors + truth.more_errors
        return Samples(
            arm=arm,
            request=np.arange(rows) if design.paired else None,
            session=self.session,
            host=np.zeros(rows, dtype=np.int64) if design.host_sd else unknown(rows),
            host_names=(f"host-of-{arm}",) if design.host_sd else (),
            klass=(self.prompt > 0).astype(np.int64),
            class_names=("short", "long"),
            start_s=self.start_s,
            ok=rng.random(rows) >= errors,
            metrics={"ttft_s": ttft},
            hit_tokens=found * tokens,
            prompt_tokens=tokens,
            lag_s=np.full(rows, 0.0005),
            counters={"wrong_bytes": 0, "hangs": 0, "residual_faults": 0},
            complete=True,
            problems=(),
            meta={"requests": rows, "seed": 1},
        )


def _harmed(
    logs: NDArray[np.float64], truth: Truth, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Seconds, with what the truth says about the canary done to them."""
    values = MEDIAN_S * np.exp(logs) * truth.scale
    if truth.tail_p99 != 1:
        rank = stats.norm.cdf(logs / SIGMA)
        values *= truth.tail_p99 ** np.clip((rank - 0.95) / 0.04, 0, 1)
    if truth.slow_share:
        slow = rng.random(len(values)) < truth.slow_share
        values[slow] *= truth.slow_times
    return np.asarray(values, dtype=np.float64)

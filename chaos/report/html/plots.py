"""What is drawn of one test: its time line, and its quantiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from chaos.report.html.quantiles import quantile_plot
from chaos.report.html.timeline import draw_time_line
from chaos.report.moments import lasted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.report.html.drawing import Plot
    from chaos.report.traces import Arm, Trace

TTFT_MODELLED = "TTFT, modelled (s)"
CACHE_WAIT = "cache wait, measured (s)"


def draw_test(
    name: str, trace: Trace, faults: Sequence[Mapping[str, Any]]
) -> list[Plot]:
    """The plots of one test; none where no request was recorded."""
    arms = trace.shown
    if not arms:
        return []
    words = told_arms(arms)
    curves = {
        TTFT_MODELLED: [(arm.name, arm.column("ttft_s")) for arm in arms],
        CACHE_WAIT: [(arm.name, arm.column("wait_s")) for arm in arms],
    }
    return [
        draw_time_line(name, trace, faults, words=words, ttft=TTFT_MODELLED),
        quantile_plot(name, curves, words),
    ]


def told_arms(arms: Sequence[Arm], ttft: str = "TTFT (modelled)") -> str:
    """What plots of these arms show, in words."""
    return " ".join(
        f"{arm.name}: {len(arm)} requests, {ttft} median"
        f" {lasted(arm.quantile('ttft_s', 0.5))}, p99"
        f" {lasted(arm.quantile('ttft_s', 0.99))}, longest wait for the cache"
        f" {lasted(arm.quantile('wait_s', 1.0))}, hit rate {percent(arm.hit_rate)},"
        f" {arm.failed} failed."
        for arm in arms
    )


def percent(share: float) -> str:
    """ "41.2 %", "?" for none."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "?"

"""What is drawn of one test: its time line, and its quantiles.

The time line stacks TTFT (modelled), the wait for the cache (measured), the hit rate
and the state of every breaker over one time axis, with the faults shaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaos.judge.breaker import CLOSED, HALF_OPEN, OPEN
from chaos.report.html.drawing import (
    BOTTOM_IN,
    TITLE_IN,
    TOP_IN,
    Plot,
    render,
)
from chaos.report.html.palette import arm_colour, marker
from chaos.report.html.timeaxis import TimeAxis
from chaos.report.moments import lasted
from chaos.report.story import WATCHING, begun, told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.judge.breaker import Change
    from chaos.report.html.drawing import Colours
    from chaos.report.traces import Arm, Column, Trace

MOST_POINTS: Final = 400
"""Points drawn of one arm; of more, the extremes of each stretch are kept."""
MOST_SHADES: Final = 40
MOST_ENGINES: Final = 8
BINS: Final = 24
LEAST_IN_BIN: Final = 4
_GAP_S: Final = 2.0
_LOG_FROM: Final = 30.0
_LOG_MOST: Final = 3000.0
"""What is this many times smaller than the largest value lies on the ground."""
_LIMIT_SHOWN: Final = 8.0
LEGEND_COLUMNS: Final = 4
PANEL_IN: Final = 1.4
QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """A fault on the time axis; `letter` is what the plot calls it."""

    letter: str
    start_s: float
    end_s: float
    words: str


def shades_of(faults: Sequence[Mapping[str, Any]], until_s: float) -> list[Shade]:
    """The faults that really broke something; one that has no end goes on."""
    found: list[Shade] = []
    for row in faults:
        start_s, end_s = begun(row), row.get("reverted_at_s")
        if row.get("kind") in WATCHING or start_s is None:
            continue
        last_s = float(end_s) if isinstance(end_s, int | float) else until_s
        shade = Shade(
            letter=_letter(len(found)),
            start_s=start_s,
            end_s=max(start_s, last_s),
            words=told(row),
        )
        found.append(shade)
    return found[:MOST_SHADES]


def draw_test(
    name: str,
    trace: Trace,
    faults: Sequence[Mapping[str, Any]],
    *,
    modelled: bool = True,
) -> list[Plot]:
    """The plots of one test; none where no request was recorded.

    `modelled`: TTFT is computed by a model of prefill, and is called so.
    """
    arms = trace.shown
    if not arms:
        return []
    until_s = max(float(np.max(arm.column("at_s"))) for arm in arms)
    shades = shades_of(faults, until_s)
    ttft = f"TTFT{', modelled' if modelled else ''} (s)"
    return [
        _time_line(name, trace, arms, shades, ttft),
        _quantiles(name, arms, ttft),
    ]


def _time_line(
    name: str, trace: Trace, arms: Sequence[Arm], shades: Sequence[Shade], ttft: str
) -> Plot:
    axis = _axis_of(arms, shades)
    engines = list(trace.breakers)[:MOST_ENGINES]
    heights = [1.45, 1.1, 1.0] + [0.32 + 0.13 * len(engines)] * bool(engines)
    draw = partial(
        _draw_time_line,
        trace=trace,
        arms=arms,
        shades=shades,
        axis=axis,
        engines=engines,
        heights=heights,
        ttft=ttft,
    )
    words = " ".join([_told_arms(arms), *(f"{s.letter}: {s.words}." for s in shades)])
    name = f"{name}-time"
    return render(name, "Over time", words, draw, height_in=height_in(heights))


def _axis_of(arms: Sequence[Arm], shades: Sequence[Shade]) -> TimeAxis:
    busy = [(shade.start_s, shade.end_s) for shade in shades]
    for arm in arms:
        at_s = np.sort(arm.column("at_s"))
        cuts = np.flatnonzero(np.diff(at_s) > _GAP_S)
        starts = at_s[np.r_[0, cuts + 1]]
        ends = at_s[np.r_[cuts, len(at_s) - 1]]
        busy += list(zip(starts.tolist(), ends.tolist(), strict=True))
    first_s = min((start for start, _ in busy), default=0.0)
    origin_s = min((shade.start_s for shade in shades), default=first_s)
    return TimeAxis(busy, origin_s=origin_s)


def _draw_time_line(
    figure: Any,
    colours: Colours,
    *,
    trace: Trace,
    arms: Sequence[Arm],
    shades: Sequence[Shade],
    axis: TimeAxis,
    engines: Sequence[str],
    heights: Sequence[float],
    ttft: str,
) -> None:
    panels = stacked(figure, heights)
    _draw_points(panels[0], arms, "ttft_s", axis, colours)
    panels[0].set_title(ttft)
    _draw_points(panels[1], arms, "wait_s", axis, colours)
    panels[1].set_title("cache wait (s)")
    _draw_limit(panels[1], trace, arms, colours)
    _draw_hit_rate(panels[2], arms, axis, colours)
    if engines:
        _draw_breakers(panels[3], trace, engines, axis, colours)
    for number, panel in enumerate(panels):
        _draw_shades(panel, shades, axis, colours, lettered=number == 0)
        for fold in axis.folds:
            panel.axvline(fold.at, color=colours["muted"], lw=0.8, ls=(0, (1, 2)))
    panels[-1].set_xlim(*axis.limits)
    panels[-1].set_xticks(*axis.ticks())
    panels[-1].set_xlabel(_time_words(shades, axis))
    _draw_legend(figure, panels[0], colours)


def _time_words(shades: Sequence[Shade], axis: TimeAxis) -> str:
    what = "the first fault" if shades else "the first request"
    folds = axis.folds
    if not folds:
        return f"seconds after {what}"
    idle = lasted(sum(fold.seconds for fold in folds))
    return f"seconds after {what}; dotted: {idle} idle, folded"


def _draw_points(
    panel: Any, arms: Sequence[Arm], column: str, axis: TimeAxis, colours: Colours
) -> None:
    seen = []
    for number, arm in enumerate(arms):
        at_s, values = thinned(arm.column("at_s"), arm.column(column))
        colour = arm_colour(arm.name, number)
        seen.append(values)
        panel.plot(
            axis.place(at_s),
            values,
            linestyle="none",
            marker=marker(colour),
            markersize=2.6,
            markeredgewidth=0,
            color=colours[colour],
            alpha=0.75,
            label=arm.name,
        )
    _scale(panel, np.concatenate(seen) if seen else np.empty(0))


def _scale(panel: Any, values: Column) -> None:
    """Linear from 0, or logarithmic where values are far apart; always plain words."""
    known = values[np.isfinite(values) & (values > 0)]
    if known.size and np.max(known) > _LOG_FROM * np.quantile(known, 0.05):
        panel.set_yscale("log")
        high = np.max(known) * 1.5
        low = max(np.min(known) / 1.5, high / _LOG_MOST)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        panel.set_ylim(low, high)
        for line in panel.lines:
            line.set_ydata(np.maximum(line.get_ydata(), low))
        panel.set_yticks([10.0**p for p in powers if low <= 10.0**p <= high])
        panel.set_yticks([], minor=True)
    else:
        panel.set_ylim(0, float(np.max(known)) * 1.15 if known.size else 1.0)
        panel.locator_params(axis="y", nbins=4)
    panel.yaxis.set_major_formatter(lambda value, _at: f"{value:.4g}")
    panel.grid(axis="y", linewidth=0.5)


def _draw_limit(
    panel: Any, trace: Trace, arms: Sequence[Arm], colours: Colours
) -> None:
    """The longest wait that is allowed, where it is near enough to be drawn."""
    allowed = np.concatenate([arm.column("allowed_s") for arm in arms])
    known = allowed[np.isfinite(allowed)]
    if not known.size:
        return
    limit_s, top_s = float(np.max(known)) + trace.poll_s, panel.get_ylim()[1]
    if limit_s > _LIMIT_SHOWN * top_s:
        text = f"T + poll {lasted(limit_s)} is far above"
        panel.set_title(text, loc="right", color=colours["limit"], fontweight="normal")
        return
    panel.set_ylim(top=max(top_s, limit_s * 1.15))
    panel.axhline(limit_s, color=colours["limit"], lw=1.2, ls="--")
    text = f"- - T + poll {lasted(limit_s)}"
    panel.set_title(text, loc="right", color=colours["limit"], fontweight="normal")


def _draw_hit_rate(
    panel: Any, arms: Sequence[Arm], axis: TimeAxis, colours: Colours
) -> None:
    for number, arm in enumerate(arms):
        at_s, rate = hit_rate_over_time(arm)
        colour = arm_colour(arm.name, number)
        panel.plot(
            axis.place(at_s),
            100 * rate,
            marker=marker(colour),
            markersize=2.2,
            lw=1.2,
            color=colours[colour],
        )
    panel.set_ylim(-4, 104)
    panel.set_yticks([0, 50, 100])
    panel.grid(axis="y", linewidth=0.5)
    panel.set_title("hit rate (% of tokens)")


def hit_rate_over_time(arm: Arm) -> tuple[Column, Column]:
    """Tokens reused / asked in stretches of the arm; NaN between its pauses.

    A stretch has at least four requests, so that one request is no rate.
    """
    order = np.argsort(arm.column("at_s"), kind="stable")
    at_s = arm.column("at_s")[order]
    reused = np.nan_to_num(arm.column("reused")[order])
    asked = np.nan_to_num(arm.column("asked")[order])
    places: list[float] = []
    rates: list[float] = []
    pauses = np.flatnonzero(np.diff(at_s) > _GAP_S) + 1
    for rows in np.split(np.arange(len(at_s)), pauses):
        count = max(1, min(BINS, len(rows) // LEAST_IN_BIN))
        for part in np.array_split(rows, count):
            total = float(asked[part].sum())
            places.append(float(at_s[part].mean()))
            rates.append(float(reused[part].sum()) / total if total else math.nan)
        places.append(places[-1])
        rates.append(math.nan)
    return np.asarray(places), np.asarray(rates)


def _draw_breakers(
    panel: Any,
    trace: Trace,
    engines: Sequence[str],
    axis: TimeAxis,
    colours: Colours,
) -> None:
    looks = {
        CLOSED: (colours["line"], 0.22),
        HALF_OPEN: (colours["half"], 0.62),
        OPEN: (colours["fail"], 0.62),
    }
    for row, engine in enumerate(engines):
        for start_s, end_s, state in strips(trace.breakers[engine], axis):
            left, right = axis.place([start_s, end_s])
            colour, height = looks.get(state, (colours["muted"], 0.22))
            panel.barh(row, right - left, height, left=left, color=colour)
    panel.set_yticks(range(len(engines)), engines)
    panel.set_ylim(len(engines) - 0.4, -0.6)
    panel.set_title("breaker")
    panel.text(
        1,
        1.02,
        "thick: open (red), half open (amber)",
        transform=panel.transAxes,
        ha="right",
        va="bottom",
        color=colours["muted"],
        fontsize="small",
    )


def strips(changes: Iterable[Change], axis: TimeAxis) -> list[tuple[float, float, str]]:
    """(from, to, state) of a breaker over the whole axis."""
    rows = list(changes)
    state = rows[0].source if rows else CLOSED
    at_s, found = axis.start_s, []
    for change in rows:
        if change.at_s > at_s:
            found.append((at_s, min(change.at_s, axis.end_s), state))
            at_s = min(change.at_s, axis.end_s)
        state = change.target
    found.append((at_s, axis.end_s, state))
    return [strip for strip in found if strip[1] > strip[0]]


def _draw_shades(
    panel: Any,
    shades: Sequence[Shade],
    axis: TimeAxis,
    colours: Colours,
    *,
    lettered: bool,
) -> None:
    taken = -math.inf
    low, high = axis.limits
    for shade in shades:
        left, right = (float(at) for at in axis.place([shade.start_s, shade.end_s]))
        panel.axvspan(left, right, color=colours["shade"], lw=0, zorder=0)
        panel.axvline(left, color=colours["limit"], lw=0.8, zorder=0.5)
        if lettered and left - taken > 0.04 * (high - low):
            taken = left
            panel.text(
                left,
                0.99,
                f" {shade.letter}",
                transform=panel.get_xaxis_transform(),
                va="top",
                color=colours["limit"],
                fontweight="bold",
            )


def _draw_legend(figure: Any, panel: Any, colours: Colours) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper left",
        ncols=LEGEND_COLUMNS,
        labelcolor=colours["fg"],
        handletextpad=0.3,
        handlelength=1.2,
        columnspacing=1.0,
        borderaxespad=0.1,
        markerscale=2,
    )


# -- quantiles -------------------------------------------------------------------------


def _quantiles(name: str, arms: Sequence[Arm], ttft: str) -> Plot:
    curves = {
        ttft: [(arm.name, arm.column("ttft_s")) for arm in arms],
        "cache wait, measured (s)": [(arm.name, arm.column("wait_s")) for arm in arms],
    }
    return quantile_plot(name, curves, _told_arms(arms))


def quantile_plot(
    name: str, curves: Mapping[str, Sequence[tuple[str, Column]]], words: str
) -> Plot:
    """A panel for each metric, a curve for each arm; the tail is stretched."""
    draw = partial(_draw_quantiles, curves=curves)
    height = height_in([PANEL_IN] * len(curves))
    return render(f"{name}-quantiles", "Quantiles", words, draw, height_in=height)


def _draw_quantiles(
    figure: Any,
    colours: Colours,
    *,
    curves: Mapping[str, Sequence[tuple[str, Column]]],
) -> None:
    panels = stacked(figure, [PANEL_IN] * len(curves))
    most = 2
    for panel, (title, arms) in zip(panels, curves.items(), strict=True):
        seen = [np.empty(0)]
        for number, (name, column) in enumerate(arms):
            values = np.sort(column[np.isfinite(column)])
            if not values.size:
                continue
            colour = arm_colour(name, number)
            share = (np.arange(values.size) + 0.5) / values.size
            panel.plot(
                *thinned(-np.log10(1 - share), values),
                color=colours[colour],
                lw=1.4,
                label=name,
            )
            seen.append(values)
            most = max(most, values.size)
        _scale(panel, np.concatenate(seen))
        panel.set_title(title)
    _quantile_ticks(panels[-1], most)
    _draw_legend(figure, panels[0], colours)


def _quantile_ticks(panel: Any, samples: int) -> None:
    known = [q for q in (0.0, *QUANTILES) if samples * (1 - q) >= 1]
    panel.set_xticks([-math.log10(1 - q) for q in known])
    panel.set_xticklabels([f"p{100 * q:g}" for q in known])
    panel.set_xlabel("share of requests that were at least as fast")


def height_in(heights: Sequence[float]) -> float:
    """The height of a figure with panels of these heights, inches."""
    return sum(heights) + TITLE_IN * (len(heights) - 1) + TOP_IN + BOTTOM_IN


def stacked(figure: Any, heights: Sequence[float], *, sharex: bool = True) -> list[Any]:
    """Panels over one x axis, with room for a title above each."""
    mean = sum(heights) / len(heights)
    panels = figure.subplots(
        len(heights),
        1,
        sharex=sharex,
        squeeze=False,
        height_ratios=heights,
        gridspec_kw={"hspace": TITLE_IN / mean},
    )
    return list(panels[:, 0])


def thinned(x: Column, y: Column) -> tuple[Column, Column]:
    """At most 400 points: of each stretch the lowest and the highest, in order."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if x.size <= MOST_POINTS:
        return x, y
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    keep: list[int] = []
    for part in np.array_split(np.arange(x.size), MOST_POINTS // 2):
        keep += sorted({int(part[np.argmin(y[part])]), int(part[np.argmax(y[part])])})
    return x[keep], y[keep]


def _told_arms(arms: Sequence[Arm]) -> str:
    return " ".join(
        f"{arm.name}: {len(arm)} requests, TTFT (modelled) median"
        f" {lasted(arm.quantile('ttft_s', 0.5))}, p99"
        f" {lasted(arm.quantile('ttft_s', 0.99))}, longest wait for the cache"
        f" {lasted(arm.quantile('wait_s', 1.0))}, hit rate {_percent(arm.hit_rate)},"
        f" {arm.failed} failed."
        for arm in arms
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else "?"


def _letter(number: int) -> str:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return letters[number] if number < len(letters) else str(number + 1)

"""The time line of a test: latencies, hit rate and breakers, with faults shaded.

TTFT (modelled), the wait for the cache (measured), the hit rate and the state of every
breaker stand over one time axis; a panel without any data is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaos.judge.breaker import CLOSED, HALF_OPEN, OPEN
from chaos.report.fault_words import WATCHING, begun, told
from chaos.report.html.drawing import Plot, render
from chaos.report.html.palette import arm_colour, marker
from chaos.report.html.panels import draw_legend, height_in, scale, stacked, thinned
from chaos.report.html.timeaxis import TimeAxis
from chaos.report.moments import lasted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from chaos.judge.breaker import Change
    from chaos.report.html.drawing import Colours
    from chaos.report.traces import Arm, Column, Trace

    _Panel = Callable[[Any, "TimeLine", Colours], None]

MOST_SHADES: Final = 40
MOST_ENGINES: Final = 8
BINS: Final = 24
LEAST_IN_BIN: Final = 4
_GAP_S: Final = 2.0
_LIMIT_SHOWN: Final = 8.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """Everything that is on one time line."""

    trace: Trace
    arms: Sequence[Arm]
    shades: Sequence[Shade]
    axis: TimeAxis
    ttft: str
    """The title of the first panel; it says whether TTFT is modelled."""

    @property
    def engines(self) -> list[str]:
        return list(self.trace.breakers)[:MOST_ENGINES]

    def known(self, column: str) -> bool:
        """Whether any request of any arm has a value."""
        return any(np.isfinite(arm.column(column)).any() for arm in self.arms)


def draw_time_line(
    name: str,
    trace: Trace,
    faults: Sequence[Mapping[str, Any]],
    *,
    words: str,
    ttft: str,
) -> Plot:
    """The time line of a trace that has samples."""
    arms = trace.shown
    until_s = max(float(np.max(arm.column("at_s"))) for arm in arms)
    shades = shades_of(faults, until_s)
    line = TimeLine(
        trace=trace,
        arms=arms,
        shades=shades,
        axis=_axis_of(arms, shades),
        ttft=ttft,
    )
    panels = _panels(line)
    heights = [height for height, _ in panels]
    draw = partial(_draw, line=line, panels=panels, heights=heights)
    told_words = " ".join([words, *(f"{s.letter}: {s.words}." for s in shades)])
    name = f"{name}-time"
    return render(name, "Over time", told_words, draw, height_in=height_in(heights))


def _panels(line: TimeLine) -> list[tuple[float, _Panel]]:
    """The panels that have something to show: height in inches, and who draws it."""
    found: list[tuple[float, _Panel]] = [(1.45, _draw_ttft)]
    if line.known("wait_s"):
        found.append((1.1, _draw_waits))
    if line.known("asked"):
        found.append((1.0, _draw_hit_rate))
    if line.engines:
        found.append((0.32 + 0.13 * len(line.engines), _draw_breakers))
    return found


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


def _draw(
    figure: Any,
    colours: Colours,
    *,
    line: TimeLine,
    panels: Sequence[tuple[float, _Panel]],
    heights: Sequence[float],
) -> None:
    places = stacked(figure, heights)
    for place, (_, draw) in zip(places, panels, strict=True):
        draw(place, line, colours)
        _draw_shades(place, line, colours, lettered=place is places[0])
        for fold in line.axis.folds:
            place.axvline(fold.at, color=colours["muted"], lw=0.8, ls=(0, (1, 2)))
    places[-1].set_xlim(*line.axis.limits)
    places[-1].set_xticks(*line.axis.ticks())
    places[-1].set_xlabel(_time_words(line.shades, line.axis))
    draw_legend(figure, places[0], colours)


def _time_words(shades: Sequence[Shade], axis: TimeAxis) -> str:
    what = "the first fault" if shades else "the first request"
    folds = axis.folds
    if not folds:
        return f"seconds after {what}"
    idle = lasted(sum(fold.seconds for fold in folds))
    return f"seconds after {what}; dotted: {idle} idle, folded"


def _draw_ttft(panel: Any, line: TimeLine, colours: Colours) -> None:
    _draw_points(panel, line, "ttft_s", colours)
    panel.set_title(line.ttft)


def _draw_waits(panel: Any, line: TimeLine, colours: Colours) -> None:
    _draw_points(panel, line, "wait_s", colours)
    panel.set_title("cache wait (s)")
    _draw_limit(panel, line, colours)


def _draw_points(panel: Any, line: TimeLine, column: str, colours: Colours) -> None:
    seen = []
    for number, arm in enumerate(line.arms):
        at_s, values = thinned(arm.column("at_s"), arm.column(column))
        colour = arm_colour(arm.name, number)
        seen.append(values)
        panel.plot(
            line.axis.place(at_s),
            values,
            linestyle="none",
            marker=marker(colour),
            markersize=2.6,
            markeredgewidth=0,
            color=colours[colour],
            alpha=0.75,
            label=arm.name,
        )
    scale(panel, np.concatenate(seen) if seen else np.empty(0))


def _draw_limit(panel: Any, line: TimeLine, colours: Colours) -> None:
    """The longest wait that is allowed, where it is near enough to be drawn."""
    allowed = np.concatenate([arm.column("allowed_s") for arm in line.arms])
    known = allowed[np.isfinite(allowed)]
    if not known.size:
        return
    limit_s, top_s = float(np.max(known)) + line.trace.poll_s, panel.get_ylim()[1]
    if limit_s > _LIMIT_SHOWN * top_s:
        text = f"T + poll {lasted(limit_s)} is far above"
        panel.set_title(text, loc="right", color=colours["limit"], fontweight="normal")
        return
    panel.set_ylim(top=max(top_s, limit_s * 1.15))
    panel.axhline(limit_s, color=colours["limit"], lw=1.2, ls="--")
    text = f"- - T + poll {lasted(limit_s)}"
    panel.set_title(text, loc="right", color=colours["limit"], fontweight="normal")


def _draw_hit_rate(panel: Any, line: TimeLine, colours: Colours) -> None:
    for number, arm in enumerate(line.arms):
        at_s, rate = hit_rate_over_time(arm)
        colour = arm_colour(arm.name, number)
        panel.plot(
            line.axis.place(at_s),
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
    line: TimeLine,
    colours: Colours,
) -> None:
    looks = {
        CLOSED: (colours["line"], 0.22),
        HALF_OPEN: (colours["half"], 0.62),
        OPEN: (colours["fail"], 0.62),
    }
    engines = line.engines
    for row, engine in enumerate(engines):
        for start_s, end_s, state in strips(line.trace.breakers[engine], line.axis):
            left, right = line.axis.place([start_s, end_s])
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
    line: TimeLine,
    colours: Colours,
    *,
    lettered: bool,
) -> None:
    taken = -math.inf
    low, high = line.axis.limits
    for shade in line.shades:
        left, right = (
            float(at) for at in line.axis.place([shade.start_s, shade.end_s])
        )
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


def _letter(number: int) -> str:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return letters[number] if number < len(letters) else str(number + 1)

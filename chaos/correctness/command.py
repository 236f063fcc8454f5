"""`chaos correctness`: plays schedule files, and prints drawn ones."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.correctness.bench import Outcome
    from chaos.correctness.schedule import Schedule

PASS, FAIL, INCONCLUSIVE = 0, 1, 3
MOST_TIMES: Final = 1000
_EPILOG: Final = """
\b
Exit codes:
  0  nothing was found
  1  a promise was broken, also a known one
  3  it could not be told: the cluster did not become whole again, nothing was read
"""

app = typer.Typer(
    name="correctness",
    help="Schedules that look for wrong bytes and lost writes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(epilog=_EPILOG)
def replay(
    files: Annotated[list[Path], typer.Argument(help="Schedule files.")],
    times: Annotated[
        int, typer.Option(min=1, max=MOST_TIMES, help="How often each is played.")
    ] = 1,
    target: Annotated[str, typer.Option(help="local or netns.")] = "",
    defect: Annotated[
        list[str] | None, typer.Option(help="Defect of the system to switch on.")
    ] = None,
    results: Annotated[str, typer.Option(help="Keep histories and logs there.")] = "",
) -> None:
    """Plays schedule files on clusters of their own and tells what they show."""
    from chaos.correctness.schedule import load_schedule
    from chaos.scenario.interrupt import Interrupted, Interrupts

    schedules = [load_schedule(path) for path in files]
    worst = PASS
    with Interrupts():
        try:
            for schedule in schedules:
                code = _replayed(schedule, times, target, tuple(defect or ()), results)
                worst = max(worst, code, key=(PASS, INCONCLUSIVE, FAIL).index)
        except Interrupted as interrupted:
            raise typer.Exit(interrupted.exit_code) from None
    raise typer.Exit(worst)


@app.command()
def draw(
    number: Annotated[int, typer.Argument(min=0, help="Which one.")] = 0,
    system: Annotated[str, typer.Option(help="System under test.")] = "refimpl",
    mode: Annotated[str, typer.Option(help="Mode of the system.")] = "",
    seed: Annotated[int, typer.Option(help="Of the drawing.")] = 1,
) -> None:
    """Prints a random schedule, as `scripts/soak correctness` plays it."""
    from chaos.correctness.schedule import as_yaml
    from chaos.correctness.soak import drawn
    from chaos.correctness.spaces import modes_of

    modes = modes_of(system, [mode] if mode else [])
    chosen = modes[number % len(modes)]
    sys.stdout.write(as_yaml(drawn(chosen, seed, number)))


def _replayed(
    schedule: Schedule,
    times: int,
    target: str,
    defects: tuple[str, ...],
    results: str,
) -> int:
    from chaos.correctness.bench import Bench

    with contextlib.ExitStack() as stack:
        folder = results or stack.enter_context(TemporaryDirectory("-correctness"))
        where = target or schedule.target
        bench = Bench(schedule.system, Path(folder), target=where, defects=defects)
        stack.callback(bench.close)
        outcomes = [bench.play(schedule) for _ in range(times)]
    return _told(schedule, outcomes)


def _told(schedule: Schedule, outcomes: Sequence[Outcome]) -> int:
    """Prints what was found, play by play, and the exit code."""
    from chaos.correctness.judges import why_untold

    if not outcomes:
        raise UsageError("nothing was played")
    found = sum(bool(outcome.findings) for outcome in outcomes)
    for number, outcome in enumerate(outcomes, 1):
        words = [str(finding) for finding in outcome.findings] or ["nothing found"]
        words += [f"skipped: {why}" for why in outcome.played.skipped]
        words += [f"not here: {error}" for error in outcome.played.not_here]
        why = why_untold(outcome.played)
        words += [f"could not tell: {why}"] if why else []
        _say(f"{schedule.name}, play {number}:")
        for word in words:
            _say(f"  {word}")
    _say(f"{schedule.name}: found in {found} of {len(outcomes)} plays")
    if found:
        return FAIL
    told = not any(why_untold(outcome.played) for outcome in outcomes)
    return PASS if told else INCONCLUSIVE


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

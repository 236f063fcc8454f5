"""What `chaos run` does: refuse, play, judge, and one exit code for all of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from chaos.errors import ChaosError, ResidualFault, UsageError
from chaos.report.live import LiveLine
from chaos.report.terminal import render, wants_color
from chaos.safety.halt import Levers, LocalLever
from chaos.safety.limits import host_refusals
from chaos.safety.remote import read_inventory
from chaos.scenario.bench import Bench, BenchOptions, Result
from chaos.scenario.interrupt import Interrupted, Interrupts
from chaos.scenario.load import load_scenario
from chaos.scenario.plan import plan_scenario, planned_cluster, refuse_too_much
from chaos.scenario.schedule import schedule_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.safety.halt import Lever
    from chaos.scenario.plan import Plan
    from chaos.scenario.schedule import Schedule
    from chaos.scenario.schema import Scenario
    from chaos.targets.place import Place

PASS, FAIL, USAGE, INCONCLUSIVE, BROKE, LEFT_BEHIND = range(6)
_ORDER = (PASS, INCONCLUSIVE, FAIL, USAGE, BROKE, LEFT_BEHIND)
"""From good to bad: the exit code of several scenarios is the worst of theirs."""
_WIDTH = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the operator asked for; `seed` None plays every file with its own."""

    bench: BenchOptions
    seed: int | None = None
    arm: bool = False
    max_nodes_down: int | None = None
    as_json: bool = False

    @property
    def plans_only(self) -> bool:
        """Other machines are broken only when armed; without it a plan is printed."""
        return self.bench.place.kind == "ssh" and not self.arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One file of a run, ready to be played."""

    name: str
    scenario: Scenario
    schedule: Schedule


def prepare(paths: Sequence[Path], options: RunOptions) -> list[Piece]:
    """Reads every file and refuses what may not start, before anything has started.

    Raises:
        UsageError: A file is wrong, or would break too much at once.
    """
    pieces = []
    for path in paths:
        scenario = load_scenario(path)
        cluster = planned_cluster(
            scenario,
            system=options.bench.system,
            place=options.bench.place,
            time_scale=options.bench.time_scale,
        )
        schedule = schedule_of(scenario, seed=options.seed, host_of=cluster.host_of)
        refuse_too_much(str(path), scenario, schedule, cluster, options.max_nodes_down)
        pieces.append(Piece(name=str(path), scenario=scenario, schedule=schedule))
    return pieces


def run_files(
    paths: Sequence[Path],
    options: RunOptions,
    *,
    out: IO[str] = sys.stdout,
    err: IO[str] = sys.stderr,
    levers: Sequence[Lever] | None = None,
) -> int:
    """Plays the scenarios of these files and returns the exit code of all.

    Raises:
        UsageError: Nothing was started: a file is wrong, or the lever is pulled.
    """
    places = list(levers) if levers is not None else [LocalLever()]
    shown = _Shown(options, out, err)
    if options.plans_only:
        return _only_plan(paths, options, shown)
    pieces = prepare(paths, options)
    _refuse_hosts(options.bench.place)
    Levers(places).refuse()
    live = LiveLine(err, tty=err.isatty(), width=_WIDTH)
    bench = Bench(options.bench, levers=places, live=live)
    try:
        with Interrupts():
            code = _play_all(pieces, bench, shown)
    except Interrupted as interrupted:
        shown.say(f"{interrupted}: faults undone, run ended")
        code = interrupted.exit_code
    finally:
        bench.close()
    shown.end(code)
    return code


def _refuse_hosts(place: Place) -> None:
    """Every host of an inventory must have opted in; one word too few stops all.

    Raises:
        UsageError: A host did not, or stands in a protected environment.
    """
    if place.kind != "ssh":
        return
    inventory = read_inventory(place.inventory)
    chosen = [host for host in inventory.hosts if host.roles]
    refused = host_refusals(chosen, inventory.why_not)
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise UsageError(f"{place.inventory}: {refused[0]}{more}")


class _Shown:
    """Where results and words go: tables or JSON to `out`, progress to `err`."""

    def __init__(self, options: RunOptions, out: IO[str], err: IO[str]) -> None:
        self._options, self._out, self._err = options, out, err
        self._rows: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        self._err.write(f"chaos: {text}\n")
        self._err.flush()

    def result(self, piece: Piece, result: Result) -> None:
        document = result.document
        if self._options.as_json:
            row = {**document.to_json(), "scenario": piece.name}
            self._rows.append({**row, "results": str(result.path)})
            return
        color = wants_color(tty=self._out.isatty())
        self._out.write(render(document, color=color, width=_WIDTH))
        self._out.write(f"results in {result.path}\n")
        if (page := result.path / "report.html").is_file():
            self._out.write(f"report in {page}\n")
        self._out.flush()

    def plan(self, plan: Plan) -> None:
        if self._options.as_json:
            self._rows.append(plan.to_json())
        else:
            self._out.write("\n".join(plan.lines()) + "\n")

    def broke(self, piece: Piece, code: int, reason: str) -> None:
        self.say(f"{piece.name}: {reason}")
        row = {"scenario": piece.name, "exit_code": code, "error": reason}
        self._rows.append(row)

    def end(self, code: int) -> None:
        if self._options.as_json:
            import json

            document = {"exit_code": code, "scenarios": self._rows}
            self._out.write(f"{json.dumps(document, indent=2, default=str)}\n")


def _play_all(pieces: Sequence[Piece], bench: Bench, shown: _Shown) -> int:
    """One after the other; a fault that is left behind stops the rest."""
    worst = PASS
    for number, piece in enumerate(pieces, 1):
        shown.say(f"[{number}/{len(pieces)}] {piece.name}: {_told(piece)}")
        code = _play_one(piece, bench, shown)
        worst = max(worst, code, key=_ORDER.index)
        if code == LEFT_BEHIND:
            shown.say("a fault was left behind: `chaos recover` tries again")
            break
    return worst


def _play_one(piece: Piece, bench: Bench, shown: _Shown) -> int:
    """Plays one; an error of the harness is its own code, never a verdict."""
    try:
        result = bench.run(piece.scenario, piece.schedule, piece.name)
    except ExceptionGroup as group:
        left = group.subgroup(ResidualFault) is not None
        code = LEFT_BEHIND if left else BROKE
        shown.broke(piece, code, str(group.exceptions[0]))
        return code
    except UsageError:
        raise
    except ChaosError as error:
        shown.broke(piece, error.exit_code, str(error))
        return error.exit_code
    except Exception as error:  # ours: never to be taken for the system's
        shown.broke(piece, BROKE, f"{type(error).__name__}: {error}")
        return BROKE
    shown.result(piece, result)
    return result.document.exit_code


def _told(piece: Piece) -> str:
    names = ", ".join(fault.name for fault in piece.schedule.faults[:4])
    more = len(piece.schedule.faults) - 4
    rest = f" and {more} more" if more > 0 else ""
    return f"seed {piece.schedule.seed}, {names}{rest}"


def plan_file(
    path: Path,
    *,
    system: str,
    place: Place,
    time_scale: float,
    seed: int | None = None,
    max_nodes_down: int | None = None,
) -> Plan:
    """The plan of a scenario file; what is refused is in it.

    Raises:
        UsageError: The file is wrong.
    """
    scenario = load_scenario(path)
    cluster = planned_cluster(
        scenario, system=system, place=place, time_scale=time_scale
    )
    return plan_scenario(scenario, cluster, seed=seed, max_nodes_down=max_nodes_down)


def _only_plan(paths: Sequence[Path], options: RunOptions, shown: _Shown) -> int:
    """Prints what would run on other machines, which takes `--arm`: no verdict."""
    plans = [
        plan_file(
            path,
            system=options.bench.system,
            place=options.bench.place,
            time_scale=options.bench.time_scale,
            seed=options.seed,
            max_nodes_down=options.max_nodes_down,
        )
        for path in paths
    ]
    for plan in plans:
        shown.plan(plan)
    shown.say("nothing was started: say --arm to break other machines")
    shown.end(INCONCLUSIVE)
    return INCONCLUSIVE

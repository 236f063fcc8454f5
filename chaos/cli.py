"""The command `chaos`: run, plan, halt, resume, status, recover, score, report, ..."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from chaos.correctness.command import app as correctness
from chaos.errors import ChaosError, UsageError
from chaos.report.redaction import clean, clean_text
from chaos.safety.locks import DomainBusy

_EXITS = """
\b
Exit codes:
  0  pass: everything is as it should be
  1  fail: a law is broken, or a defect was missed
  2  usage: the command was asked wrongly
  3  inconclusive: it could not be told
  4  the harness itself broke
  5  a fault was left behind; run `chaos recover`
"""
PASS, FAIL, USAGE, INCONCLUSIVE, BROKE, LEFT_BEHIND = range(6)
_LINE_MOST = 2000  # characters of a complaint

app = typer.Typer(
    name="chaos",
    help="Plans, undoes and judges what the chaos suites do.",
    epilog=_EXITS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(correctness)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _examples(*lines: str) -> str:
    shown = "\n".join(f"  {line}" for line in lines)
    return f"\b\nExamples:\n{shown}\n{_EXITS}"


Where = Annotated[
    str, typer.Option("--target", help="Where it runs: local, netns or ssh.")
]
Hosts = Annotated[
    str, typer.Option("--inventory", help="The hosts, as a file of an inventory.")
]
MaxDown = Annotated[
    int | None,
    typer.Option(min=1, help="Hosts down at once; narrower than the file's limit."),
]


@app.command(
    epilog=_examples(
        "chaos run suites/scenarios/rail-flap.yaml",
        "chaos run suites/scenarios/*.yaml --time-scale 0.05 --json",
        "chaos run s.yaml --target ssh --inventory staging.yaml --arm",
    )
)
def run(
    scenarios: Annotated[list[Path], typer.Argument(help="Scenario files.")],
    where: Where = "local",
    inventory: Hosts = "",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Instead of the files' own.")
    ] = None,
    arm: Annotated[
        bool, typer.Option("--arm", help="Really break other machines.")
    ] = False,
    system: Annotated[str, typer.Option(help="System under test.")] = "refimpl",
    time_scale: Annotated[float, typer.Option(help="Factor on times.")] = 0.1,
    results: Annotated[str, typer.Option(help="Where results go.")] = "results",
    defect: Annotated[
        list[str] | None, typer.Option(help="Defect of the system to switch on.")
    ] = None,
    fault_ttl: Annotated[
        float, typer.Option(min=3.0, help="Seconds until hosts heal themselves.")
    ] = 30.0,
    max_nodes_down: MaxDown = None,
    as_json: Json = False,
) -> None:
    """Plays scenario files under load, undoes every fault, and judges.

    Other machines (--target ssh) are only broken with --arm; without it the exact
    commands are printed.
    """
    from chaos.scenario.bench import BenchOptions
    from chaos.scenario.command import RunOptions, run_files
    from chaos.scenario.place import place_of

    options = RunOptions(
        bench=BenchOptions(
            system=system,
            place=place_of(where, inventory, fault_ttl_s=fault_ttl),
            time_scale=_scale(time_scale),
            results=results,
            defects=tuple(defect or ()),
        ),
        seed=seed,
        arm=arm,
        max_nodes_down=max_nodes_down,
        as_json=as_json,
    )
    raise typer.Exit(run_files(scenarios, options))


@app.command(
    epilog=_examples(
        "chaos plan",
        "chaos plan kill store-3",
        "chaos plan nic_down store-3 rail=rail1",
        "chaos plan suites/scenarios/rail-flap.yaml",
    )
)
def plan(
    fault: Annotated[
        str, typer.Argument(help="A fault, e.g. pause, or a scenario file.")
    ] = "",
    target: Annotated[str, typer.Argument(help="A role or a link.")] = "",
    parameters: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE of the fault.")
    ] = None,
    system: Annotated[str, typer.Option(help="System under test.")] = "refimpl",
    stores: Annotated[int, typer.Option(help="Stores.")] = 8,
    engines: Annotated[int, typer.Option(help="Engines.")] = 2,
    time_scale: Annotated[float, typer.Option(help="Factor on times.")] = 0.1,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Instead of the scenario's own.")
    ] = None,
    where: Where = "local",
    inventory: Hosts = "",
    max_nodes_down: MaxDown = None,
    as_json: Json = False,
) -> None:
    """Shows what would be started, and the exact steps of a fault or a scenario.

    Does nothing. Ends with 3 when some of a scenario cannot run, and says why.
    """
    if fault.endswith((".yaml", ".yml")):
        from chaos.scenario.command import plan_file
        from chaos.scenario.place import place_of

        planned = plan_file(
            Path(fault),
            system=system,
            place=place_of(where, inventory),
            time_scale=_scale(time_scale),
            seed=seed,
            max_nodes_down=max_nodes_down,
        )
        _print_json(planned.to_json()) if as_json else _print_lines(planned.lines())
        raise typer.Exit(PASS if planned.runs else INCONCLUSIVE)
    from chaos.planning import plan_cluster, plan_fault

    cluster, commands = plan_cluster(
        system, stores=stores, engines=engines, time_scale=time_scale
    )
    links = [asdict(link) for link in cluster.links]
    steps = plan_fault(cluster, fault, target, parameters or []) if fault else []
    if as_json:
        _print_json({"commands": commands, "links": links, "steps": steps})
    elif fault:
        _print_lines(steps)
    else:
        _print_lines(commands)
        _print_lines(
            f"{link['name']}: {link['listen']} -> {link['upstream']}" for link in links
        )


@app.command(
    epilog=_examples(
        "chaos halt --reason 'customer outage'",
        "chaos halt --reason 'customer outage' --inventory staging.yaml",
    )
)
def halt(
    reason: Annotated[str, typer.Option(help="Why; everybody stopped reads it.")],
    inventory: Hosts = "",
    as_json: Json = False,
) -> None:
    """Stops every running harness, faults first, and forbids new runs.

    With an inventory also on its hosts, for harnesses of other controllers. Ends with
    4 when a place of the lever could not be reached.
    """
    from chaos.safety.halt import pull
    from chaos.safety.remote import levers_of

    with levers_of(inventory) as levers:
        pulled, failed = pull(reason, levers)
    places = [lever.where for lever in levers if lever.where not in failed]
    if as_json:
        _print_json({**asdict(pulled), "places": places, "failed": failed})
    else:
        _print_lines([f"halted at {place}" for place in places])
        _print_lines([f"NOT halted at {place}: {why}" for place, why in failed.items()])
    if failed:
        raise typer.Exit(BROKE)


@app.command(epilog=_examples("chaos resume", "chaos resume --inventory staging.yaml"))
def resume(inventory: Hosts = "", as_json: Json = False) -> None:
    """Lets runs start again after `chaos halt`. Nothing else does that.

    Ends with 4 when a place of the lever could not be reached.
    """
    from chaos.safety.halt import release
    from chaos.safety.remote import levers_of

    with levers_of(inventory) as levers:
        released, failed = release(levers)
    if as_json:
        _print_json({"released": released, "failed": failed})
    else:
        lines = [f"resumed at {place}" for place in released]
        lines += [f"NOT resumed at {place}: {why}" for place, why in failed.items()]
        _print_lines(lines or ["nothing was halted"])
    if failed:
        raise typer.Exit(BROKE)


@app.command(
    epilog=_examples("chaos status", "chaos status --inventory staging.yaml --json")
)
def status(inventory: Hosts = "", as_json: Json = False) -> None:
    """Lists live and dead runs, their processes and the faults that are in place.

    Also what agents on this machine say, and with an inventory its hosts. Ends with 5
    when a dead run left something behind, with 4 when a host could not be asked.
    """
    from chaos.safety import recover as safety
    from chaos.safety.halt import Levers
    from chaos.safety.remote import here_status, host_status, levers_of

    runs = safety.status()
    with levers_of("") as near:
        pulled = Levers(near).read()
    hosts = here_status() + (host_status(inventory) if inventory else [])
    if as_json:
        rows = [{**asdict(run), "residue": run.residue} for run in runs]
        told = {"runs": rows, "halted": pulled and asdict(pulled)}
        _print_json({**told, "hosts": [asdict(host) for host in hosts]})
    else:
        _print_lines([f"HALTED: {pulled}"] if pulled else [])
        _print_lines(_run_lines(runs) or ["no run, no fault"])
        _print_lines(line for host in hosts for line in host.lines())
    _leave(
        left_behind=any(run.residue for run in runs) or any(h.residue for h in hosts),
        unknown=any(host.error for host in hosts),
    )


@app.command(
    epilog=_examples("chaos recover", "chaos recover --inventory staging.yaml")
)
def recover(inventory: Hosts = "", as_json: Json = False) -> None:
    """Undoes what dead runs left: processes, proxies, files, locks. Safe to repeat.

    Also what agents on this machine left, and with an inventory on its hosts, from
    their own ledgers: no run directory is needed. Ends with 5 when something could not
    be undone, with 4 when a host could not be asked.
    """
    from chaos.safety import recover as safety
    from chaos.safety.remote import here_recover, host_recover

    actions = safety.recover()
    hosts = here_recover() + (host_recover(inventory) if inventory else [])
    if as_json:
        told = [asdict(action) for action in actions]
        _print_json({"actions": told, "hosts": [asdict(host) for host in hosts]})
    else:
        _print_lines(
            [_action_line(asdict(action)) for action in actions]
            or ["nothing to recover"]
        )
        _print_lines(line for host in hosts for line in host.lines())
    _leave(
        left_behind=not all(action.done for action in actions)
        or any(host.residue for host in hosts),
        unknown=any(host.error for host in hosts),
    )


@app.command(
    epilog=_examples("chaos score", "chaos score --only breaker_never_opens --json")
)
def score(
    only: Annotated[
        list[str] | None, typer.Option(help="Only this defect; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 1,
    time_scale: Annotated[float, typer.Option(help="Factor on times.")] = 0.1,
    as_json: Json = False,
) -> None:
    """Runs the suites against every defect of the system: all must be caught."""
    from chaos import score as scoring
    from chaos.defects import DEFECTS
    from chaos.scenario.interrupt import Interrupted, Interrupts

    chosen = {name: DEFECTS[name] for name in _known(only, DEFECTS)}
    if not chosen:
        raise UsageError("no defect has tests registered", "see chaos/defects.py")
    try:
        with Interrupts():
            result = scoring.score(
                chosen,
                lambda nodes, defect: scoring.run_pytest(
                    nodes, defect, seed=seed, scale=time_scale
                ),
                say=_to_stderr if as_json else _print_line,
            )
    except Interrupted as interrupted:
        _to_stderr(f"chaos: {interrupted}: nothing is scored; see `chaos status`")
        raise typer.Exit(interrupted.exit_code) from None
    if as_json:
        _print_json(result.to_json())
    else:
        _print_line(f"caught {len(result.caught)} / {result.total}")
    if not result.good:
        raise typer.Exit(FAIL)


@app.command(
    epilog=_examples(
        "chaos analyze results/latest",
        "chaos analyze results/latest --html",
        "chaos analyze results/latest --json",
    )
)
def analyze(
    results: Annotated[Path, typer.Argument(help="Directory of one run.")],
    html: Annotated[
        bool, typer.Option("--html", help="Also write reports, with every plot.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Judges a recorded run again from its history, without running anything.

    With --html the reports go to RESULTS/analysis; what was recorded stays as it is.
    """
    from chaos.history.history import HistoryError
    from chaos.report.analyze import analyze as judged_again
    from chaos.report.reports import write_analysis
    from chaos.report.terminal import render, wants_color

    _refuse_no_run(results, "run.json", "history.jsonl")
    try:
        document = judged_again(results)
    except (HistoryError, OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{results} cannot be read: {error!r}") from error
    if html:
        _to_stderr(f"report in {write_analysis(results, document)}")
    if as_json:
        _print_json(document.to_json())
    else:
        _print_line(render(document, color=wants_color(tty=sys.stdout.isatty())))
    raise typer.Exit(document.exit_code)


@app.command(
    epilog=_examples(
        "chaos diff results/chaos/20260301T120000Z-1 results/latest",
        "chaos diff results/before results/latest --json",
    )
)
def diff(
    before: Annotated[Path, typer.Argument(help="Directory of a run.")],
    after: Annotated[Path, typer.Argument(help="Directory of a later run.")],
    as_json: Json = False,
) -> None:
    """Compares two runs: verdicts, counters, and how the arms did.

    Ends with 1 when a test fails that did not, with 3 when one can no longer be told
    or nothing is in both. Times are shown, not judged: see `canary judge` for that.
    """
    from chaos.report.diff import diff as compared

    _refuse_no_run(before, "run.json")
    _refuse_no_run(after, "run.json")
    if before.samefile(after):
        told = f"{before} and {after} are the same run"
        raise UsageError(told, "a run does not differ from itself: name two")
    try:
        found = compared(before, after)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{before} and {after} cannot be compared: {error!r}"
        raise UsageError(problem) from error
    _print_json(found.to_json()) if as_json else _print_lines(found.lines())
    raise typer.Exit(found.exit_code)


@app.command(
    epilog=_examples(
        "chaos report --conformance",
        "chaos report --conformance results/mooncake/latest --json",
    )
)
def report(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Directories of runs (results/latest).")
    ] = None,
    conformance: Annotated[
        bool, typer.Option("--conformance", help="Expected and measured properties.")
    ] = False,
    profiles: Annotated[Path, typer.Option(help="What is expected.")] = Path(
        "suites/conformance"
    ),
    as_json: Json = False,
) -> None:
    """Tells which properties a system has, beside what was expected of it.

    Known failures are told and are no error; what does not match its expectation is.
    """
    from chaos.conformance import command
    from chaos.report.terminal import wants_color

    if not conformance:
        raise UsageError("a report of what?", "say --conformance")
    findings = command.findings_of(results or [Path("results/latest")], profiles)
    color = wants_color(tty=sys.stdout.isatty())
    if as_json:
        _print_json(command.shown(findings, as_json=True, color=False))
    else:
        _print_line(command.shown(findings, as_json=False, color=color))
    raise typer.Exit(command.exit_code(findings))


def main(argv: list[str] | None = None) -> int:
    """Runs the command; every error of ours is one line and its own exit code."""
    try:
        app(sys.argv[1:] if argv is None else argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except DomainBusy as error:
        return _complain(str(error), USAGE)
    except ChaosError as error:
        for line in getattr(error, "lines", (str(error),)):
            _complain(line, error.exit_code)
        return error.exit_code
    except Exception as error:  # the edge of the command: 4 is ours, never 1
        return _complain(f"{type(error).__name__}: {error}", BROKE)
    return PASS


def _refuse_no_run(results: Path, *names: str) -> None:
    """Refuses what is not the directory of a run: one of these files is missing."""
    try:
        found = all((results / name).is_file() for name in names)
    except OSError as error:
        raise UsageError(f"{results} cannot be read: {error.strerror}") from error
    if not found:
        problem = f"{results} is not the directory of a run"
        raise UsageError(problem, "try results/latest")


def _leave(*, left_behind: bool, unknown: bool) -> None:
    """Ends a command that asked about residue: what is known first."""
    if left_behind:
        raise typer.Exit(LEFT_BEHIND)
    if unknown:
        raise typer.Exit(BROKE)


def _scale(factor: float) -> float:
    if not (math.isfinite(factor) and factor > 0):
        raise UsageError(f"--time-scale {factor:g} is not a positive factor")
    return factor


def _known(only: list[str] | None, defects: dict[str, tuple[str, ...]]) -> list[str]:
    """The chosen defects, with or without the word `defect.` in front."""
    if not only:
        return list(defects)
    chosen = [name.removeprefix("defect.") for name in only]
    unknown = [name for name in chosen if name not in defects]
    if unknown:
        problem = f"no defect is called {', '.join(unknown)}"
        raise UsageError(problem, f"there are {', '.join(defects)}")
    return chosen


def _run_lines(runs: list[Any]) -> list[str]:
    lines = []
    for run in runs:
        state = "alive" if run.alive else "dead"
        lines.append(f"{run.run} ({state}, since {run.started_at}): {run.command}")
        lines += [f"  fault {fault}" for fault in run.faults]
        lines += [f"  process {name}" for name in run.living]
        lines += [f"  file {path}" for path in run.temporary]
    return lines


def _action_line(action: dict[str, Any]) -> str:
    done = "done" if action["done"] else "NOT DONE"
    detail = f" ({action['detail']})" if action["detail"] else ""
    where = f"{action['run']}: " if action["run"] else ""
    return f"{where}{action['what']}: {done}{detail}"


def _print_json(document: object) -> None:
    plain = json.loads(json.dumps(document, default=str))
    _write_line(json.dumps(clean(plain), indent=2))


def _print_lines(lines: Any) -> None:
    for each in lines:
        _print_line(each)


def _print_line(text: str) -> None:
    _write_line(clean_text(text))


def _write_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{clean_text(text)}\n")


def _complain(text: str, code: int) -> int:
    line = clean_text(" ".join(text.split()))
    plain = "".join(letter if letter.isprintable() else "?" for letter in line)
    sys.stderr.write(f"chaos: {plain[:_LINE_MOST]}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

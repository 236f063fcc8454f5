"""The command `chaos`: plan, status, recover, score, analyze."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import Annotated, Any

import typer

from chaos.errors import ChaosError, UsageError
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

app = typer.Typer(
    name="chaos",
    help="Plans, undoes and judges what the chaos suites do.",
    epilog=_EXITS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _examples(*lines: str) -> str:
    shown = "\n".join(f"  {line}" for line in lines)
    return f"\b\nExamples:\n{shown}\n{_EXITS}"


@app.command(
    epilog=_examples(
        "chaos plan",
        "chaos plan kill store-3",
        "chaos plan nic_down store-3 rail=rail1",
    )
)
def plan(
    fault: Annotated[str, typer.Argument(help="A fault, e.g. pause.")] = "",
    target: Annotated[str, typer.Argument(help="A role or a link.")] = "",
    parameters: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE of the fault.")
    ] = None,
    system: Annotated[str, typer.Option(help="System under test.")] = "refimpl",
    stores: Annotated[int, typer.Option(help="Stores.")] = 8,
    engines: Annotated[int, typer.Option(help="Engines.")] = 2,
    time_scale: Annotated[float, typer.Option(help="Factor on times.")] = 0.1,
    as_json: Json = False,
) -> None:
    """Shows what would be started, and the exact steps of a fault. Does nothing."""
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


@app.command(epilog=_examples("chaos status", "chaos status --json"))
def status(as_json: Json = False) -> None:
    """Lists live and dead runs, their processes and the faults that are in place.

    Ends with 5 when a dead run left something behind.
    """
    from chaos.safety import recover as safety

    runs = safety.status()
    if as_json:
        _print_json([{**asdict(run), "residue": run.residue} for run in runs])
    else:
        _print_lines(_run_lines(runs) or ["no run, no fault"])
    if any(run.residue for run in runs):
        raise typer.Exit(LEFT_BEHIND)


@app.command(epilog=_examples("chaos recover", "chaos recover --json"))
def recover(as_json: Json = False) -> None:
    """Undoes what dead runs left: processes, proxies, files, locks. Safe to repeat.

    Ends with 5 when something could not be undone.
    """
    from chaos.safety import recover as safety

    actions = safety.recover()
    if as_json:
        _print_json([asdict(action) for action in actions])
    else:
        _print_lines(
            [_action_line(asdict(action)) for action in actions]
            or ["nothing to recover"]
        )
    if not all(action.done for action in actions):
        raise typer.Exit(LEFT_BEHIND)


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

    chosen = {name: DEFECTS[name] for name in _known(only, DEFECTS)}
    if not chosen:
        raise UsageError("no defect has tests registered", "see chaos/defects.py")
    result = scoring.score(
        chosen,
        lambda nodes, defect: scoring.run_pytest(
            nodes, defect, seed=seed, scale=time_scale
        ),
        say=_to_stderr if as_json else _print_line,
    )
    if as_json:
        _print_json(result.to_json())
    else:
        _print_line(f"caught {len(result.caught)} / {result.total}")
    if not result.good:
        raise typer.Exit(FAIL)


@app.command(
    epilog=_examples(
        "chaos analyze results/latest", "chaos analyze results/latest --json"
    )
)
def analyze(
    results: Annotated[Path, typer.Argument(help="Directory of one run.")],
    as_json: Json = False,
) -> None:
    """Judges a recorded run again from its history, without running anything."""
    from chaos.history.history import HistoryError
    from chaos.report.analyze import analyze as judged_again
    from chaos.report.terminal import render, wants_color

    if not all((results / name).is_file() for name in ("run.json", "history.jsonl")):
        problem = f"{results} is not the directory of a run"
        raise UsageError(problem, "try results/latest")
    try:
        document = judged_again(results)
    except (HistoryError, ValueError, KeyError) as error:
        raise UsageError(f"{results} cannot be read: {error!r}") from error
    if as_json:
        _print_json(document.to_json())
    else:
        _print_line(render(document, color=wants_color(tty=sys.stdout.isatty())))
    raise typer.Exit(document.exit_code)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; every error of ours is one line and its own exit code."""
    try:
        app(sys.argv[1:] if argv is None else argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except DomainBusy as error:
        return _complain(str(error), USAGE)
    except ChaosError as error:
        return _complain(str(error), error.exit_code)
    except Exception as error:  # the edge of the command: 4 is ours, never 1
        return _complain(f"{type(error).__name__}: {error}", BROKE)
    return PASS


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
    _print_line(json.dumps(document, indent=2, default=str))


def _print_lines(lines: Any) -> None:
    for each in lines:
        _print_line(each)


def _print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"chaos: {' '.join(text.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

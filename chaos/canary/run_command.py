"""`canary run`: measures two arms and has the gate judge them.

One line an error, one exit code. Ctrl-C and SIGTERM undo faults, stop clusters, and
leave directories that say they are not complete; the code is 128 + the signal then.
"""

from __future__ import annotations

import os
import random
import shlex
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from chaos.canary.live import Asked, run_asked
from chaos.canary.schedule import BASELINE, CANARY
from chaos.canary.sides import GROUP, Shape, side_of
from chaos.errors import UsageError
from chaos.report.redaction import know
from chaos.scenario.interrupt import Interrupted

if TYPE_CHECKING:
    from chaos.canary.endpoint import Api
    from chaos.canary.result import GateResult


def add(app: typer.Typer) -> None:
    """Adds `run` to the command `canary`."""
    app.command("run", help=_HELP)(command)


_HELP = """Measure a baseline and a canary live, turn by turn, and judge them.

BASELINE and CANARY are `refimpl`, `mooncake[:PROFILE]`, `URL[,URL...]` of
OpenAI-compatible endpoints, or `group:PATTERN` of an inventory.

Exit codes: 0 PASS, 1 FAIL, 2 usage, 3 INCONCLUSIVE, 4 the harness broke, 5 a fault was
left behind, 128+n ended by signal n.

Examples:

  canary run --baseline refimpl --canary refimpl --canary-python ../branch --out c1

  canary run --baseline mooncake:default --canary mooncake:tuned --out c2 \\
      --scenario suites/scenarios/canary/outage.yaml
"""

_Many = list[str]


def command(
    baseline: Annotated[str, typer.Option(help="what runs today")],
    canary: Annotated[str, typer.Option(help="what shall run tomorrow")],
    out: Annotated[Path, typer.Option(help="directory of the two measurements")],
    baseline_set: Annotated[
        _Many, typer.Option(help="ROLE.FIELD=VALUE of the baseline; repeatable")
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    canary_set: Annotated[
        _Many, typer.Option(help="ROLE.FIELD=VALUE of the canary; repeatable")
    ] = [],  # noqa: B006
    canary_defect: Annotated[
        _Many, typer.Option(help="plant a defect of the reference system")
    ] = [],  # noqa: B006
    canary_failpoint: Annotated[
        _Many, typer.Option(help="plant ROLE:NAME=SPEC in the canary")
    ] = [],  # noqa: B006
    baseline_python: Annotated[
        str, typer.Option(help="checkout or interpreter of the baseline's build")
    ] = "",
    canary_python: Annotated[
        str, typer.Option(help="checkout or interpreter of the canary's build")
    ] = "",
    scenario: Annotated[
        list[Path], typer.Option(help="chaos to play in both arms; repeatable")
    ] = [],  # noqa: B006
    drills: Annotated[
        bool, typer.Option(help="drill laws that only a bad moment shows")
    ] = False,
    requests: Annotated[int, typer.Option(min=2, max=1_000_000)] = 360,
    per_block: Annotated[
        int, typer.Option(min=1, max=10_000, help="requests of one turn")
    ] = 15,
    rate: Annotated[float, typer.Option(min=0.01, help="requests a second")] = 15.0,
    sessions: Annotated[int, typer.Option(min=1, max=100_000)] = 60,
    roam: Annotated[
        float, typer.Option(min=0, max=1, help="share that leaves its session's member")
    ] = 0.5,
    trace: Annotated[
        Path | None, typer.Option(help="a trace file instead of a generated one")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31 - 1)] = None,
    time_scale: Annotated[float, typer.Option(min=0.001, max=100)] = 0.1,
    stores: Annotated[int, typer.Option(min=1, max=1000)] = 4,
    engines: Annotated[int, typer.Option(min=1, max=1000)] = 2,
    rails: Annotated[int, typer.Option(min=1, max=64)] = 2,
    inventory: Annotated[str, typer.Option(help="the hosts of group:PATTERN")] = "",
    arm: Annotated[
        bool, typer.Option(help="really start roles on other machines")
    ] = False,
    model: Annotated[str, typer.Option(help="of endpoints; default: their first")] = "",
    api: Annotated[str, typer.Option(help="completions or chat")] = "completions",
    api_key_env: Annotated[
        str, typer.Option(help="variable that holds the key of endpoints")
    ] = "OPENAI_API_KEY",
    max_tokens: Annotated[int, typer.Option(min=1, max=4096)] = 16,
    policy: Annotated[Path | None, typer.Option(help="a policy file")] = None,
    noise_floor: Annotated[
        Path | None, typer.Option(help="what A/A runs differed by")
    ] = None,
    on_inconclusive: Annotated[
        str, typer.Option(help="block, warn or extend; default: the policy's")
    ] = "",
    early_abort: Annotated[
        bool, typer.Option(help="stop as soon as harm is shown")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="the verdict as JSON on stdout")
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, json, junit, markdown, github or openmetrics",
        ),
    ] = "table",
    quiet: Annotated[
        bool, typer.Option("--quiet", help="no progress on stderr")
    ] = False,
) -> None:
    """See `_HELP`."""

    shown = _form(form, as_json)
    _check_words(api, on_inconclusive)
    sides = (
        side_of(BASELINE, baseline, settings=baseline_set, build=baseline_python),
        side_of(
            CANARY,
            canary,
            settings=canary_set,
            defects=canary_defect,
            failpoints=canary_failpoint,
            build=canary_python,
        ),
    )
    if any(side.kind == GROUP for side in sides) and not arm:
        problem = "roles on other machines are started only when armed"
        raise UsageError(problem, "add --arm")
    chosen = new_seed() if seed is None else seed
    shape = Shape(
        stores=stores,
        engines=engines,
        rails=rails,
        time_scale=time_scale,
        seed=chosen,
        inventory=inventory,
        model=model,
        api=_api(api),
        key=_key(api_key_env),
        max_tokens=max_tokens,
    )
    asked = Asked(
        sides=sides,
        shape=shape,
        out=out,
        requests=requests,
        per_block=per_block,
        rate_per_s=rate,
        sessions=sessions,
        roam=roam,
        trace=trace,
        scenarios=tuple(scenario),
        drills=drills,
        policy=policy,
        floor=noise_floor,
        on_inconclusive=on_inconclusive,
        early_abort=early_abort,
        command=repeated(sys.argv[1:], chosen),
    )

    raise typer.Exit(_run(asked, shown, quiet=quiet))


def new_seed() -> int:
    """A seed that fits every generator and is short enough to type."""
    return random.SystemRandom().randrange(1, 1 << 31)


def repeated(arguments: list[str], seed: int) -> str:
    """The command that does the same once more, its seed included."""
    given = any(word.partition("=")[0] == "--seed" for word in arguments)
    again = arguments if given else [*arguments, "--seed", str(seed)]
    return shlex.join(["canary", *again])


def _run(asked: Asked, form: str, *, quiet: bool) -> int:
    """Measures, judges and shows; a signal is the one ending that is told here.

    Raises:
        ChaosError: For the edge of the command, which knows how errors are told.
    """
    from chaos.canary.judging import forget_answer

    forget_answer(asked.out)
    try:
        result = run_asked(asked, say=_silent if quiet else _tell)
    except Interrupted as interrupted:
        _tell(f"{interrupted}: faults undone, clusters stopped, nothing judged")
        return interrupted.exit_code
    show(asked, result, form)
    _page(asked, result)
    return result.exit_code


def show(asked: Asked, result: GateResult, form: str = "table") -> None:
    """The verdict beside the measurements in every shape, and one of them here."""
    from chaos.canary.judging import write_answer
    from chaos.canary.render import FORMATS
    from chaos.canary.render.table import table
    from chaos.report.terminal import wants_color

    write_answer(asked.out, result, command=asked.command)
    if form == "table":
        color = wants_color(tty=sys.stdout.isatty())
        text = table(result, command=asked.command, color=color)
    else:
        text = FORMATS[form](result, command=asked.command)
    sys.stdout.write(text)
    sys.stdout.flush()
    _tell(f"measurements and verdict in {asked.out}")
    if result.verdict.value == "INCONCLUSIVE" and not result.exit_code:
        _tell("WARNING: INCONCLUSIVE counts as passed, as --on-inconclusive warn says")


def _page(asked: Asked, result: GateResult) -> None:
    """The report that people open."""
    from chaos.report.html.gate import write_gate_report

    write_gate_report(
        result.to_document(),
        asked.directory(BASELINE),
        asked.directory(CANARY),
        asked.out / "report.html",
        command=asked.command,
    )
    _tell(f"report in {asked.out / 'report.html'}")


def _form(form: str, as_json: bool) -> str:
    from chaos.canary.render import FORMATS

    if form not in FORMATS:
        problem = f"--format {form!r} is none"
        raise UsageError(problem, f"there are {', '.join(FORMATS)}")
    return "json" if as_json else form


def _check_words(api: str, on_inconclusive: str) -> None:
    if on_inconclusive not in ("", "block", "warn", "extend"):
        problem = f"--on-inconclusive {on_inconclusive!r}"
        raise UsageError(problem, "use block, warn or extend")
    _api(api)


def _api(text: str) -> Api:
    if text == "completions":
        return "completions"
    if text == "chat":
        return "chat"
    raise UsageError(f"--api {text!r} is not known", "use completions or chat")


def _key(variable: str) -> str:
    key = os.environ.get(variable, "")
    know(key)
    return key


def _tell(line: str) -> None:
    sys.stderr.write(f"canary: {line}\n")
    sys.stderr.flush()


def _silent(_line: str) -> None:
    """Says nothing."""

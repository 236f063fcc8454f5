"""The command `canary`: judge, run, ladder, report, floor."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from chaos.canary.ladder.command import app as ladder
from chaos.errors import ChaosError, UsageError
from chaos.report.redaction import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.canary.judging import Answer

_EXITS = """
\b
Exit codes:
  0  PASS: the canary is shown to be within every limit
  1  FAIL: it is shown to be worse, or an invariant is broken
  2  usage: something cannot be read, or was asked wrongly
  3  INCONCLUSIVE: it could not be told (0 with --on-inconclusive warn)
  4  the harness itself broke
  5  a fault was left behind; run `chaos recover`
  130  interrupted (143 by SIGTERM)
"""
PASS, FAIL, USAGE, INCONCLUSIVE, BROKE, LEFT_BEHIND = range(6)
_LINE_MOST = 2000  # characters of a complaint

app = typer.Typer(
    name="canary",
    help="May this build go on? A verdict over a baseline and a canary.",
    epilog=_EXITS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(ladder, name="ladder")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _examples(*lines: str) -> str:
    shown = "\n".join(f"  {line}" for line in lines)
    return f"\b\nExamples:\n{shown}\n{_EXITS}"


@app.command(
    epilog=_examples(
        "canary judge --baseline out/baseline --canary out/canary",
        "canary judge --baseline b --canary c --policy p.yaml --out verdict",
        "canary judge --prometheus http://prometheus:9090 --from -1h --to now"
        " --queries vllm \\\n      --baseline-selector 'track=\"stable\"'"
        " --canary-selector 'track=\"canary\"' --policy p.yaml",
    )
)
def judge(
    baseline: Annotated[
        Path | None, typer.Option(help="Measurement of what runs today.")
    ] = None,
    canary: Annotated[
        Path | None, typer.Option(help="Measurement of what shall run tomorrow.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="What is asked; a default if not said.")
    ] = None,
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="A server in place of directories.")
    ] = "",
    baseline_selector: Annotated[
        str, typer.Option(metavar="LABELS", help="""E.g. 'track="stable"'.""")
    ] = "",
    canary_selector: Annotated[
        str, typer.Option(metavar="LABELS", help="""E.g. 'track="canary"'.""")
    ] = "",
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="E.g. -1h; unix; ISO 8601.")
    ] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="E.g. now.")] = "",
    queries: Annotated[
        str, typer.Option(help="Names of series: vllm, sglang, or a file.")
    ] = "sglang",
    noise_floor: Annotated[
        Path | None, typer.Option(help="A floor that `canary floor` wrote.")
    ] = None,
    on_inconclusive: Annotated[
        str, typer.Option(help="block, warn or extend; the policy's if not said.")
    ] = "",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, json, junit, markdown, github or openmetrics.",
        ),
    ] = "table",
    as_json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the page and every shape."),
    ] = None,
) -> None:
    """Judges recorded measurements: rows, histogram logs, or a Prometheus server."""
    from chaos.canary.judging import (
        FromPrometheus,
        Question,
        answer,
        forget_answer,
        write_answer,
    )

    if out is not None:
        forget_answer(out)
    form = _format("json" if as_json else form)
    server = FromPrometheus(
        url=prometheus,
        baseline=baseline_selector,
        canary=canary_selector,
        begin=begin,
        end=end,
        queries=queries,
    )
    question = Question(
        baseline=baseline,
        canary=canary,
        server=server if prometheus else None,
        policy=policy,
        noise_floor=noise_floor,
        on_inconclusive=on_inconclusive,
    )
    found = answer(question, now=time.time())
    command = _command()
    _write_text(_rendered(found, form, command))
    if out is not None:
        write_answer(out, found.result, command=command)
        _html(found.result.to_document(), *found.arms, out / "report.html", command)
    _warn(found)
    raise typer.Exit(found.result.exit_code)


@app.command(
    epilog=_examples(
        "canary report out/verdict.json",
        "canary report v.json --baseline b --canary c --out report.html",
    )
)
def report(
    verdict: Annotated[Path, typer.Argument(help="A verdict.json.")],
    baseline: Annotated[
        Path | None, typer.Option(help="Measurement of the baseline, to be drawn.")
    ] = None,
    canary: Annotated[
        Path | None, typer.Option(help="Measurement of the canary, to be drawn.")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="html, or to standard output table, json, junit, markdown, github,"
            " openmetrics.",
        ),
    ] = "html",
    out: Annotated[
        Path | None, typer.Option(help="The page; beside the verdict if not said.")
    ] = None,
) -> None:
    """Shows a verdict again in another shape; judges nothing."""
    from chaos.canary.stored import read_verdict

    result = read_verdict(verdict)
    if form == "html":
        folder = verdict.parent
        arms = (
            baseline or _beside(folder / "baseline"),
            canary or _beside(folder / "canary"),
        )
        page = out or folder / "report.html"
        _html(result.to_document(), *arms, page)
        _write_text(f"{page}\n")
    else:
        from chaos.canary.render import FORMATS

        _write_text(FORMATS[_format(form)](result))


@app.command(
    epilog=_examples("canary floor aa-*/verdict.json --out floor.json"),
)
def floor(
    verdicts: Annotated[list[Path], typer.Argument(help="Of A/A runs; 5 at least.")],
    out: Annotated[Path, typer.Option(help="Where the floor is kept.")],
) -> None:
    """Learns from A/A runs what two equal arms differ by.

    Name the file with --noise-floor, or as noise_floor in a policy.
    """
    from chaos.canary.floor import NoiseFloor
    from chaos.canary.stored import read_verdict

    found = NoiseFloor.from_runs([read_verdict(path) for path in verdicts])
    try:
        found.write(out)
    except OSError as error:
        told = f"{out}: cannot be written: {error.strerror}"
        raise UsageError(told, "choose another --out") from None
    for name, sd in sorted(found.sd.items()):
        _write_text(f"{sd:10.4f}  {name}\n")
    _write_text(f"{out}: of {found.runs} runs\n")


def main(argv: list[str] | None = None) -> int:
    """Runs the command; every error of ours is one line and its own exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["run"] or not arguments or "--help" in arguments[:1]:
        _add_run()
    try:
        with _orderly():
            app(arguments)
    except SystemExit as ended:
        known = isinstance(ended.code, int) or ended.code is None
        return int(ended.code or PASS) if known else BROKE
    except ChaosError as error:
        for line in getattr(error, "lines", (str(error),)):
            _complain(line, error.exit_code)
        return error.exit_code
    except Exception as error:  # the edge of the command: 4 is ours, never 1
        if os.environ.get("CANARY_DEBUG"):
            raise
        return _complain(f"{type(error).__name__}: {error}", BROKE)
    return PASS


@contextmanager
def _orderly() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does, so that no half file stays behind.

    `run` and `ladder` have ways of their own, which they put in place of this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.signal(n, _end) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _add_run() -> None:
    """`canary run` starts clusters; what it needs is loaded only for it."""
    if "run" not in {command.name for command in app.registered_commands}:
        from chaos.canary.run_command import add

        add(app)


def _format(name: str) -> str:
    from chaos.canary.render import FORMATS

    if name not in FORMATS:
        told = f"--format {name!r} is none"
        raise UsageError(told, f"there are {', '.join(FORMATS)}")
    return name


def _rendered(found: Answer, form: str, command: str) -> str:
    from chaos.canary.render import FORMATS
    from chaos.canary.render.table import table
    from chaos.report.terminal import wants_color

    if form == "table":
        color = wants_color(tty=sys.stdout.isatty())
        return table(found.result, command=command, color=color)
    return FORMATS[form](found.result, command=command)


def _html(
    document: dict[str, object],
    baseline: object,
    canary: object,
    out: Path,
    command: str = "",
) -> None:
    from chaos.report.html.gate import write_gate_report

    try:
        write_gate_report(document, baseline, canary, out, command=command)  # type: ignore[arg-type]
    except OSError as error:
        told = f"{out}: cannot be written: {error.strerror}"
        raise UsageError(told, "choose another --out") from None


def _beside(path: Path) -> Path | None:
    return path if path.is_dir() else None


def _warn(found: Answer) -> None:
    """An open verdict that is let through is said where nobody overlooks it."""
    result = found.result
    if result.verdict.value == "INCONCLUSIVE" and not result.exit_code:
        told = "WARNING: INCONCLUSIVE counts as passed, as --on-inconclusive warn says"
        sys.stderr.write(f"canary: {told}\n")


def _command() -> str:
    return shlex.join(["canary", *sys.argv[1:]])


def _write_text(text: str) -> None:
    """A reader that goes away, as `head` does, changes nothing of the verdict."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _quiet_stdout()


def _quiet_stdout() -> None:
    """Nobody reads our output any more; Python would complain again at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _complain(text: str, code: int) -> int:
    line = clean_text(" ".join(text.split()))
    plain = "".join(letter if letter.isprintable() else "?" for letter in line)
    sys.stderr.write(f"canary: {plain[:_LINE_MOST]}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

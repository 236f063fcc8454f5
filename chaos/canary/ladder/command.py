"""`canary ladder`: run, approve, status, rollback, reset."""

from __future__ import annotations

import getpass
import json
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chaos.canary.ladder.climb import Climber, plan_lines
from chaos.canary.ladder.commands import run_command
from chaos.canary.ladder.interrupts import Interrupts
from chaos.canary.ladder.schema import Ladder, digest_of, load_ladder
from chaos.canary.ladder.state import Do, LadderState, Phase, next_step
from chaos.canary.ladder.store import (
    LadderStore,
    begun_ladder,
    check_stages,
    read_state,
)
from chaos.errors import UsageError
from chaos.report.redaction import clean, clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXITS = """
\b
Exit codes:
  0  complete: every stage passed
  1  rolled back: a gate failed, or time was up
  2  usage: the file or the command is wrong
  3  not at the top yet: a stage waits for a person, or its gate could not tell
  4  the ladder itself broke
  5  a rollback failed or was stopped; run `canary ladder rollback`
  128+n  rolled back after signal n (Ctrl-C: 130)
"""

app = typer.Typer(
    name="ladder",
    help="A staged rollout as a file: gate, budget and way back of every stage.",
    epilog=_EXITS,
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(help="The ladder, e.g. ladder.yaml.")]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Where its state is kept; beside the file if not said."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _examples(*lines: str) -> str:
    shown = "\n".join(f"  {line}" for line in lines)
    return f"\b\nExamples:\n{shown}\n{_EXITS}"


@app.command(
    epilog=_examples(
        "canary ladder run ladder.yaml --dry-run", "canary ladder run l.yaml"
    )
)
def run(
    file: File,
    state: State = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every command, run none.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Goes on from where the ladder stands, until the top, a stop or the way back."""
    ladder, text = load_ladder(file)
    folder = _folder(file, ladder, state)
    if dry_run:
        _dry_run(ladder, text, read_state(folder), folder, as_json=as_json)
        return
    with LadderStore(folder) as store, Interrupts() as interrupts:
        found = read_state(folder)
        if found is None:
            found = store.begin(ladder, text, cwd=Path.cwd())
        _same(found, text, file, folder)
        check_stages(folder, found, ladder)
        climber = _climber(ladder, store, found, interrupts)
        _end(ladder, climber.climb(), file, as_json=as_json)


@app.command(epilog=_examples("canary ladder approve l.yaml 5% --reason 'looks right'"))
def approve(
    file: File,
    stage: Annotated[str, typer.Argument(help="The stage that waits.")],
    by: Annotated[str, typer.Option(help="Who; the user's name if not said.")] = "",
    reason: Annotated[str, typer.Option(help="Why; it is kept.")] = "",
    state: State = None,
    as_json: Json = False,
) -> None:
    """A person says that the stage that waits may begin. Begins nothing itself."""
    with _begun(file, state) as (store, ladder, found):
        step = next_step(ladder, found)
        if step.do is not Do.APPROVE or step.stage != stage:
            waits = step.stage if step.do is Do.APPROVE else "no stage"
            told = f"stage {stage!r} does not wait for approval"
            raise UsageError(told, f"{waits} does")
        found = found.with_stage(
            stage,
            approved_by=_clean_word(by or _user()),
            approved_at=time.time(),
            approved_why=_clean_word(reason),
        )
        store.write(found)
    _show(ladder, found, as_json=as_json)


@app.command(epilog=_examples("canary ladder status ladder.yaml --json"))
def status(file: File, state: State = None, as_json: Json = False) -> None:
    """Shows where the ladder stands; ends with the code that `run` would end with."""
    ladder, text = load_ladder(file)
    folder = _folder(file, ladder, state)
    found = read_state(folder)
    if found is None:
        found = LadderState.fresh(ladder, digest=digest_of(text), folder="")
    else:
        ladder = begun_ladder(folder, found)
    _show(ladder, found, as_json=as_json)
    raise typer.Exit(found.exit_code)


@app.command(
    epilog=_examples("canary ladder rollback l.yaml --reason 'customer calls'")
)
def rollback(
    file: File,
    reason: Annotated[str, typer.Option(help="Why; it is kept.")] = "asked for",
    state: State = None,
    as_json: Json = False,
) -> None:
    """Takes every stage back that was begun, the last one first; tries again what
    failed to be taken back. Uses the ladder as it was when it was begun.
    """
    with _begun(file, state) as (store, ladder, found), Interrupts() as interrupts:
        climber = _climber(ladder, store, found, interrupts)
        _end(ladder, climber.go_back(_clean_word(reason)), file, as_json=as_json)


@app.command(epilog=_examples("canary ladder reset ladder.yaml"))
def reset(file: File, state: State = None) -> None:
    """Forgets a ladder that is complete or rolled back, so that it can begin anew."""
    with _begun(file, state) as (store, _, found):
        if found.outcome not in ("complete", "rolled back", "not begun"):
            told = f"the ladder is {found.outcome}: something of it is live"
            raise UsageError(told, "take it back first: canary ladder rollback")
        store.forget()
    _line("forgotten; the next run begins at the first stage")


def _climber(
    ladder: Ladder, store: LadderStore, state: LadderState, interrupts: Interrupts
) -> Climber:
    return Climber(
        ladder=ladder,
        store=store,
        state=state,
        run=run_command,
        interrupts=interrupts,
        now=time.time,
        clock=time.monotonic,
        say=_say,
    )


@contextmanager
def _begun(
    file: Path, state: Path | None
) -> Iterator[tuple[LadderStore, Ladder, LadderState]]:
    """A ladder that was begun, as it was then, and locked."""
    folder = state or _folder(file, load_ladder(file)[0], None)
    if not folder.is_dir():
        raise UsageError(f"{folder}: this ladder was not begun", _fix_run(file))
    with LadderStore(folder) as store:
        found = read_state(folder)
        if found is None:
            raise UsageError(f"{folder}: this ladder was not begun", _fix_run(file))
        yield store, begun_ladder(folder, found), found


def _fix_run(file: Path) -> str:
    return f"begin it: canary ladder run {file}"


def _same(state: LadderState, text: str, file: Path, folder: Path) -> None:
    if state.digest != digest_of(text):
        told = f"{file}: is not the ladder that was begun ({folder / 'ladder.yaml'})"
        fix = "put it back, or end the old one: canary ladder rollback, then reset"
        raise UsageError(told, fix)


def _folder(file: Path, ladder: Ladder, state: Path | None) -> Path:
    """Where its state is kept.

    Raises:
        UsageError: There, the copy of the ladder would be the ladder itself.
    """
    if state is not None and (state / "ladder.yaml").resolve() == file.resolve():
        told = f"--state {state}: holds {file}, where its copy would be kept"
        raise UsageError(told, "name a folder that is only for the state")
    return state or file.resolve().parent / f".{ladder.name}.ladder"


def _dry_run(
    ladder: Ladder,
    text: str,
    state: LadderState | None,
    folder: Path,
    *,
    as_json: bool,
) -> None:
    """Prints what would run; writes and runs nothing."""
    fresh = LadderState.fresh(ladder, digest=digest_of(text), folder=str(Path.cwd()))
    if state is not None and state.digest != digest_of(text):
        raise UsageError("this ladder changed since it was begun", f"see {folder}")
    if state is not None:
        check_stages(folder, state, ladder)
    step = next_step(ladder, state or fresh)
    if as_json:
        stages = [stage.model_dump(mode="json") for stage in ladder.stages]
        _json(
            {"ladder": ladder.name, "next": _next(step.do, step.stage)}
            | {"stages": stages}
        )
        return
    for line in plan_lines(ladder, state):
        _line(line)
    missing = _not_here(ladder)
    if missing:
        _line(f"not found on the PATH here: {', '.join(missing)}")
    _line(f"next: {_next(step.do, step.stage)}; dry run, nothing was done")


def _not_here(ladder: Ladder) -> list[str]:
    """Programs of the ladder that this machine would not find."""
    named = dict.fromkeys(
        command[0]
        for stage in ladder.stages
        for command in (stage.apply, stage.gate, stage.undo)
        if command
    )
    return [name for name in named if shutil.which(name) is None]


def _next(do: Do, stage: str) -> str:
    return f"{do.value} {stage}".strip()


def _end(ladder: Ladder, state: LadderState, file: Path, *, as_json: bool) -> None:
    """Says where it stands and what a person may do, and ends with its code."""
    _show(ladder, state, as_json=as_json)
    step = next_step(ladder, state)
    if step.do is Do.APPROVE:
        asked = ladder.stage(step.stage).approve
        _say(f"{step.stage} waits for a person: {asked}")
        _say(
            f"canary ladder approve {file} {step.stage} --reason '...'; then run again"
        )
    elif state.outcome == "rolled back":
        _say(f"canary ladder reset {file} lets it begin anew")
    elif state.outcome == "rollback failed":
        _say(f"canary ladder rollback {file} tries again")
    raise typer.Exit(state.exit_code)


def _show(ladder: Ladder, state: LadderState, *, as_json: bool) -> None:
    if as_json:
        step = next_step(ladder, state)
        _json({**state.to_json(), "next": _next(step.do, step.stage)})
        return
    why = f" ({state.failed})" if state.failed else ""
    _line(f"ladder {state.name}: {state.outcome}{why}")
    for record in state.stages:
        by = f", approved by {record.approved_by}" if record.approved_by else ""
        told = (
            f": {record.told}" if record.told and record.phase is not Phase.NEW else ""
        )
        _line(f"  {record.phase.value:11} {record.name}{told}{by}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        told = "nobody knows who you are here"
        raise UsageError(told, "say who approves: --by NAME") from None


def _clean_word(text: str) -> str:
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return clean_text(plain)[:200]


def _json(document: Any) -> None:
    sys.stdout.write(json.dumps(clean(document), indent=2) + "\n")
    sys.stdout.flush()


def _line(text: str) -> None:
    sys.stdout.write(f"{clean_text(text)}\n")
    sys.stdout.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"ladder: {clean_text(text)}\n")
    sys.stderr.flush()

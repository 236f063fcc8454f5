"""The state of a ladder on disk: written whole or not at all, held by one process.

A directory: `state.json`, `ladder.yaml` (a copy of the file that was begun, readable by
its owner only, so that the way back exists whatever becomes of the original), `lock`.
The lock is a flock, so it ends with its holder, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

from chaos.canary.ladder.schema import digest_of, parse_ladder
from chaos.canary.ladder.state import LadderState
from chaos.errors import UsageError
from chaos.report.files import write_json

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from chaos.canary.ladder.schema import Ladder

MAX_STATE_BYTES = 1 << 20


class LadderStore:
    """A directory that is locked while this is open; used with `with`.

    Raises:
        UsageError: Another process holds it, or it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor = -1

    def __enter__(self) -> LadderStore:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self.folder / "lock", flags, 0o600)
        except OSError as error:
            told = f"{self.folder}: the ladder's state cannot be kept: {error.strerror}"
            raise UsageError(told, "name another folder with --state") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip()
            self._close()
            told = f"{self.folder}: process {holder or '?'} is on this ladder"
            raise UsageError(told, "wait until it ends, or end it") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def begin(self, ladder: Ladder, text: str, *, cwd: Path) -> LadderState:
        """A fresh state; the copy of the file is there before the state is."""
        state = LadderState.fresh(ladder, digest=digest_of(text), folder=str(cwd))
        copy = self.folder / "ladder.yaml"
        temporary = copy.with_name(f".ladder.yaml.{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(copy)
        self.write(state)
        return state

    def write(self, state: LadderState) -> None:
        """The state, on disk when this returns."""
        write_json(self.folder / "state.json", state.to_json())
        directory = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def forget(self) -> None:
        """Removes what is known; the next run begins at the first stage."""
        for name in ("state.json", "ladder.yaml"):
            (self.folder / name).unlink(missing_ok=True)


def read_state(folder: Path) -> LadderState | None:
    """What stands on disk; None when nothing does. Needs no lock.

    Raises:
        UsageError: There is something, and it is no state of a ladder, or its copy of
            a ladder without a state.
    """
    path = folder / "state.json"
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            raise ValueError("it is too long")
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        return LadderState.from_json(document)
    except FileNotFoundError:
        _refuse_lost(folder)
        return None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "name it with --state") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        told = f"{path}: is no state of a ladder: {error}"
        fix = "look which stage is live, then take the file away"
        raise UsageError(told, fix) from None


def _refuse_lost(folder: Path) -> None:
    """A ladder was never begun here; or it was, and where it stands is lost.

    Raises:
        UsageError: It is lost: a fresh start would begin beside what is live.
    """
    copy = folder / "ladder.yaml"
    if copy.exists():
        told = f"{folder / 'state.json'}: is gone, and {copy} says a ladder was begun"
        fix = f"look which stage is live, take it back, then take {copy} away"
        raise UsageError(told, fix)


def begun_ladder(folder: Path, state: LadderState) -> Ladder:
    """The ladder as it was when it was begun.

    Raises:
        UsageError: Its copy is gone or was changed.
    """
    path = folder / "ladder.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8 text"
        raise UsageError(f"{path}: {reason}", "put the ladder's file there") from None
    if digest_of(text) != state.digest:
        told = f"{path}: is not the ladder that was begun"
        raise UsageError(told, "put the ladder's file there as it was")
    ladder = parse_ladder(text, str(path))
    check_stages(folder, state, ladder)
    return ladder


def check_stages(folder: Path, state: LadderState, ladder: Ladder) -> None:
    """The state tells of the stages of the ladder, of all and of no others.

    Raises:
        UsageError: It does not; where the ladder stands is not known.
    """
    known = [record.name for record in state.stages]
    if known != [stage.name for stage in ladder.stages]:
        told = f"{folder / 'state.json'}: tells of the stages {', '.join(known)!r}"
        fix = "look which stage is live, then take the folder away"
        raise UsageError(f"{told}, which are not the ladder's", fix)

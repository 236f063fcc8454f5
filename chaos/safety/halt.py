"""The lever: one command stops every running harness and forbids new ones.

`chaos halt --reason TEXT` writes a file; every harness looks at it once a second, takes
its faults back first and ends. New runs refuse until somebody says `chaos resume`: by
hand, never by a timer (AWS FIS' safety lever; asked for in Chaos Mesh#2423).
The file lies in the state directory of the user, and with an inventory also on every
host, where harnesses of other controllers see it. A lever that cannot be read counts
as pulled: when in doubt nothing is broken.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from chaos.errors import UsageError
from chaos.safety.ledger import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

FILE = "halt.json"
HOST_DIRECTORY = "/run/moonquake"
POLL_S = 1.0
_HOST_TIMEOUT_S = 5.0
_MAX_REASON = 500
_REMEDY = "say `chaos resume` when it may go on"


class Halted(UsageError):
    """The lever is pulled: a run does not start. `chaos resume` lets it, by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """Who stopped everything, when and why."""

    reason: str
    by: str
    at: str
    where: str

    def __str__(self) -> str:
        return f"halted by {self.by} at {self.at} on {self.where}: {self.reason}"


class Lever(Protocol):
    """One place where the lever lies."""

    where: str

    def read(self) -> Pulled | None: ...
    def pull(self, pulled: Pulled) -> None: ...
    def release(self) -> bool:
        """Whether it had been pulled."""
        ...


class LocalLever:
    """The lever in the state directory of this user, or at a path that many share."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_directory() / FILE
        self.where = str(self.path)

    def read(self) -> Pulled | None:
        """What is written there, None when nobody pulled."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            return _unreadable(self.where, str(error))
        return pulled_of(text, self.where)

    def pull(self, pulled: Pulled) -> None:
        """Writes it whole or not at all; a second pull replaces the first."""
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        temporary.write_text(text_of(pulled), encoding="utf-8")
        temporary.replace(self.path)

    def release(self) -> bool:
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True


class Completed(Protocol):
    """How a command on a host ended."""

    @property
    def rc(self) -> int: ...
    @property
    def stdout(self) -> str | bytes: ...
    @property
    def stderr(self) -> str | bytes: ...


class RunsText(Protocol):
    """An agent, as far as a lever needs it."""

    def run(
        self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = ...
    ) -> Completed: ...


class RunsBytes(Protocol):
    """An SSH session, as far as a lever needs it."""

    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float
    ) -> Completed: ...


class HostLever:
    """The lever on a host, read and written by plain commands.

    Every one of them may be repeated, so a lost reply does no harm.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[list[str], str], Completed],
        *,
        directory: str = HOST_DIRECTORY,
    ) -> None:
        self.path = f"{directory}/{FILE}"
        self.where = f"{name}:{self.path}"
        self._directory = directory
        self._run = run

    @classmethod
    def of_agent(cls, name: str, agent: RunsText) -> Self:
        """Through the agent of a run."""
        return cls(
            name,
            lambda argv, stdin: agent.run(argv, stdin=stdin, timeout_s=_HOST_TIMEOUT_S),
        )

    @classmethod
    def of_session(
        cls, name: str, session: RunsBytes, elevated: Callable[[list[str]], list[str]]
    ) -> Self:
        """Through an SSH session; `elevated` makes a command root's, where needed."""
        return cls(
            name,
            lambda argv, stdin: session.run(
                elevated(argv), stdin=stdin.encode(), timeout_s=_HOST_TIMEOUT_S
            ),
        )

    def read(self) -> Pulled | None:
        """What is written there; a file that is there and cannot be read is pulled."""
        if self._run(["test", "-e", self.path], "").rc:
            return None
        found = self._run(["cat", self.path], "")
        if found.rc:  # released in between, or not to be read
            missing = self._run(["test", "-e", self.path], "").rc
            return None if missing else _unreadable(self.where, _text(found.stderr))
        return pulled_of(_text(found.stdout), self.where)

    def pull(self, pulled: Pulled) -> None:
        temporary = f"{self.path}.new"
        self._must(["mkdir", "-p", "-m", "0700", self._directory])
        self._must(["tee", temporary], text_of(pulled))
        self._must(["mv", "-f", temporary, self.path])

    def release(self) -> bool:
        there = self._run(["test", "-e", self.path], "").rc == 0
        if there:
            self._must(["rm", "-f", self.path])
        return there

    def _must(self, argv: list[str], stdin: str = "") -> None:
        done = self._run(argv, stdin)
        if done.rc:
            problem = f"{self.where}: {' '.join(argv)} ended with {done.rc}"
            raise UsageError(f"{problem}: {_text(done.stderr).strip()}")


class Levers:
    """Several places of one lever: pulled when any of them is.

    A place that cannot be reached is no reason to stop by itself, nor to go on: it is
    remembered in `unreachable`, and the others decide.
    """

    def __init__(self, levers: Sequence[Lever]) -> None:
        self.levers = tuple(levers)
        self.unreachable: dict[str, str] = {}

    def read(self) -> Pulled | None:
        """The first place that is pulled; every place is asked."""
        self.unreachable = {}
        found: Pulled | None = None
        for lever in self.levers:
            try:
                found = found or lever.read()
            except Exception as error:  # told, and the next place is asked
                self.unreachable[lever.where] = f"{type(error).__name__}: {error}"
        return found

    def refuse(self) -> None:
        """Does not let a run start while the lever is pulled.

        Raises:
            Halted: It is pulled.
        """
        pulled = self.read()
        if pulled is not None:
            raise Halted(str(pulled), _REMEDY)


class LeverPoll:
    """Asks the lever at most once a second; cheap to call from any loop."""

    def __init__(
        self,
        levers: Levers,
        *,
        every_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._levers = levers
        self._every_s = every_s
        self._clock = clock
        self._next_s = float("-inf")
        self.pulled: Pulled | None = None

    def __call__(self) -> Pulled | None:
        """Who pulled, None while nobody did. Once pulled it stays so for this run."""
        now_s = self._clock()
        if self.pulled is None and now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self.pulled = self._levers.read()
        return self.pulled


class LeverWatch:
    """A thread that looks once a second and calls back once, for loops not ours.

    A test of a suite may sit anywhere: the callback of the plugin sends this process
    SIGTERM, whose handler unwinds through every fixture, faults first.
    """

    def __init__(
        self,
        levers: Levers,
        on_pulled: Callable[[Pulled], object],
        *,
        every_s: float = POLL_S,
    ) -> None:
        self._poll = LeverPoll(levers, every_s=0.0)
        self._on_pulled = on_pulled
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._body, name="lever", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread; safe to call twice, and from the callback."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._every_s + _HOST_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def _body(self) -> None:
        while not self._ended.wait(self._every_s):
            pulled = self._poll()
            if pulled is not None:
                self._on_pulled(pulled)
                return


def pull(reason: str, levers: Sequence[Lever]) -> tuple[Pulled, dict[str, str]]:
    """Pulls the lever everywhere, the near place first: (what was written, failures).

    Raises:
        UsageError: There is no reason: whoever is stopped must know why.
    """
    words = " ".join(reason.split())[:_MAX_REASON]
    if not words:
        raise UsageError("a halt needs a reason", "chaos halt --reason TEXT")
    pulled = Pulled(
        reason=words,
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        where="",
    )
    return pulled, _each(levers, lambda lever: lever.pull(pulled))


def release(levers: Sequence[Lever]) -> tuple[list[str], dict[str, str]]:
    """Lets go everywhere: (places that had been pulled, failures)."""
    released: list[str] = []

    def let_go(lever: Lever) -> None:
        if lever.release():
            released.append(lever.where)

    return released, _each(levers, let_go)


def text_of(pulled: Pulled) -> str:
    row = {key: value for key, value in asdict(pulled).items() if key != "where"}
    return json.dumps(row) + "\n"


def pulled_of(text: str, where: str) -> Pulled:
    """Reads a lever; whatever is written there, it is pulled."""
    try:
        row: dict[str, Any] = json.loads(text)
        return Pulled(
            reason=str(row["reason"]), by=str(row["by"]), at=str(row["at"]), where=where
        )
    except (ValueError, KeyError, TypeError):
        return _unreadable(where, "it is not one of ours")


def _each(levers: Sequence[Lever], act: Callable[[Lever], object]) -> dict[str, str]:
    """Does it at every place, whatever fails: {place: why not}."""
    failed: dict[str, str] = {}
    for lever in levers:
        try:
            act(lever)
        except Exception as error:  # the other places still count
            failed[lever.where] = f"{type(error).__name__}: {error}"
    return failed


def _unreadable(where: str, why: str) -> Pulled:
    return Pulled(
        reason=f"the lever cannot be read ({why.strip()})",
        by="somebody",
        at="an unknown time",
        where=where,
    )


def _text(output: str | bytes) -> str:
    return output if isinstance(output, str) else output.decode(errors="replace")

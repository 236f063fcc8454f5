"""The controller's end of an agent: calls with deadlines, made at most once.

A call has one id for its whole life. When a connection is lost, before or after the
request went out, the call asks again over a new connection with the same id, and the
agent answers from memory if it has executed it. So a call that returns was executed
exactly once, and one that raises `HostUnreachable` at most once: read the state
(`fault`, `role`) before doing anything about it.

Each connection carries one call at a time; a few are kept for the next ones. That
needs no reading thread, and a call that waits (`wait_line`) never holds up a renewal.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from chaos.errors import AgentError, HostUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

MARGIN_S = 20.0
"""Beyond what a call takes: a connection that died in silence costs one attempt, the
next finds its transport dead as well, the third dials."""
ATTEMPT_S = 4.0
CONNECT_S = 8.0
RENEW_S = 10.0
HEAL_S = 60.0
ARM_S = 30.0
ANSWER_BYTES = 16 << 20
IDLE_CHANNELS = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class AgentGone(ConnectionError):
    """Nobody serves this run on the host any more, and nobody will again."""


class Channel(Protocol):
    """Bytes to and from an agent; what goes wrong is an `OSError`."""

    def send(self, data: bytes, *, timeout_s: float) -> None: ...

    def recv(self, size: int, *, timeout_s: float) -> bytes:
        """Some bytes; empty at the end of the connection."""
        ...

    def close(self) -> None: ...


class Connector(Protocol):
    """How an agent is started on a host, and reached there."""

    name: str

    def start(self, *, run: str, ttl_s: float, controller: str) -> None:
        """Starts the agent of a run; UsageError when another run holds the host."""
        ...

    def connect(self, *, timeout_s: float) -> Channel:
        """A new connection.

        Raises:
            AgentGone: There is no such agent any more.
            OSError: The host could not be reached.
        """
        ...

    def status(self) -> list[dict[str, Any]]:
        """What the ledgers on the host say, also without an agent."""
        ...

    def recover(self, run: str = "") -> list[dict[str, Any]]:
        """Heals what dead agents left; the rows say what."""
        ...

    def close(self) -> None:
        """Lets go of what was held to reach the host."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who answers."""

    version: int
    run: str
    pid: int
    warden: int
    boot_id: str
    hostname: str
    kernel: str
    ttl_s: float
    expires_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command on a host ended; `rc` is negative after a signal."""

    rc: int
    stdout: str
    stderr: str
    timed_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProcess:
    """A process that an agent started: its pid is only good with its start ticks."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleState:
    """A role as its host sees it; `pid` is 0 when it was never started there."""

    alive: bool
    pid: int
    start_ticks: int
    rc: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """A renewal; `failed` are faults whose own renewal failed, and why."""

    expires_in_s: float
    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultStatus:
    """A fault as its host sees it; state "unknown": nothing was done in its name.

    `since` is seconds of the epoch on the host's clock; `results` are what each step
    answered (a fill its bytes, a child its pid).
    """

    fault_id: str
    state: str
    kind: str = ""
    target: str = ""
    since: float = 0.0
    steps: int = 0
    steps_done: int = 0
    detail: str = ""
    residual: str = ""
    expires_in_s: float | None = None
    results: list[dict[str, Any]] = field(default_factory=list)


class Agent:
    """One method an operation of the agent on one host; safe for several threads.

    Every method raises `HostUnreachable` when there was no answer within its deadline,
    and `AgentError` when the agent refused or failed.

    Args:
        connector: Starts and reaches the agent.
        clock: Seconds, for deadlines.
        wait: Sleeps between attempts to connect.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = connector.name
        self.connector = connector
        self.run_id = ""
        self._clock = clock
        self._wait = wait
        self._client = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._idle: list[Channel] = []
        self._closed = False

    def start(self, *, run: str, ttl_s: float, controller: str = "") -> Self:
        """Starts the agent; it ends by itself `ttl_s` after the last renewal.

        Raises:
            UsageError: Another run holds the host; the message names it.
        """
        self.run_id = run
        self.connector.start(run=run, ttl_s=ttl_s, controller=controller)
        return self

    def hello(self) -> Hello:
        return Hello(**self.call("hello"))

    def renew(self, ttl_s: float, *, timeout_s: float = RENEW_S) -> Renewed:
        """Moves the end of every lease on the host to `ttl_s` from now."""
        return Renewed(**self.call("renew", {"ttl_s": ttl_s}, within_s=timeout_s))

    def run(
        self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 5.0
    ) -> CommandResult:
        """Runs a command that only reads; changes go through `arm`."""
        fields = {"argv": list(argv), "stdin": stdin, "timeout_s": timeout_s}
        return CommandResult(**self.call("run", fields, expect_s=timeout_s))

    def probe(self) -> dict[str, Any]:
        """What the host can do; `why_not` has a reason for what it cannot."""
        return self.call("probe", expect_s=30.0)

    def arm(
        self,
        fault_id: str,
        *,
        kind: str,
        target: str,
        steps: Sequence[Mapping[str, Any]],
        ttl_s: float = 0.0,
        confirm_s: float = 0.0,
    ) -> list[dict[str, Any]]:
        """Breaks something: each step is on the host's disk before it runs.

        Args:
            fault_id: Names the fault; one that was armed or disarmed before is refused.
            kind: Of fault, for people.
            target: What it acts on, for people.
            steps: As `agent.py` describes them; one that fails undoes those before it.
            ttl_s: A lease of its own, extended by every renewal; 0 for the run's alone.
            confirm_s: Heals after so long unless `confirm` comes; 0 for no such thing.

        Returns:
            What each step answered.
        """
        fields: dict[str, Any] = {"fault_id": fault_id, "kind": kind, "target": target}
        fields["steps"] = [dict(step) for step in steps]
        if ttl_s:
            fields["ttl_s"] = ttl_s
        if confirm_s:
            fields["confirm_s"] = confirm_s
        answers: list[dict[str, Any]] = self.call(
            "arm", fields, expect_s=ARM_S + _longest(fields["steps"])
        )["steps"]
        return answers

    def confirm(self, fault_id: str) -> None:
        """Keeps a fault that was armed with `confirm_s`."""
        self.call("confirm", {"fault_id": fault_id})

    def disarm(self, fault_id: str) -> str:
        """Undoes a fault; returns what is left of it, "" when nothing is."""
        answer = self.call("disarm", {"fault_id": fault_id}, expect_s=HEAL_S)
        return str(answer["residual"])

    def fault(self, fault_id: str) -> FaultStatus:
        return FaultStatus(**self.call("fault", {"fault_id": fault_id}))

    def faults(self) -> list[FaultStatus]:
        return [FaultStatus(**row) for row in self.call("faults")["faults"]]

    def spawn(
        self,
        role: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
    ) -> RoleProcess:
        """Starts a role that dies with the agent; `env` is added to the agent's."""
        fields = {"role": role, "argv": list(argv), "env": dict(env or {}), "cwd": cwd}
        return RoleProcess(**self.call("spawn", fields))

    def role(self, role: str) -> RoleState:
        return RoleState(**self.call("role", {"role": role}))

    def wait_line(self, role: str, marker: str, *, timeout_s: float) -> str:
        """The first line since its start in which a role writes the marker.

        Raises:
            AgentError: It ended or was late; `detail` has reason, rc and tail (stderr).
        """
        fields = {"role": role, "marker": marker, "timeout_s": timeout_s}
        return str(self.call("wait_line", fields, expect_s=timeout_s)["line"])

    def tail(self, role: str, *, size_bytes: int = 4096) -> tuple[str, str]:
        """The end of a role's output and of its errors."""
        answer = self.call("tail", {"role": role, "bytes": size_bytes})
        return str(answer["out"]), str(answer["err"])

    def stop(self, role: str, *, timeout_s: float) -> int:
        """Ends a role orderly, in the end by force; returns its exit code."""
        fields = {"role": role, "timeout_s": timeout_s}
        return int(self.call("stop", fields, expect_s=timeout_s)["rc"])

    def shutdown(self) -> str:
        """Heals everything, ends the roles and the agent; returns what is left.

        An agent that is gone already is asked for by its ledger: no ledger, nothing
        left.
        """
        try:
            return str(self.call("shutdown", expect_s=HEAL_S)["residual"])
        except HostUnreachable:
            rows = self.connector.status()
            left = [row for row in rows if row.get("run") == self.run_id]
            if any(row.get("alive") for row in left):
                raise
            return "; ".join(_left_in(row) for row in left)

    def close(self) -> None:
        """Closes the connections; the agent goes on until its lease ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()
        self.connector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def call(
        self,
        op: str,
        fields: Mapping[str, Any] | None = None,
        *,
        expect_s: float = 0.0,
        within_s: float | None = None,
    ) -> dict[str, Any]:
        """Makes one request.

        Args:
            op: The operation, as `agent.py` names it.
            fields: Its arguments.
            expect_s: How long it may take on the host.
            within_s: The deadline of the whole call, attempts included; by default
                what is expected and a margin.
        """
        total_s = expect_s + MARGIN_S if within_s is None else within_s
        request_id = f"{self._client}:{next(self._numbers)}"
        request = {"id": request_id, "op": op, **(fields or {})}
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        answer = self._answer(op, line, request_id, expect_s + ATTEMPT_S, total_s)
        if answer.get("ok"):
            result: dict[str, Any] = answer["result"]
            return result
        raise AgentError(
            host=self.name,
            op=op,
            reason=str(answer.get("error")),
            detail=answer.get("detail") or {},
        )

    def _answer(
        self, op: str, line: bytes, request_id: str, attempt_s: float, total_s: float
    ) -> dict[str, Any]:
        deadline = self._clock() + total_s
        pause_s, problem = _FIRST_PAUSE_S, ""
        while True:
            left_s = deadline - self._clock()
            if left_s <= 0:
                reason = f"no answer within {total_s:g} s"
                if problem:
                    reason += f" ({problem})"
                raise HostUnreachable(host=self.name, op=op, reason=reason)
            try:
                return self._attempt(line, request_id, min(attempt_s, left_s))
            except AgentGone as error:
                raise HostUnreachable(
                    host=self.name, op=op, reason=str(error), gone=True
                ) from error
            except (OSError, ValueError) as error:
                problem = str(error) or type(error).__name__
            self._wait(max(0.0, min(pause_s, deadline - self._clock())))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _attempt(
        self, line: bytes, request_id: str, timeout_s: float
    ) -> dict[str, Any]:
        """One exchange over one connection, which is kept only when all went well."""
        deadline = self._clock() + timeout_s
        channel = self._channel(min(CONNECT_S, timeout_s))
        try:
            channel.send(line, timeout_s=max(0.001, deadline - self._clock()))
            answer = self._receive(channel, deadline)
            if answer.get("id") != request_id:
                message = f"answer to {answer.get('id')}: {answer.get('error', '')}"
                raise ValueError(message)
        except BaseException:
            channel.close()
            raise
        self._keep(channel)
        return answer

    def _receive(self, channel: Channel, deadline: float) -> dict[str, Any]:
        data = bytearray()
        while not data.endswith(b"\n"):
            left_s = deadline - self._clock()
            if left_s <= 0:
                raise TimeoutError("the answer is late")
            chunk = channel.recv(1 << 16, timeout_s=left_s)
            if not chunk:
                raise ConnectionResetError("the connection ended before the answer")
            data += chunk
            if len(data) > ANSWER_BYTES:
                raise ValueError("the answer is too long")
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ValueError("the answer is not an object")
        return answer

    def _channel(self, timeout_s: float) -> Channel:
        with self._lock:
            if self._closed:
                raise AgentGone("the link is closed")
            if self._idle:
                return self._idle.pop()
        return self.connector.connect(timeout_s=timeout_s)

    def _keep(self, channel: Channel) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_CHANNELS:
                self._idle.append(channel)
                return
        channel.close()


def _longest(steps: Sequence[Mapping[str, Any]]) -> float:
    """Seconds that the actions of steps may take by their own deadlines."""
    times = [
        float((step.get(field) or {}).get("timeout_s", 0.0))
        for step in steps
        for field in ("do", "undo")
    ]
    return sum(times)


def _left_in(row: Mapping[str, Any]) -> str:
    """What the ledger of a dead agent still names."""
    faults = [f"{fault['fault_id']}: {fault['state']}" for fault in row["faults"]]
    return ", ".join(faults) or f"the ledger of {row['run']} is still there"

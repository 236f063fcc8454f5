"""How an agent is started and reached: in a namespace of this machine, or over SSH.

Nothing here acts on a host but by starting `agent.py` there and by talking to it.
What SSH needs (paramiko) is imported when a session is used, not for namespaces.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import HarnessError, HostUnreachable, UsageError
from chaos.hosts.link import AgentGone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inventory.channel import Channel as Stream
    from inventory.ssh import Completed, SshSession

AGENT_PROGRAM = Path(__file__).with_name("agent.py")
DEFAULT_STATE_DIR = "/run/moonquake"
START_TIMEOUT_S = 30.0
RECOVER_TIMEOUT_S = 120.0
_BOOT = (
    "import sys;s=sys.stdin.buffer.read();"
    "g={'__name__':'__main__','SOURCE':s};exec(compile(s,'agent.py','exec'),g)"
)
_NO_AGENT = ("no agent at ", "can't open file")
_BUSY, _RESIDUE = "busy", "residue"


class UnixChannel:
    """A connection to the socket of an agent."""

    def __init__(self, path: str, *, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
            self._socket.close()
            raise AgentGone(f"no agent serves {path} any more") from error
        except BaseException:
            self._socket.close()
            raise

    def send(self, data: bytes, *, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def recv(self, size: int, *, timeout_s: float) -> bytes:
        self._socket.settimeout(timeout_s)
        return self._socket.recv(size)

    def close(self) -> None:
        self._socket.close()


class NamespaceConnector:
    """An agent on this machine, in a namespace or in none.

    Args:
        name: Of the host.
        enter: The command in front of another that runs it in the namespace, e.g.
            `("nsenter", "--net=/proc/7/fd/5", "--")`; empty for this very namespace.
        state_dir: Of the host, absolute; each host needs one of its own.
        python: The interpreter that runs the agent.
    """

    def __init__(
        self,
        name: str,
        *,
        state_dir: str,
        enter: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        self.name = name
        self.state_dir = state_dir
        self.pid = 0
        self.warden = 0
        self._enter = tuple(enter)
        self._python = python
        self._socket = ""

    def start(self, *, run: str, ttl_s: float, controller: str) -> None:
        words = _serve_words(run, self.state_dir, ttl_s, controller)
        done = self._program(words, START_TIMEOUT_S)
        ready = _ready(self.name, done.stdout, done.stderr)
        self.pid, self.warden = int(ready["pid"]), int(ready["warden"])
        self._socket = str(ready["socket"])

    def connect(self, *, timeout_s: float) -> UnixChannel:
        """Through the agent's own view of the file system: it may have its own /run."""
        if not self._socket:
            raise AgentGone("no agent was started")
        view = f"/proc/{self.pid}/root" if self._enter else ""
        return UnixChannel(view + self._socket, timeout_s=timeout_s)

    def status(self) -> list[dict[str, Any]]:
        words = ["status", "--state-dir", self.state_dir]
        return _rows(self._program(words, START_TIMEOUT_S).stdout)

    def recover(self, run: str = "") -> list[dict[str, Any]]:
        words = ["recover", "--state-dir", self.state_dir, "--run", run]
        return _rows(self._program(words, RECOVER_TIMEOUT_S).stdout)

    def close(self) -> None:
        """Nothing is held between connections."""

    def _program(
        self, words: Sequence[str], timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        argv = [*self._enter, self._python, "-I", str(AGENT_PROGRAM), *words]
        try:
            return subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            message = f"cannot run the agent on {self.name}: {error}"
            raise HarnessError(message) from error


class SshConnector:
    """An agent on a host of the inventory: sent over stdin, reached through its relay.

    A start whose answer was lost is not repeated: the host is asked whether the agent
    of this run is there.

    Args:
        session: To the host; closed with the connector.
        state_dir: On the host, absolute.
    """

    def __init__(
        self, session: SshSession, *, state_dir: str = DEFAULT_STATE_DIR
    ) -> None:
        self.name = session.entry.name
        self.state_dir = state_dir
        self._session = session
        self._run = ""

    def start(self, *, run: str, ttl_s: float, controller: str) -> None:
        from inventory.errors import SshError

        words = _serve_words(run, self.state_dir, ttl_s, controller)
        try:
            done = self._program(words, START_TIMEOUT_S)
        except SshError as error:
            if not error.maybe_ran or not self._serves(run):
                raise self._unreachable("start", error) from error
        else:
            self._check_started(done)
        self._run = run

    def connect(self, *, timeout_s: float) -> SshChannel:
        from inventory.errors import SshError

        if not self._run:
            raise AgentGone("no agent was started")
        home = f"{self.state_dir}/{self._run}"
        words = [f"{home}/agent.py", "relay", "--socket", f"{home}/agent.sock"]
        try:
            stream = self._session.open(self._python(words), timeout_s=timeout_s)
        except SshError as error:
            raise ConnectionError(str(error)) from error
        return SshChannel(stream)

    def status(self) -> list[dict[str, Any]]:
        return self._asked(["status", "--state-dir", self.state_dir], START_TIMEOUT_S)

    def recover(self, run: str = "") -> list[dict[str, Any]]:
        words = ["recover", "--state-dir", self.state_dir, "--run", run]
        return self._asked(words, RECOVER_TIMEOUT_S)

    def close(self) -> None:
        self._session.close()

    def _serves(self, run: str) -> bool:
        """True when the host says that the agent of this run lives."""
        rows = self.status()
        return any(row.get("run") == run and row.get("alive") for row in rows)

    def _check_started(self, done: Completed) -> None:
        from inventory.programs import not_started

        problem = not_started(self._session.entry, done.rc, done.complaint)
        if problem is not None and not _rows(done.stdout):
            raise self._unreachable("start", problem) from problem
        _ready(self.name, done.stdout, done.stderr)

    def _asked(self, words: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
        from inventory.errors import SshError

        try:
            return _rows(self._program(words, timeout_s).stdout)
        except SshError as error:
            raise self._unreachable(words[0], error) from error

    def _program(self, words: Sequence[str], timeout_s: float) -> Completed:
        """Runs our program, which the host need not have."""
        return self._session.run(
            self._python(["-c", _BOOT, *words]),
            stdin=AGENT_PROGRAM.read_bytes(),
            timeout_s=timeout_s,
        )

    def _python(self, words: Sequence[str]) -> list[str]:
        from inventory.programs import python_argv

        return python_argv(self._session.entry, ["-I", *words])

    def _unreachable(self, op: str, error: Exception) -> HostUnreachable:
        return HostUnreachable(host=self.name, op=op, reason=str(error))


class SshChannel:
    """The relay of an agent; what SSH loses is a `ConnectionError` like any other."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def send(self, data: bytes, *, timeout_s: float) -> None:
        from inventory.errors import SshError

        try:
            self._stream.send(data, timeout_s=timeout_s)
        except SshError as error:
            raise ConnectionError(str(error)) from error

    def recv(self, size: int, *, timeout_s: float) -> bytes:
        from inventory.errors import SshError

        try:
            data = self._stream.recv(size, timeout_s=timeout_s)
        except SshError as error:
            raise ConnectionError(str(error)) from error
        if not data:
            said = self._stream.stderr.decode(errors="replace")
            if any(words in said for words in _NO_AGENT):
                raise AgentGone(said.strip()[-300:])
        return data

    def close(self) -> None:
        self._stream.close()


def _serve_words(run: str, state_dir: str, ttl_s: float, controller: str) -> list[str]:
    options = {"run": run, "state-dir": state_dir, "ttl": f"{ttl_s:g}"}
    if controller:
        options["controller"] = controller
    return ["serve", *(f"--{name}={value}" for name, value in options.items())]


def _rows(output: bytes) -> list[dict[str, Any]]:
    """JSON objects, one a line; what a login shell may say besides is left out."""
    rows = []
    for line in output.splitlines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows


def _ready(host: str, stdout: bytes, stderr: bytes) -> dict[str, Any]:
    """The ready line of a new agent.

    Raises:
        UsageError: Another run holds the host, or left something broken there.
        HarnessError: It did not start.
    """
    for row in _rows(stdout):
        if row.get("ready"):
            return row
        if row.get("error") == _BUSY:
            raise UsageError(
                f"host {host} is in use by {_named(row.get('holder') or {})}",
                "wait until it has ended, or end it",
            )
        if row.get("error") == _RESIDUE:
            raise UsageError(
                f"host {host} is still broken by an earlier run: {_residue(row)}",
                "run `chaos recover`, or mend it by hand and remove its ledger",
            )
    said = (stdout + stderr).decode(errors="replace").strip()
    raise HarnessError(f"the agent on {host} did not start: {said[-600:]}")


def _named(holder: dict[str, Any]) -> str:
    """A run as the second one is told of it."""
    parts = [f"run {holder.get('run', '?')}"]
    if holder.get("controller"):
        parts.append(f"of {holder['controller']}")
    if holder.get("since"):
        parts.append(f"since {holder['since']}")
    if holder.get("pid"):
        parts.append(f"(pid {holder['pid']})")
    return " ".join(parts)


def _residue(row: dict[str, Any]) -> str:
    left = [
        f"{run.get('run')}: {fault.get('fault_id')} ({fault.get('residual')})"
        for run in row.get("left") or []
        for fault in run.get("faults") or []
    ]
    return "; ".join(left) or "its ledger cannot be healed"

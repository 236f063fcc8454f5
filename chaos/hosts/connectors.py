"""How an agent is started and reached: in a namespace of this machine, or over SSH.

Nothing here acts on a host but by starting `agent.py` there and by talking to it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import HarnessError, UsageError
from chaos.hosts.link import AgentGone

if TYPE_CHECKING:
    from collections.abc import Sequence

AGENT_PROGRAM = Path(__file__).with_name("agent.py")
DEFAULT_STATE_DIR = "/run/moonquake"
START_TIMEOUT_S = 30.0
RECOVER_TIMEOUT_S = 120.0
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

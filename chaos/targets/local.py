"""The local target: every role a process on loopback addresses of its own.

A run leases a block 127.B.C.0/24, so that two runs and the workers of one run never
meet. Each role has its own session and process group and writes to files in the run
directory. Roles die with the harness: they ask the kernel for SIGKILL when the thread
that started them ends, so one thread starts them all and lives as long as the target.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from chaos.errors import ProcessFailed
from chaos.safety.identity import is_alive, send_signal, start_ticks_of, wait_until
from chaos.systems.base import ClusterSpec, Process
from chaos.targets.numbering import check_block, host_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chaos.safety.ledger import Ledger
    from chaos.safety.locks import AddressBlock

_READY_POLL_S = 0.01
_KILL_DEADLINE_S = 5.0
_TAIL_BYTES = 600


@dataclass(slots=True, kw_only=True)
class _Role:
    """A started process, and where its output of this start begins."""

    popen: subprocess.Popen[bytes]
    process: Process
    out: Path
    out_from: int
    err: Path
    err_from: int


class LocalTarget:
    """Processes on this machine, without any privilege."""

    name = "local"
    CAPABILITIES: ClassVar = frozenset(
        {"local", "kill", "pause", "restart", "proxy", "failpoints"}
    )

    def __init__(self, *, run_dir: Path, ledger: Ledger, block: AddressBlock) -> None:
        self.run_dir = run_dir
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._ledger = ledger
        self._block = block
        self._spec = ClusterSpec()
        self._roles: dict[str, _Role] = {}
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="roles")

    @property
    def capabilities(self) -> frozenset[str]:
        return self.CAPABILITIES

    def why_not(self, capability: str) -> str:
        if capability in self.capabilities:
            return ""
        return "roles are processes on loopback addresses, without any privilege"

    @property
    def hosts(self) -> None:
        """None: nothing here is a host of its own."""

    def prepare(self, spec: ClusterSpec) -> None:
        """Remembers the shape; there is nothing to make."""
        check_block(spec)
        self._spec = spec

    def address(self, role: str, plane: str = "control", rail: int = 0) -> str:
        return self._block.address(host_number(self._spec, role, plane, rail))

    def python(self, role: str) -> str:
        return sys.executable

    def spawn(
        self, role: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a role; its output is appended to `<role>.out` and `<role>.err`."""
        if self.process(role) is not None:
            message = "is already running"
            raise ProcessFailed(process=role, reason=message)
        if role in self._roles:  # its ports are free when the last thread has ended
            self._roles[role].popen.wait(_KILL_DEADLINE_S)
        started = self._starter.submit(self._start, role, list(argv), dict(env or {}))
        process = started.result()
        self._ledger.process(role, process.pid, process.start_ticks)
        return process

    def wait_ready(self, role: str, marker: str, *, timeout_s: float) -> str:
        """Waits for the line with the marker.

        Raises:
            ProcessFailed: The role ended, or was not ready in time.
        """
        started = self._roles[role]
        found: list[str] = []

        def ready() -> bool:
            ended = started.popen.poll() is not None
            found.extend(_lines_with(marker, started.out, started.out_from))
            return bool(found) or ended

        in_time = wait_until(ready, timeout_s=timeout_s, poll_s=_READY_POLL_S)
        if found:
            return found[0]
        code = started.popen.poll()
        reason = f"ended with {code}" if in_time else f"not ready in {timeout_s:g} s"
        detail = _tail(started.err, started.err_from)
        raise ProcessFailed(process=role, reason=reason, detail=detail)

    def process(self, role: str) -> Process | None:
        """The live process; one that dies is gone even before all its threads are."""
        started = self._roles.get(role)
        if started is None or started.popen.poll() is not None:
            return None
        process = started.process
        return process if is_alive(process.pid, process.start_ticks) else None

    def stop(self, role: str, *, timeout_s: float) -> int:
        """SIGTERM, and SIGKILL to the whole group when the time is up."""
        started = self._roles[role]
        self._signal(started, signal.SIGTERM, signal.SIGCONT)
        try:
            code = started.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._signal(started, signal.SIGKILL)
            code = started.popen.wait(_KILL_DEADLINE_S)
        self._ledger.process_gone(started.process.pid)
        return code

    def close(self) -> None:
        """Ends every role by force: they keep nothing on disk. Safe to call twice."""
        for started in self._roles.values():
            self._signal(started, signal.SIGKILL)
        for started in self._roles.values():
            started.popen.wait(_KILL_DEADLINE_S)
            self._ledger.process_gone(started.process.pid)
        self._roles.clear()
        self._starter.shutdown()

    def _start(self, role: str, argv: list[str], env: dict[str, str]) -> Process:
        out = self.run_dir / f"{role}.out"
        err = self.run_dir / f"{role}.err"
        with out.open("ab") as out_file, err.open("ab") as err_file:
            out_from, err_from = out_file.tell(), err_file.tell()
            popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env={**os.environ, **env},
                start_new_session=True,
            )
        ticks = start_ticks_of(popen.pid)
        if ticks is None:
            raise ProcessFailed(process=role, reason="vanished while it started")
        process = Process(role=role, pid=popen.pid, start_ticks=ticks)
        self._roles[role] = _Role(
            popen=popen,
            process=process,
            out=out,
            out_from=out_from,
            err=err,
            err_from=err_from,
        )
        return process

    @staticmethod
    def _signal(started: _Role, *numbers: int) -> None:
        if started.popen.poll() is None:
            process = started.process
            for number in numbers:
                send_signal(process.pid, process.start_ticks, number)


def _lines_with(marker: str, path: Path, begin: int) -> list[str]:
    """Whole lines after `begin` that hold the marker."""
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    lines = text.splitlines(keepends=True)
    return [line.rstrip() for line in lines if marker in line and line.endswith("\n")]


def _tail(path: Path, begin: int) -> str:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read()[-_TAIL_BYTES:].decode(errors="replace").strip()

"""The write-ahead ledger: what a run started and broke, on disk before it happens.

One append-only JSONL file per harness process. A fault's row is fsynced before the
fault is injected, so that after a SIGKILL of the harness `chaos recover` still knows
what to undo. Rows of processes are not synced: a killed harness loses no page cache,
and a power cut ends the processes too. A run that ended clean removes its file.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from enum import Enum, unique
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.report.redaction import clean_text
from chaos.safety.identity import is_alive, start_ticks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@unique
class FaultState(Enum):
    """The life of a fault; only `reverted` is good at the end of a run."""

    PLANNED = "planned"
    ARMED = "armed"
    ACTIVE = "active"
    REVERTING = "reverting"
    REVERTED = "reverted"
    RESIDUAL = "residual"


def host_state() -> Path:
    """Where agents on this machine keep their ledgers: `MOONQUAKE_HOST_STATE`.

    On other machines they always do in `/run/moonquake`.
    """
    return Path(os.environ.get("MOONQUAKE_HOST_STATE") or "/run/moonquake")


def state_directory() -> Path:
    """Where ledgers and locks of this user live: `moonquake-<uid>`, mode 0700."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    directory = Path(base) / f"moonquake-{os.getuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = directory.lstat()
    if owner.st_uid != os.getuid() or directory.is_symlink():
        message = f"{directory} belongs to somebody else; set XDG_RUNTIME_DIR"
        raise PermissionError(message)
    return directory


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProcess:
    """A process that a run started."""

    role: str
    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return is_alive(self.pid, self.start_ticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFault:
    """The last known state of one fault."""

    fault_id: str
    kind: str
    target: str
    state: FaultState
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class LedgerView:
    """A ledger as read back; rows torn by a crash are counted, never guessed."""

    path: Path
    pid: int = 0
    start_ticks: int = 0
    started_at: str = ""
    command: str = ""
    processes: dict[int, RecordedProcess] = field(default_factory=dict)
    temporary: set[str] = field(default_factory=set)
    proxies: set[tuple[str, str]] = field(default_factory=set)
    faults: dict[str, RecordedFault] = field(default_factory=dict)
    torn_rows: int = 0

    @property
    def harness_alive(self) -> bool:
        return is_alive(self.pid, self.start_ticks)

    @property
    def open_faults(self) -> list[RecordedFault]:
        """Faults that may still be in place."""
        done = (FaultState.PLANNED, FaultState.REVERTED)
        return [fault for fault in self.faults.values() if fault.state not in done]


class Ledger:
    """The ledger of this process. Every append is one whole line."""

    def __init__(
        self,
        path: Path,
        *,
        command: str = "",
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.path = path
        self._sync = sync
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor: int | None = os.open(path, flags, 0o600)
        pid = os.getpid()
        row = {
            "row": "run",
            "pid": pid,
            "start_ticks": start_ticks_of(pid),
            "command": clean_text(command),
        }
        self._append(row, sync=True)

    @classmethod
    def create(cls, directory: Path | None = None, *, command: str = "") -> Ledger:
        """Opens the ledger of this process in the state directory."""
        pid = os.getpid()
        name = f"run-{pid}-{start_ticks_of(pid)}.jsonl"
        return cls((directory or state_directory()) / name, command=command)

    def process(self, role: str, pid: int, start_ticks: int) -> None:
        """Records a process right after it was started."""
        row = {"row": "process", "role": role, "pid": pid, "start_ticks": start_ticks}
        self._append(row)

    def process_gone(self, pid: int) -> None:
        """Strikes a process that has ended."""
        self._append({"row": "process_gone", "pid": pid})

    def temporary(self, path: Path | str) -> None:
        """Records a temporary file or directory before it is made."""
        self._append({"row": "temporary", "path": str(path)}, sync=True)

    def temporary_gone(self, path: Path | str) -> None:
        self._append({"row": "temporary_gone", "path": str(path)})

    def proxy(self, url: str, name: str) -> None:
        """Records a proxy made on a server that may outlive us (a real Toxiproxy)."""
        self._append({"row": "proxy", "url": url, "name": name}, sync=True)

    def proxy_gone(self, url: str, name: str) -> None:
        self._append({"row": "proxy_gone", "url": url, "name": name})

    def fault(
        self,
        fault_id: str,
        state: FaultState,
        *,
        kind: str,
        target: str,
        detail: str = "",
    ) -> None:
        """Records a step of a fault, on disk before this returns."""
        row = {
            "row": "fault",
            "fault_id": fault_id,
            "state": state.value,
            "kind": kind,
            "target": target,
            "detail": clean_text(detail),
        }
        self._append(row, sync=True)

    def close(self) -> None:
        """Ends the ledger; the file goes when nothing of the run is left."""
        with self._lock:
            if self._descriptor is None:
                return
            os.close(self._descriptor)
            self._descriptor = None
        view = read_ledger(self.path)
        left = [process for process in view.processes.values() if process.alive]
        if not (left or view.open_faults or view.temporary or view.proxies):
            self.path.unlink(missing_ok=True)

    def _append(self, row: Mapping[str, Any], *, sync: bool = False) -> None:
        stamped = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **row}
        line = json.dumps(stamped, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._descriptor is None:
                message = f"the ledger {self.path} is closed"
                raise ValueError(message)
            os.write(self._descriptor, line)
            if sync:
                self._sync(self._descriptor)


def read_ledger(path: Path) -> LedgerView:
    """Reads a ledger back, of a living or a dead run."""
    view = LedgerView(path=path)
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
            _APPLY[row["row"]](view, row)
        except (ValueError, KeyError, TypeError):
            view.torn_rows += 1
    return view


def ledgers(directory: Path | None = None) -> list[LedgerView]:
    """Every ledger in the state directory, oldest name first."""
    where = directory or state_directory()
    return [read_ledger(path) for path in sorted(where.glob("run-*.jsonl"))]


def _apply_run(view: LedgerView, row: Mapping[str, Any]) -> None:
    view.pid, view.start_ticks = int(row["pid"]), int(row["start_ticks"])
    view.started_at, view.command = str(row["at"]), str(row["command"])


def _apply_process(view: LedgerView, row: Mapping[str, Any]) -> None:
    pid = int(row["pid"])
    view.processes[pid] = RecordedProcess(
        role=str(row["role"]), pid=pid, start_ticks=int(row["start_ticks"])
    )


def _apply_process_gone(view: LedgerView, row: Mapping[str, Any]) -> None:
    view.processes.pop(int(row["pid"]), None)


def _apply_temporary(view: LedgerView, row: Mapping[str, Any]) -> None:
    view.temporary.add(str(row["path"]))


def _apply_temporary_gone(view: LedgerView, row: Mapping[str, Any]) -> None:
    view.temporary.discard(str(row["path"]))


def _apply_proxy(view: LedgerView, row: Mapping[str, Any]) -> None:
    view.proxies.add((str(row["url"]), str(row["name"])))


def _apply_proxy_gone(view: LedgerView, row: Mapping[str, Any]) -> None:
    view.proxies.discard((str(row["url"]), str(row["name"])))


def _apply_fault(view: LedgerView, row: Mapping[str, Any]) -> None:
    fault_id = str(row["fault_id"])
    view.faults[fault_id] = RecordedFault(
        fault_id=fault_id,
        kind=str(row["kind"]),
        target=str(row["target"]),
        state=FaultState(row["state"]),
        detail=str(row["detail"]),
    )


_APPLY: dict[str, Callable[[LedgerView, Mapping[str, Any]], None]] = {
    "run": _apply_run,
    "process": _apply_process,
    "process_gone": _apply_process_gone,
    "temporary": _apply_temporary,
    "temporary_gone": _apply_temporary_gone,
    "proxy": _apply_proxy,
    "proxy_gone": _apply_proxy_gone,
    "fault": _apply_fault,
}

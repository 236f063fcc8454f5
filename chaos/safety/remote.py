"""Status, recover and the lever on the hosts of an inventory, without a run of ours.

The agent's program is sent over the connection and reads the ledgers that lie on the
host: no run directory, no file of the controller that broke it is needed. Every host is
asked, whatever another one answers; one that cannot be asked is told and counts as
unknown, never as clean.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError
from chaos.safety.halt import HOST_DIRECTORY, HostLever, LocalLever
from chaos.safety.ledger import host_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chaos.hosts.connectors import NamespaceConnector
    from chaos.safety.halt import Lever
    from inventory.schema import HostEntry, Inventory
    from inventory.ssh import SshSession

    Connect = Callable[[HostEntry], SshSession]

STATE_DIRECTORY = str(host_state())
"""Where agents on this machine keep their ledgers."""
_TIMEOUT_S = 60.0
_AT_ONCE = 16
_HEALED = 0
_RESIDUE = 5
"""What the agent's program ends with when something could not be healed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What one host said. `residue`: something of a dead run is still in place."""

    host: str
    rows: tuple[dict[str, Any], ...] = field(default=())
    residue: bool = False
    error: str = ""

    def lines(self) -> list[str]:
        """As an operator reads it."""
        if self.error:
            return [f"{self.host}: UNKNOWN: {self.error}"]
        told = [f"{self.host}: {_told(row)}" for row in self.rows]
        return told or [f"{self.host}: clean"]


def host_status(inventory: str, connect: Connect | None = None) -> list[HostReport]:
    """Live and dead runs on every host, with the faults that are in place.

    Raises:
        UsageError: The inventory cannot be used.
    """

    def ask(session: SshSession) -> HostReport:
        rows, _ = _agent(session, "status")
        dead = any(not row.get("alive") and _holds(row) for row in rows)
        return HostReport(host=session.entry.name, rows=tuple(rows), residue=dead)

    return _every(read_inventory(inventory), ask, connect)


def host_recover(inventory: str, connect: Connect | None = None) -> list[HostReport]:
    """Heals what dead agents left on every host; a second call finds nothing.

    Raises:
        UsageError: The inventory cannot be used.
    """

    def ask(session: SshSession) -> HostReport:
        rows, code = _agent(session, "recover")
        left = code == _RESIDUE or any(row.get("state") == "residual" for row in rows)
        return HostReport(host=session.entry.name, rows=tuple(rows), residue=left)

    return _every(read_inventory(inventory), ask, connect)


def here_status() -> list[HostReport]:
    """The same of agents on this machine: namespaces, and what a run over SSH left."""
    reports = []
    for name, connector in _connectors_here():
        rows = connector.status()
        dead = any(not row.get("alive") and _holds(row) for row in rows)
        reports.append(HostReport(host=name, rows=tuple(rows), residue=dead))
    return reports


def here_recover() -> list[HostReport]:
    """Heals what dead agents left on this machine; a second call finds nothing."""
    reports = []
    for name, connector in _connectors_here():
        rows = connector.recover()
        left = any(row.get("state") == "residual" for row in rows)
        reports.append(HostReport(host=name, rows=tuple(rows), residue=left))
    return [*reports, *_without_ruins()]


def _without_ruins() -> list[HostReport]:
    """Removes the empty directories that a killed run on namespaces leaves behind."""
    from chaos.targets.netns import remove_ruins

    root = Path(STATE_DIRECTORY, "netns")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return []
    rows = [{"run": path.name, "state": "cleared"} for path in remove_ruins(root)]
    return [HostReport(host="this host", rows=tuple(rows))] if rows else []


def _connectors_here() -> list[tuple[str, NamespaceConnector]]:
    """One for each state directory with a ledger; those of others cannot be read."""
    from chaos.hosts.connectors import NamespaceConnector

    root = Path(STATE_DIRECTORY)
    if not os.access(root, os.R_OK | os.X_OK):
        return []
    ledgers = [*root.glob("*/ledger.jsonl"), *root.glob("netns/*/*/*/ledger.jsonl")]
    found = []
    for state in sorted({ledger.parents[1] for ledger in ledgers}):
        name = str(state.relative_to(root)) if state != root else "this host"
        found.append((name, NamespaceConnector(name, state_dir=str(state))))
    return found


@contextmanager
def levers_of(inventory: str, connect: Connect | None = None) -> Iterator[list[Lever]]:
    """Every place of the lever: the near one, the shared one, and those on hosts.

    Raises:
        UsageError: The inventory cannot be used.
    """
    levers: list[Lever] = [LocalLever()]
    with ExitStack() as stack:
        if inventory:
            found = read_inventory(inventory)
            if found.lever is not None:
                levers.append(LocalLever(Path(found.lever)))
            for entry in found.hosts:
                session = stack.enter_context((connect or _session)(entry))
                levers.append(HostLever.of_session(entry.name, session, entry.elevated))
        yield levers


def read_inventory(path: str) -> Inventory:
    """The inventory of a file; its errors are usage errors here.

    Raises:
        UsageError: It cannot be read, or is wrong.
    """
    from inventory import InventoryError, load

    try:
        return load(path)
    except InventoryError as error:
        raise UsageError(str(error)) from error


def _session(entry: HostEntry) -> SshSession:
    from inventory import SshSession

    return SshSession(entry)


def _every(
    inventory: Inventory,
    ask: Callable[[SshSession], HostReport],
    connect: Connect | None,
) -> list[HostReport]:
    """Asks all hosts, some at a time, in the order of the inventory."""

    def one(entry: HostEntry) -> HostReport:
        try:
            with (connect or _session)(entry) as session:
                return ask(session)
        except Exception as error:  # told as unknown; the other hosts are asked
            return HostReport(host=entry.name, error=str(error) or repr(error))

    with ThreadPoolExecutor(_AT_ONCE) as helpers:
        return list(helpers.map(one, inventory.hosts))


def _agent(session: SshSession, command: str) -> tuple[list[dict[str, Any]], int]:
    """Runs one command of the agent's program there: (its rows, its exit code).

    Raises:
        RuntimeError: It broke, or said what nobody can read.
    """
    from chaos.hosts.connectors import AGENT_PROGRAM

    done = session.run_python(
        AGENT_PROGRAM.read_bytes(),
        [command, "--state-dir", HOST_DIRECTORY],
        timeout_s=_TIMEOUT_S,
    )
    rows = _rows(done.text)
    if done.rc not in (_HEALED, _RESIDUE):
        last = (done.complaint.strip().splitlines() or ["it said nothing"])[-1]
        message = f"{command} ended with {done.rc}: {last}"
        raise RuntimeError(message)
    return rows, done.rc


def _rows(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        row = json.loads(line)
        if not isinstance(row, dict):
            message = f"no row of an agent: {line[:80]}"
            raise RuntimeError(message)
        rows.append(row)
    return rows


def _holds(row: dict[str, Any]) -> bool:
    return bool(row.get("faults") or row.get("roles"))


def _told(row: dict[str, Any]) -> str:
    """One row of an agent in words; what is not known is shown as it is."""
    run = row.get("run", "?")
    if "faults" in row:
        state = "alive" if row.get("alive") else "dead"
        faults = [f"{one.get('kind')}({one.get('target')})" for one in row["faults"]]
        roles = [str(one.get("role")) for one in row.get("roles", ())]
        holds = [f"fault {name}" for name in faults] + [f"role {r}" for r in roles]
        return f"{run} ({state}): {', '.join(holds) or 'holds nothing'}"
    words = [f"{key}={value}" for key, value in row.items() if key != "run"]
    return f"{run}: {', '.join(words)}"

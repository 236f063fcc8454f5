"""`chaos recover`: undoes what dead harnesses left behind, from their ledgers alone.

Idempotent, needs no run directory, touches only what a ledger names and only while
it is still the same process (pid and start time). Roles and proxies die with their
harness, so on a good day there is nothing to do; this is for the other days.
"""

from __future__ import annotations

import http.client
import shutil
import signal
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.proxy.token import read_token
from chaos.safety.identity import send_signal, wait_until
from chaos.safety.ledger import LedgerView, ledgers, state_directory
from chaos.safety.locks import lock_domain, remove_stale_locks

if TYPE_CHECKING:
    from chaos.safety.ledger import RecordedProcess

_GONE_DEADLINE_S = 5.0
_PROXY_DEADLINE_S = 2.0
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that recover did, or could not do."""

    run: str
    what: str
    done: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as its ledger tells it."""

    run: str
    pid: int
    alive: bool
    started_at: str
    command: str
    living: tuple[str, ...]
    faults: tuple[str, ...]
    temporary: tuple[str, ...]

    @property
    def residue(self) -> bool:
        """True when a dead run left something that `chaos recover` must undo."""
        left = self.living or self.faults or self.temporary
        return bool(not self.alive and left)


def status(directory: Path | None = None) -> list[RunStatus]:
    """Every run with a ledger, live and dead, with what it holds now."""
    return [_status_of(view) for view in ledgers(directory)]


def recover(directory: Path | None = None) -> list[Action]:
    """Undoes everything that dead harnesses left; a second call finds nothing.

    Raises:
        DomainBusy: Another recover is at work.
    """
    where = directory or state_directory()
    lock = lock_domain("recover", directory=where)
    try:
        actions: list[Action] = []
        for view in ledgers(where):
            if not view.harness_alive:
                actions += _recover_run(view)
        for path in remove_stale_locks(where):
            actions.append(Action(run="", what=f"removed lock {path.name}", done=True))
        return actions
    finally:
        lock.release()


def _status_of(view: LedgerView) -> RunStatus:
    living = (process for process in view.processes.values() if process.alive)
    faults = (
        f"{fault.kind}({fault.target}) {fault.state.value}"
        for fault in view.open_faults
    )
    return RunStatus(
        run=view.path.stem,
        pid=view.pid,
        alive=view.harness_alive,
        started_at=view.started_at,
        command=view.command,
        living=tuple(f"{process.role} pid {process.pid}" for process in living),
        faults=tuple(faults),
        temporary=tuple(sorted(view.temporary)),
    )


def _recover_run(view: LedgerView) -> list[Action]:
    run = view.path.stem
    actions = [_end(run, process) for process in view.processes.values()]
    actions += [_remove_proxy(run, url, name) for url, name in sorted(view.proxies)]
    actions += [_remove_temporary(run, path) for path in sorted(view.temporary)]
    done = all(action.done for action in actions)
    actions += [
        Action(
            run=run,
            what=f"fault {fault.kind}({fault.target}) was {fault.state.value}",
            done=done,
            detail="ended with its processes and proxies" if done else "may be left",
        )
        for fault in view.open_faults
    ]
    if done:
        view.path.unlink(missing_ok=True)
    return [action for action in actions if action.what]


def _end(run: str, process: RecordedProcess) -> Action:
    """Kills a process of a dead run; SIGKILL ends a stopped process as well."""
    if not process.alive:
        return Action(run=run, what="", done=True)
    what = f"killed {process.role} (pid {process.pid})"
    send_signal(process.pid, process.start_ticks, signal.SIGCONT)
    send_signal(process.pid, process.start_ticks, signal.SIGKILL)
    gone = wait_until(lambda: not process.alive, timeout_s=_GONE_DEADLINE_S)
    return Action(run=run, what=what, done=gone, detail="" if gone else "still alive")


def _remove_proxy(run: str, url: str, name: str) -> Action:
    """Deletes a proxy on a Toxiproxy that outlived the run; a dead one needs none."""
    what = f"deleted proxy {name} on {url}"
    address = f"{url.rstrip('/')}/proxies/{urllib.parse.quote(name, safe='')}"
    if not address.startswith(("http://", "https://")):
        return Action(run=run, what=what, done=False, detail="not an http address")
    token = read_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(address, headers=headers, method="DELETE")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_PROXY_DEADLINE_S):  # noqa: S310
            return Action(run=run, what=what, done=True)
    except urllib.error.HTTPError as error:
        error.close()
        done = error.code == _NOT_FOUND
        return Action(run=run, what="" if done else what, done=done, detail=str(error))
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            return Action(run=run, what="", done=True)
        return Action(run=run, what=what, done=False, detail=str(error))
    except (OSError, http.client.HTTPException) as error:
        return Action(run=run, what=what, done=False, detail=repr(error))


def _remove_temporary(run: str, text: str) -> Action:
    """Removes a temporary path; only names of ours, whatever the ledger says."""
    path = Path(text)
    what = f"removed {path}"
    if not path.name.startswith("moonquake-"):
        return Action(run=run, what=what, done=False, detail="not a name of ours")
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()
        else:
            return Action(run=run, what="", done=True)
    except OSError as error:
        return Action(run=run, what=what, done=False, detail=str(error))
    return Action(run=run, what=what, done=True)

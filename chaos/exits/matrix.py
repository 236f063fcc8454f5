"""Plays cells of the exit matrix: a run is started, ended, and what it leaves is read.

One lab serves all cells on ssh. A cell is good when, without anyone's help, the hosts
are as they were within the lease and 5 s of the ending, and when the machine of the
controller is as it was once the run has ended: for a run that was killed, after
`chaos recover`, which has to find everything by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.errors import HarnessError
from chaos.exits import snapshot
from chaos.exits.cells import AT_ONCE, SIGNALS, Order
from chaos.exits.cuts import cut
from chaos.exits.marks import Marks
from chaos.exits.owner import TOKEN, TOKEN_VARIABLE, Owner
from chaos.safety import recover as safety
from chaos.safety.identity import send_signal, start_ticks_of, wait_until
from chaos.safety.remote import here_recover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.exits.cells import Cell
    from chaos.exits.snapshot import Snapshot
    from chaos.targets.lab import Lab

TTL_S: Final = 4.0
MARGIN_S: Final = 5.0
HOSTS: Final = 4
ORDER_VARIABLE: Final = "MOONQUAKE_EXIT"
BLOCK: Final = 23
"""Of the fabric of netns cells: nobody else's devices are taken for ours."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_VICTIM: Final = "tests/chaos/exits/victim.py"
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 90.0
_STEP_TIMEOUT_S = 2.0
_POLL_S = 0.05
_NETNS_STATE = Path("/run/moonquake/netns")
_NUMBERS: Final = {
    "sigint": signal.SIGINT,
    "sigterm": signal.SIGTERM,
    "sighup": signal.SIGHUP,
    "sigkill": signal.SIGKILL,
    "worker-sigkill": signal.SIGKILL,
}
#: A failed test, or a session that stopped because it could not tell what is left.
_TOLD: Final = (1, 2)
_CODES: Final[Mapping[str, tuple[int, ...]]] = {
    "pass": (0,),
    "failing": (1,),
    "fixture": (1,),
    "sigint": (2,),
    "sigterm": (128 + signal.SIGTERM,),
    "sighup": (128 + signal.SIGHUP,),
    "sigkill": (-signal.SIGKILL,),
    "worker-sigkill": (1,),
    "reboot": _TOLD,
}
#: Seen from outside as something other than processes of roles.
_VISIBLE: Final = frozenset(
    {
        *("pause", "nic_down", "flap", "partition", "blackhole", "reset", "loss"),
        *("bandwidth", "tap", "latency", "reorder", "corrupt", "memory"),
        *("memory_limit", "cpu", "disk_full", "slow_disk", "port_taken", "kill"),
    }
)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a cell: `problems` is empty when all is well."""

    cell: Cell
    problems: list[str] = field(default_factory=list)
    missing: str = ""
    """Why the kind cannot be had here, "" when it can."""
    healed_s: float = 0.0
    took_s: float = 0.0
    output: str = ""

    @property
    def line(self) -> str:
        if self.missing:
            return f"{self.cell.name}: not here: {self.missing}"
        state = "NOT OK" if self.problems else "ok"
        times = f"as before after {self.healed_s:.1f} s, {self.took_s:.1f} s"
        return f"{self.cell.name}: {state}, {times}"


class Matrix:
    """Plays cells, one after the other.

    Args:
        folder: for what the runs write; not below /run or /var/log.
        lab: for the cells on ssh.
        inventory: of the lab.
    """

    def __init__(self, folder: Path, lab: Lab | None, inventory: Path) -> None:
        self._folder = folder
        self._lab = lab
        self._inventory = inventory
        self._owner = Owner(lab, inventory) if lab is not None else None
        self._count = 0

    def play(self, cell: Cell) -> Outcome:
        """One cell, from start to end; what went wrong is in the outcome."""
        self._count += 1
        folder = self._folder / f"cell-{self._count}"
        owner = self._owner if cell.target == "observed" else None
        lab = self._lab if cell.target != "netns" else None
        game = _Game(cell, folder, lab, owner)
        begin = time.monotonic()
        try:
            if owner is not None:
                owner.start()
            game.play(owner.inventory if owner is not None else self._inventory)
        except (HarnessError, OSError) as error:
            game.outcome.problems.append(f"the driver: {error}")
        finally:
            game.close()
            if owner is not None:
                owner.stop()
        game.outcome.took_s = time.monotonic() - begin
        if not game.outcome.problems:
            shutil.rmtree(folder, ignore_errors=True)
        return game.outcome


class _Game:
    """One cell that is being played."""

    def __init__(
        self, cell: Cell, folder: Path, lab: Lab | None, owner: Owner | None
    ) -> None:
        self.outcome = Outcome(cell=cell)
        self._owner = owner
        self._cell = cell
        self._lab = lab
        self._folder = folder
        self._state = folder / "state"
        for name in ("marks", "state", "tmp"):
            (folder / name).mkdir(parents=True, mode=0o700)
        self._marks = Marks(folder / "marks")
        self._mark = f"{ORDER_VARIABLE}_CELL={folder.name}-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[str, Snapshot] = {}
        self._near = self._machine()
        self._host = ""
        self._ended_at = 0.0
        self._is_cut = False

    # -- the course of a cell ------------------------------------------------------

    def play(self, inventory: Path) -> None:
        self._before = self._hosts()
        self._start(inventory)
        if not self._reach("before"):
            return
        self._host = str((self._marks.told("before") or {})["host"])
        ready = self._hosts()
        if self._cell.phase == "before":
            self._end()
        self._marks.go("before")
        if self._cell.phase in ("arming", "disarming"):
            if self._cell.phase == "disarming" and self._reach("active"):
                self._marks.go("active")
            self._until_in_the_middle()
            self._end()
        elif self._cell.phase == "active" and self._reach("active"):
            self._check_active(ready)
            self._end()
        self._judge()

    def close(self) -> None:
        """Leaves no run of a cell behind, whatever became of the cell."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self.outcome.problems.append(f"the run had to be killed ({_END_TIMEOUT_S})")
        self._mend()
        log = self._folder / "log"
        if log.exists():
            self.outcome.output = log.read_text(encoding="utf-8", errors="replace")

    # -- steps -----------------------------------------------------------------------

    def _start(self, inventory: Path) -> None:
        cell = self._cell
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        target = "netns" if cell.target == "netns" else "ssh"
        argv += [_VICTIM, "--target", target, "--fault-ttl", f"{TTL_S:g}"]
        argv += ["--seed", str(cell.seed), "--results", str(self._folder / "results")]
        argv += ["--timeout", f"{_START_TIMEOUT_S + _END_TIMEOUT_S:g}"]
        if target == "ssh":
            argv += ["--inventory", str(inventory), "--arm"]
        else:
            argv += ["--block", str(BLOCK)]
        argv += ["-n", "2"] if cell.ending == "worker-sigkill" else []
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                cwd=_ROOT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        cell = self._cell
        slow = cell.phase if cell.phase in ("arming", "disarming") else ""
        at_once = bool(slow) and cell.kind in AT_ONCE
        order = Order(
            kind=cell.kind,
            ending=cell.ending,
            marks=str(self._folder / "marks"),
            holds=("before", "active", *([slow] if at_once else [])),
            slow=slow,
        )
        name, _, value = self._mark.partition("=")
        token = {TOKEN_VARIABLE: TOKEN} if self._owner is not None else {}
        return {
            **os.environ,
            **token,
            ORDER_VARIABLE: json.dumps(order.to_json()),
            name: value,
            "XDG_RUNTIME_DIR": str(self._state),
            "TMPDIR": str(self._folder / "tmp"),
        }

    def _reach(self, phase: str) -> bool:
        """Waits until the run is in a phase; False when it ended before."""

        def there() -> bool:
            told = self._marks.told(phase) is not None
            return told or self._marks.told("not-here") is not None or self._is_over()

        wait_until(there, timeout_s=_START_TIMEOUT_S, poll_s=_POLL_S)
        missing = self._marks.told("not-here")
        if missing is not None:
            self.outcome.missing = str(missing["reason"])
            self._wait_for_end()
            return False
        if self._marks.told(phase) is None:
            self.outcome.problems.append(f"the run never was in phase {phase}")
            return False
        return True

    def _until_in_the_middle(self) -> None:
        """Arming has begun on the host, or disarming has."""
        phase = self._cell.phase
        if not self._reach(phase) or self._cell.kind in AT_ONCE:
            return
        wanted = '"row":"step"' if phase == "arming" else '"reverting"'
        wait_until(
            lambda: wanted in self._ledger() or self._is_over(),
            timeout_s=_STEP_TIMEOUT_S,
            poll_s=0.01,
        )

    def _ledger(self) -> str:
        """What stands in the ledgers of the host now."""
        if self._lab is None:
            found = _paths(_NETNS_STATE, f"*/{self._host}/*/ledger.jsonl")
        else:
            root = Path(f"/proc/{self._inits()[self._host]}/root")
            found = _paths(root / "run/moonquake", "*/ledger.jsonl")
        texts = []
        for path in found:
            try:
                texts.append(path.read_text(encoding="utf-8"))
            except OSError:
                continue
        return "".join(texts)

    def _check_active(self, ready: Mapping[str, Snapshot]) -> None:
        """A cell whose fault did nothing would show nothing."""
        told = self._marks.told("active") or {}
        if not float(told.get("effect", 0)) > 0:
            self.outcome.problems.append("the fault had no effect")
        if self._lab is None or self._cell.kind not in _VISIBLE:
            return
        now = self._hosts()
        changes = [c for name in now for c in now[name].changes(ready[name])]
        if not changes and self._cell.kind != "pause":
            self.outcome.problems.append("nothing of the fault is seen from outside")

    def _end(self) -> None:
        """The ending of this cell comes, now."""
        cell = self._cell
        if cell.phase in ("arming", "disarming") and cell.kind not in AT_ONCE:
            time.sleep(cell.after_s)
        if cell.way:
            assert self._lab is not None
            self._is_cut = cell.way == "silent"
            cut(self._lab, self._host, cell.way)
        elif cell.ending == "reboot":
            assert self._lab is not None
            self._lab.reboot(self._host)
            if self._owner is not None:
                self._owner.start()
        elif cell.ending in SIGNALS:
            self._signal()
        self._ended_at = time.monotonic()
        for phase in ("active", cell.phase):
            self._marks.go(phase)

    def _signal(self) -> None:
        assert self._process is not None
        told = self._marks.told(self._cell.phase) or {}
        worker = self._cell.ending == "worker-sigkill"
        pid = int(told.get("pid", 0)) if worker else self._process.pid
        ticks = start_ticks_of(pid) if pid else None
        if ticks is None or not send_signal(pid, ticks, _NUMBERS[self._cell.ending]):
            self.outcome.problems.append("the run had ended before it was signalled")

    # -- judging ---------------------------------------------------------------------

    def _judge(self) -> None:
        if self._is_cut or self._cell.ending in ("sigkill", "worker-sigkill"):
            where = {self._host} if self._is_cut else set(self._before)
            self._judge_hosts(where)
            self._mend()
        ended = self._wait_for_end()
        self._ended_at = max(self._ended_at, time.monotonic()) if ended else 0.0
        self._judge_code()
        if self._cell.ending != "sigkill":
            self._judge_hosts(set(self._before))
        self._judge_machine()

    def _judge_hosts(self, names: set[str]) -> None:
        """Polls until these hosts are as they were before the run."""
        left: list[str] = []

        def as_before() -> bool:
            nonlocal left
            now = self._hosts(names)
            left = [
                f"{name}: {change}"
                for name, snap in now.items()
                for change in snap.changes(self._before[name])
            ]
            return not left

        since = self._ended_at or time.monotonic()
        left_s = max(0.5, since + TTL_S + MARGIN_S - time.monotonic())
        wait_until(as_before, timeout_s=left_s, poll_s=_POLL_S)
        self.outcome.healed_s = max(self.outcome.healed_s, time.monotonic() - since)
        self.outcome.problems += left

    def _judge_code(self) -> None:
        assert self._process is not None
        code, cell = self._process.returncode, self._cell
        if cell.way:
            good = code in _TOLD or (cell.way != "silent" and code == 0)
        else:
            good = code in _CODES[cell.ending]
        if not good:
            self.outcome.problems.append(f"the run ended with {code}")

    def _judge_machine(self) -> None:
        """What is left where the run ran; a ledger only where it could not end well."""
        orderly = not (self._cell.way or self._cell.ending == "reboot")
        orderly = orderly and "kill" not in self._cell.ending
        left: list[str] = []

        def clean() -> bool:
            nonlocal left
            left = self._machine().changes(self._near)
            left += [*self._ledgers(), *self._runs()] if orderly else []
            return not left

        deadline_s = max(0.5, self._ended_at + TTL_S + MARGIN_S - time.monotonic())
        wait_until(clean, timeout_s=deadline_s, poll_s=_POLL_S)
        if self._lab is None:  # its hosts are on this machine
            self.outcome.healed_s = time.monotonic() - self._ended_at
        self.outcome.problems += [f"controller: {line}" for line in left]
        runs = self._runs()
        for report in here_recover():  # what others left is not of this cell
            if report.residue and any(run in report.host for run in runs):
                self.outcome.problems.append(f"controller: {report}")
        actions = safety.recover(self._state)
        failed = [each.what for each in actions if not each.done]
        self.outcome.problems += [f"controller: not recovered: {x}" for x in failed]
        left = [*self._ledgers(), *self._runs()]
        self.outcome.problems += [f"after recover: {x}" for x in left]

    def _machine(self) -> Snapshot:
        """Of the controller's machine, what can be told from other people's things."""
        links = Path("/sys/class/net")
        parts = {
            "processes": "\n".join(sorted(snapshot.marked(self._mark).values())),
            "devices": "\n".join(
                path.name for path in links.iterdir() if path.name.endswith(_DEVICE)
            ),
            "tmp": "\n".join(
                path.name
                for path in (self._folder / "tmp").iterdir()
                if not path.name.startswith("pytest-of-")
            ),
        }
        if self._lab is None:
            parts["cgroups"] = "\n".join(snapshot.cgroups())
        return snapshot.Snapshot(parts=parts)

    def _runs(self) -> list[str]:
        """Directories of netns runs of this process and of its worker."""
        if self._lab is not None or self._process is None:
            return []
        pids = {self._process.pid} | {
            int(told["pid"])
            for phase in ("before", "active")
            if (told := self._marks.told(phase)) is not None
        }
        found = [path.name for path in _paths(_NETNS_STATE, "*")]
        return [n for n in found if any(n.startswith(f"r{pid}-") for pid in pids)]

    def _ledgers(self) -> list[str]:
        return [f"ledger {row.run}" for row in safety.status(self._state)]

    # -- small things ----------------------------------------------------------------

    def _inits(self) -> dict[str, int]:
        assert self._lab is not None
        return {n: self._lab.fabric.namespaces(n).init for n in self._lab.names}

    def _hosts(self, names: set[str] | None = None) -> dict[str, Snapshot]:
        if self._lab is None:
            return {}
        inits = self._inits()
        return snapshot.of_hosts(
            {n: pid for n, pid in inits.items() if names is None or n in names}
        )

    def _is_over(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _wait_for_end(self) -> bool:
        return wait_until(self._is_over, timeout_s=_END_TIMEOUT_S, poll_s=_POLL_S)

    def _mend(self) -> None:
        if self._is_cut and self._lab is not None:
            self._is_cut = False
            self._lab.mend(self._host)


_DEVICE = f"mq-fabric{BLOCK}"


def play_all(
    matrix: Matrix, cells: Callable[[Callable[[Cell], bool]], Any], total: int
) -> list[Outcome]:
    """Plays cells and says how each went.

    A kind that is not here is asked for once: all targets are of this machine.
    """
    missing: dict[str, str] = {}
    outcomes: list[Outcome] = []
    for cell in cells(lambda each: each.kind not in missing):
        outcome = matrix.play(cell)
        if outcome.missing:
            missing[cell.kind] = outcome.missing
        outcomes.append(outcome)
        played = len([each for each in outcomes if not each.missing])
        sys.stdout.write(f"[{played}/{total}] {outcome.line}\n")
        for problem in outcome.problems[:20]:
            sys.stdout.write(f"    {problem[:600]}\n")
        if outcome.problems:
            sys.stdout.write(f"    again: {cell.again}\n")
        sys.stdout.flush()
    return outcomes


def _paths(root: Path, pattern: str) -> list[Path]:
    """What matches now; nothing where a directory went away while it was read."""
    try:
        return [*root.glob(pattern)]
    except FileNotFoundError:
        return []

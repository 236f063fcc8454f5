"""Somebody else's store on a host of the lab: observed by a run, kept up by its rule.

An owner starts the store, writes its pid to a file and starts it again whenever it
ends, as the supervisor of a staging cluster does. It comes with the boot of the host.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from chaos.errors import HarnessError
from chaos.exits.snapshot import processes_of
from chaos.safety.identity import send_signal, start_ticks_of, wait_until
from chaos.systems import load_system
from chaos.systems.base import ClusterSpec
from chaos.targets.planned import PlannedTarget
from chaos.targets.ssh import addresses_of, placed
from inventory import load

if TYPE_CHECKING:
    from chaos.targets.lab import Lab

ROLE: Final = "store-0"
TOKEN: Final = "of-the-owner-of-a-store"  # noqa: S105 - of a lab that lives for a minute
TOKEN_VARIABLE: Final = "REFIMPL_TOKEN"  # noqa: S105 - the name of a variable
PID_FILE: Final = "/run/store-0.pid"
SPEC: Final = ClusterSpec(stores=2, engines=1)
_READY_TIMEOUT_S = 15.0
_END_TIMEOUT_S = 5.0
_ROOT = Path(__file__).resolve().parents[2]
_SUPERVISE = """\
import subprocess, sys, time
while True:
    child = subprocess.Popen(sys.argv[2:])
    with open(sys.argv[1], "w") as file:
        file.write(str(child.pid))
    child.wait()
    time.sleep(0.3)
"""


class Owner:
    """The owner of one store of a lab.

    Args:
        lab: where the host of the store is.
        inventory: of the lab; one in which that host is not ours is written beside it.
    """

    def __init__(self, lab: Lab, inventory: Path) -> None:
        self._lab = lab
        entries = placed(load(inventory), SPEC)
        self.host = entries[ROLE].name
        self.inventory = _observed(inventory, self.host)
        self._argv = _command(inventory)
        self._log = inventory.with_name("owner.log")
        self._nsenter: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the owner; returns when its store serves.

        Raises:
            HarnessError: It does not.
        """
        init = str(self._lab.fabric.namespaces(self.host).init)
        words = ["nsenter", "--all", "--target", init, "--"]
        words += [sys.executable, "-I", "-S", "-c", _SUPERVISE, PID_FILE, *self._argv]
        with self._log.open("wb") as log:
            self._nsenter = subprocess.Popen(
                words,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", **_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ready = f"{ROLE} ready".encode()
        if not wait_until(
            lambda: ready in self._log.read_bytes(), timeout_s=_READY_TIMEOUT_S
        ):
            said = self._log.read_text(errors="replace")[-300:]
            message = f"the store of somebody else does not serve: {said}"
            raise HarnessError(message)

    def stop(self) -> None:
        """Ends the owner and its store; a host that was rebooted has none."""
        nsenter, self._nsenter = self._nsenter, None
        if nsenter is None:
            return
        wait_until(self._gone, timeout_s=_END_TIMEOUT_S)
        nsenter.wait(_END_TIMEOUT_S)
        init = self._lab.fabric.namespaces(self.host).init
        Path(f"/proc/{init}/root{PID_FILE}").unlink(missing_ok=True)

    def _gone(self) -> bool:
        init = self._lab.fabric.namespaces(self.host).init
        there = processes_of({self.host: init})[self.host]
        ours = [pid for pid, words in there.items() if PID_FILE in words]
        ours += [pid for pid, words in there.items() if " -m refimpl store " in words]
        for pid in ours:
            ticks = start_ticks_of(pid)
            if ticks is not None:
                send_signal(pid, ticks, signal.SIGKILL)
        return not ours


def _environment() -> dict[str, str]:
    return {
        "PYTHONPATH": str(_ROOT),
        "PYTHONUNBUFFERED": "1",
        "OPENBLAS_NUM_THREADS": "1",
        TOKEN_VARIABLE: TOKEN,
    }


def _observed(inventory: Path, host: str) -> Path:
    """The same inventory, in which the store of one host is somebody else's."""
    document: dict[str, Any] = yaml.safe_load(inventory.read_text(encoding="utf-8"))
    entry = document["all"]["hosts"][host]
    entry["manage"] = False
    entry["processes"] = {ROLE: {"pid_file": PID_FILE}}
    path = inventory.with_name("observed.yaml")
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


class _There(PlannedTarget):
    """The lab as it would be used: addresses only."""

    name = "ssh"

    def __init__(self, inventory: Path) -> None:
        super().__init__(inventory.parent)
        self._entries = placed(load(inventory), SPEC)

    @property
    def hosts(self) -> Any:
        """Some: the layout is that of hosts."""
        return ()

    def address(self, role: str, plane: str = "control", rail: int = 0) -> str:
        network = f"rail{rail}" if plane == "data" else plane
        return addresses_of(self._entries[role])[network]


def _command(inventory: Path) -> list[str]:
    """How a run would start the store itself."""
    system = load_system("refimpl")
    cluster, _ = system.plan(SPEC, _There(inventory))
    argv: list[str] = cluster.argv(ROLE)  # type: ignore[attr-defined]
    return argv

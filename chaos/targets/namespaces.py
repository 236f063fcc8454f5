"""The harness's end of the keeper: namespaces by name, and ways to run things in them.

The keeper is started by us and ends with us (see `keeper.py`); what it holds has no
name on the machine, so that a killed harness leaves no namespace behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import HarnessError, UsageError
from chaos.safety.identity import send_signal, start_ticks_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PROGRAM = Path(__file__).with_name("keeper.py")
_ANSWER_TIMEOUT_S = 20.0
_END_TIMEOUT_S = 5.0
_SWEEP_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 20.0
_SIGKILL = 9
_TOOLS = ("ip", "nsenter")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespaces:
    """The namespaces of one host, as descriptors of the keeper.

    `init` is process 1 of a host with a PID namespace, 0 for a host without one.
    """

    name: str
    keeper: int
    net: int
    mnt: int
    uts: int
    init: int

    def path(self, kind: str) -> str:
        """Where a namespace is reached: `/proc/<keeper>/fd/<n>`; net, mnt or uts."""
        return f"/proc/{self.keeper}/fd/{getattr(self, kind)}"

    def enter(self) -> list[str]:
        """The command in front of another that runs it on this host."""
        kinds = {"net": "net", "mount": "mnt", "uts": "uts"}
        command = ["nsenter"]
        command += [f"--{flag}={self.path(kind)}" for flag, kind in kinds.items()]
        return [*command, "--"]

    def processes(self) -> list[int]:
        """Every process of this machine that is in the network namespace."""
        inode = os.stat(self.path("net")).st_ino  # noqa: PTH116
        return [pid for pid, _ in _processes_in({inode})]


def why_no_namespaces() -> str:
    """Why this process cannot build a fabric; "" when it can."""
    missing = [name for name in _CAPABILITIES if not _has(name)]
    if missing:
        return f"network namespaces need {' and '.join(missing)}: run as root"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        names = {"ip": "iproute2", "nsenter": "util-linux"}
        wanted = ", ".join(names[tool] for tool in absent)
        return f"there is no {' and no '.join(absent)} here: install {wanted}"
    return ""


class Keeper:
    """A running keeper. `close` ends it and everything that it holds."""

    def __init__(self) -> None:
        reason = why_no_namespaces()
        if reason:
            raise UsageError(reason, "or take --target local, which needs nothing")
        self._lock = threading.Lock()
        self._hosts: dict[str, Namespaces] = {}
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C for the harness is not meant for it
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def make(
        self,
        names: Sequence[str],
        *,
        sysctl: dict[str, str],
        init: bool = False,
        private: Sequence[str] = (),
        directories: Sequence[str] = (),
        scratch: str = "",
    ) -> dict[str, Namespaces]:
        """Makes hosts: network, mount and UTS namespaces each, PID as well with init.

        Args:
            names: of the hosts, and their host names.
            sysctl: settings under /proc/sys, of the new network namespaces alone.
            init: whether they get a process 1, which waits for `boot`.
            private: directories that get an empty file system of their own.
            directories: further directories to make, in the private ones as a rule.
            scratch: where they have a small file system that may be filled.
        """
        shape = {
            "sysctl": sysctl,
            "init": init,
            "private": list(private),
            "directories": list(directories),
            "scratch": scratch,
        }
        hosts = [{"name": name, "hostname": name, **shape} for name in names]
        made = self._ask(op="make", hosts=hosts)["hosts"]
        new = {
            name: Namespaces(name=name, keeper=self.pid, **fields)
            for name, fields in made.items()
        }
        self._hosts.update(new)
        return new

    def boot(self, name: str, argv: Sequence[str], log: Path) -> None:
        """Lets the init of a host start its one service."""
        self._ask(op="boot", name=name, argv=list(argv), log=str(log))

    def alive(self, name: str) -> bool:
        """Whether the init of a host still lives."""
        return bool(self._ask(op="alive", name=name)["alive"])

    def drop(self, names: Iterable[str]) -> None:
        """Ends hosts: every process in them dies, their namespaces go."""
        gone = [self._hosts.pop(name) for name in names if name in self._hosts]
        _sweep(gone)
        self._ask(op="drop", names=[host.name for host in gone])

    def close(self) -> None:
        """Ends every host and the keeper itself. Safe to call twice."""
        if self._popen.stdin is None or self._popen.stdin.closed:
            return
        hosts, self._hosts = self._hosts, {}
        try:
            if self._popen.poll() is None:
                _sweep([host for host in hosts.values() if not host.init])
        finally:
            self._end()

    def _end(self) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, which is our aim
            self._popen.stdin.close()
        try:
            self._popen.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(_END_TIMEOUT_S)
        self._popen.stdout.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        with self._lock:
            answer = self._exchange(json.dumps(request).encode() + b"\n")
        if not answer.get("ok"):
            message = f"the keeper cannot {request['op']}: {answer.get('error')}"
            raise HarnessError(message)
        return answer

    def _exchange(self, line: bytes) -> dict[str, Any]:
        """One request, one answer; a keeper that is gone or silent is an error."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(line)
            self._popen.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise HarnessError("the keeper of the namespaces is gone") from error
        ready, _, _ = select.select([self._popen.stdout], [], [], _ANSWER_TIMEOUT_S)
        text = self._popen.stdout.readline() if ready else b""
        if not text:
            raise HarnessError("the keeper of the namespaces does not answer")
        answer: dict[str, Any] = json.loads(text)
        return answer


def run_batch(commands: Sequence[str], *, inside: Sequence[str] = ()) -> None:
    """Runs lines of `ip -batch`, all of them or none after the first that fails.

    Args:
        commands: each an `ip` command line without its `ip`.
        inside: the command that enters a namespace, see `Namespaces.enter`.

    Raises:
        HarnessError: one failed; the message says which, and what `ip` said.
    """
    done = subprocess.run(
        [*inside, "ip", "-batch", "-"],
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise HarnessError(_explain(commands, done.stderr))


def _explain(commands: Sequence[str], text: str) -> str:
    """`Command failed -:3` names a line; the reason stands before it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    number = lines[-1].rpartition(":")[2] if lines else ""
    reason = lines[0].removeprefix("RTNETLINK answers: ") if lines else "no reason told"
    if number.isdecimal() and 0 < int(number) <= len(commands):
        return f"ip {commands[int(number) - 1]}: {reason}"
    return f"ip -batch: {reason}"


def _sweep(hosts: Sequence[Namespaces]) -> None:
    """Kills whoever is still in the namespaces, until nobody is.

    An agent is two processes that look after each other, so once is not enough.
    """
    inodes = {os.stat(host.path("net")).st_ino for host in hosts}  # noqa: PTH116

    def empty() -> bool:
        found = _processes_in(inodes)
        for pid, ticks in found:
            send_signal(pid, ticks, _SIGKILL)
        return not found

    if inodes and not wait_until(empty, timeout_s=_SWEEP_TIMEOUT_S):
        left = ", ".join(str(pid) for pid, _ in _processes_in(inodes))
        message = f"processes in our namespaces do not die: {left}"
        raise HarnessError(message)


def _processes_in(inodes: set[int]) -> list[tuple[int, int]]:
    """Pid and start of every process in these network namespaces.

    The start is read first: a process that takes the pid over in between has another.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        ticks = start_ticks_of(int(entry.name))
        try:
            inode = (entry / "ns" / "net").stat().st_ino
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it ended while we looked; a zombie has no namespace
        if ticks is not None and inode in inodes:
            found.append((int(entry.name), ticks))
    return found


def _has(capability: str) -> bool:
    """Whether this process may use a capability (CapEff of /proc/self/status)."""
    text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    lines = [line for line in text.splitlines() if line.startswith("CapEff:")]
    bits = int(lines[0].split()[1], 16) if lines else 0
    return bool(bits >> _CAPABILITIES[capability] & 1)

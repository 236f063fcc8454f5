"""The program that runs on a host: it breaks nothing that it cannot heal by itself.

One agent runs on every host, started before anything is broken. It holds the lease of
the run: while the controller renews it, faults are armed and roles run; when nobody
does, it heals everything (newest first), ends the roles it started and goes.

Two processes. The *worker* serves requests; the *warden*, its parent, waits for it and
heals from the ledger on disk when the worker ends in any way but an orderly one, or
when it stands still past the end of the lease. A warden that dies makes the worker heal
and end. When both are killed, traffic heals by the kernel's own timeouts of nft set
elements, and `recover` heals the rest from the ledger; so does the next `serve`.

What is true at every instant: the row of a step is on disk before the step runs; an
undo is idempotent and takes a missing target for undone; a process is signalled through
a pidfd after its start time was compared; every command has a deadline, an output
bound, and dies with the agent; a request id is executed at most once.

One thread. The kernel means the parent *thread* by "parent" when it kills a child
(PR_SET_PDEATHSIG), and a fork in a threaded program may hang; an event loop has
neither trap. Commands in flight inherit the writing end of a pipe that the warden
reads, so it starts to heal only when the last of them is dead.

The file stands alone: standard library, Python 3.8, sent to hosts as it is. It installs
a copy of itself in the run's directory, for `relay`, and for the children that fill
disks, memory and cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import traceback
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

    Json = dict[str, Any]
    Handler = Callable[[Json], Awaitable[Json]]

VERSION = 1
DEFAULT_STATE_DIR = "/run/moonquake"
EXIT_USAGE, EXIT_BUSY, EXIT_BROKE, EXIT_RESIDUE = 2, 3, 4, 5

OUTPUT_BYTES = 1 << 20
LINE_BYTES = 8 << 20
KEPT_TEXT_BYTES = 1 << 20
LOG_BYTES = 64 << 20
ERROR_CHARACTERS = 400
MAX_ANSWERS, MAX_ANSWER_BYTES, MAX_CLIENTS = 4096, 16 << 20, 4096
MAX_IN_FLIGHT = 256
MAX_STEPS = 512
MAX_BURIED = 4096
MAX_TIMEOUT_S = 600.0
DEFAULT_TIMEOUT_S = 5.0

TICK_S = 0.1
BEAT_S = 0.25
LOG_CHECK_S = 1.0
KILL_WAIT_S = 2.0
STATE_WAIT_S = 1.0
FLUSH_WAIT_S = 1.0
RENEW_WAIT_S = 2.0
START_GRACE_S = 0.05
WARDEN_GRACE_S = 1.0
LOCK_WAIT_S = 1.0
READY_WAIT_S = 15.0

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434
_SO_NETNS_COOKIE = 71
_CLONE_NEWNET = 0x40000000

MARK = "MOONQUAKE_AGENT"
"""In the environment of what we start: tells it from strangers with an old number."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

NETWORK_TOOLS = frozenset({"bridge", "ethtool", "ip", "nft", "tc"})
GONE_MESSAGES = {
    "ip": ("Cannot find device", "does not exist"),
    "tc": (
        "Cannot find device",
        "Cannot find specified qdisc",
        "Cannot delete qdisc with handle of zero",
        "Invalid handle",
    ),
    "nft": ("No such file or directory",),
    "kill": ("No such process",),
    "umount": ("not mounted", "no mount point", "not found"),
}


class Refused(Exception):
    """A request that is answered with an error; `detail` is for programs."""

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.detail = detail


class Failed(Exception):
    """An action did not do what it should; `clean`: it changed nothing at all."""

    clean = False


class Gone(Failed):
    """An action has no target any more; to an undo that is as good as done."""


# --- the kernel: time, identity of processes and namespaces ---------------------------


def now_s() -> float:
    """Seconds since boot, suspension included: a lease runs out in sleep as well."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """What tells this boot from the one before."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return ""
    return text.strip()


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def ticks_of(pid: int) -> int:
    """Clock ticks from boot to the start of a process, 0 when it is gone."""
    fields = stat_of(pid)
    return int(fields[19]) if fields else 0


def state_of(pid: int, ticks: int) -> str:
    """The state letter of this very process, "" when it has ended."""
    fields = stat_of(pid)
    if not fields or int(fields[19]) != ticks or fields[0] in "ZX":
        return ""
    return fields[0]


def open_pidfd(pid: int) -> int:
    """A descriptor of the process; -1 where the kernel has none (before 5.3).

    Raises:
        ProcessLookupError: There is no such process.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    descriptor = int(_LIBC.syscall(_PIDFD_OPEN, pid, 0))
    code = ctypes.get_errno()
    if descriptor < 0 and code != errno.ENOSYS:
        raise OSError(code, os.strerror(code))
    return descriptor


def send_by_pidfd(descriptor: int, pid: int, number: int) -> None:
    if descriptor < 0:
        os.kill(pid, number)
    elif hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(descriptor, number)
    elif _LIBC.syscall(_PIDFD_SEND_SIGNAL, descriptor, number, None, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def send_signal(pid: int, ticks: int, number: int) -> bool:
    """Signals this very process; False when it has ended.

    The descriptor is opened before the start time is compared, so whatever becomes of
    the pid, the signal goes to the process that was looked at.
    """
    try:
        descriptor = open_pidfd(pid)
    except ProcessLookupError:
        return False
    try:
        if not state_of(pid, ticks):
            return False
        send_by_pidfd(descriptor, pid, number)
    except ProcessLookupError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def processes() -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of names, no objects
        if name.isdigit():
            yield int(name)


def kill_session(leader: int, ticks: int) -> bool:
    """SIGKILL to everything in the session of a process that we started.

    While the leader lives its session is ours. When it has ended, and all that it had
    started, the number may become that of a stranger's session, so then only those
    members are ours that carry our mark.
    """
    hit = False
    for pid, fields in _members(leader, ticks):
        hit = send_signal(pid, int(fields[19]), signal.SIGKILL) or hit
    return hit


def session_alive(leader: int, ticks: int) -> bool:
    """True while some member of the session runs."""
    return any(fields[0] not in "ZX" for _, fields in _members(leader, ticks))


def _members(leader: int, ticks: int) -> Iterator[tuple[int, list[str]]]:
    """The processes of a session that we started, with their states."""
    first = stat_of(leader)
    if first and int(first[19]) != ticks:
        return  # the number belongs to a stranger now
    for pid in processes():
        fields = stat_of(pid)
        inside = fields and int(fields[3]) == leader and int(fields[19]) >= ticks
        if inside and (first or _marked(pid)):
            yield pid, fields


def _marked(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.startswith(MARK.encode() + b"=") for word in words)


def marked(env: dict[str, str]) -> dict[str, str]:
    """Our own environment, with this and our mark."""
    return {**os.environ, **env, MARK: str(os.getpid())}


def network_of(pid: str = "self") -> str:
    """The name of a process's network namespace, "" when it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115
    except OSError:
        return ""


def network_cookie() -> int:
    """A number that the kernel never gives to a second network namespace (5.14), or 0.

    Namespace inodes are used again at once, so they alone identify nothing.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            raw = probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
        except OSError:
            return 0
    return int(struct.unpack("Q", raw)[0])


def process_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def tied_to(parent: int, *, new_network: bool = False) -> Callable[[], None]:
    """What a child does before it becomes its program: it dies with its parent."""

    def before_exec() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        prefer_for_oom(0)
        if new_network and _LIBC.unshare(_CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    return before_exec


def prefer_for_oom(score: int) -> None:
    """Moves this process up or down the kernel's list of victims, where it may."""
    with contextlib.suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(descriptor, str(score).encode())
        finally:
            os.close(descriptor)


def become_subreaper() -> None:
    """Orphans of what we start become our children, so none of them escapes."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# --- checking what was asked ----------------------------------------------------------


def text_in(request: Json, field: str, default: str | None = None) -> str:
    value = request.get(field, default)
    if not isinstance(value, str) or "\0" in value:
        raise Refused(f"{field}: needs a text without NUL, got {value!r}")
    return value


def number_in(request: Json, field: str, default: float, *, most: float) -> float:
    value = request.get(field, default)
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not 0 <= value <= most:
        message = "{}: needs a number from 0 to {:g}, got {!r}"
        raise Refused(message.format(field, most, value))
    return float(value)


def argv_in(request: Json, field: str) -> list[str]:
    value = request.get(field)
    words = value if isinstance(value, list) else []
    if not words or not all(isinstance(one, str) and "\0" not in one for one in words):
        message = "{}: needs a list of texts without NUL, got {!r:.200}"
        raise Refused(message.format(field, value))
    return words


def name_in(request: Json, field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str) or not _NAME.match(value):
        message = (
            "{}: needs letters, digits, '.', '_' or '-', at most 64, got {!r:.200}"
        )
        raise Refused(message.format(field, value))
    return value


def path_in(request: Json, field: str) -> str:
    value = text_in(request, field)
    if not value.startswith("/"):
        raise Refused(f"{field}: needs an absolute path, got {value!r}")
    return value


def whole_in(request: Json, field: str, default: int | None = None) -> int:
    value = request.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refused(f"{field}: needs a whole number, got {value!r}")
    return value


def signal_in(request: Json, field: str = "signal") -> int:
    name = text_in(request, field)
    try:
        return int(signal.Signals["SIG" + name.upper().replace("SIG", "", 1)])
    except KeyError:
        raise Refused(f"{field}: no such signal: {name!r}") from None


def check_steps(value: Any) -> list[Json]:
    """Refuses steps that cannot run before the first of them runs."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_STEPS:
        raise Refused(f"steps: needs a list of 1 to {MAX_STEPS} steps")
    for index, step in enumerate(value):
        where = f"steps[{index}]"
        if not isinstance(step, dict) or not isinstance(step.get("do"), dict):
            raise Refused(where + ".do: needs an action")
        for field in ("do", "undo", "renew"):
            if step.get(field) is not None:
                _checked(where + "." + field, step[field], _ACTIONS, "run")
        if step.get("verify") is not None:
            _checked(where + ".verify", step["verify"], _CHECKS, "run")
    return value


def _checked(where: str, value: Any, kinds: Json, command: str) -> None:
    kind = command if isinstance(value, dict) and command in value else ""
    if not kind and isinstance(value, dict):
        kind = str(value.get("op"))
    if kind not in kinds:
        raise Refused(f"{where}: no such action: {value!r:.200}")
    fields = kinds[kind]
    for name in value:
        if name != "op" and name not in fields:
            raise Refused(f"{where}.{name}: no such field")
    try:
        for name, (reader, needed) in fields.items():
            if needed or name in value:
                reader(value, name)
    except Refused as error:
        raise Refused(f"{where}.{error}") from None


def _timeout_in(request: Json, field: str = "timeout_s") -> float:
    return number_in(request, field, DEFAULT_TIMEOUT_S, most=MAX_TIMEOUT_S)


_COMMAND: Json = {
    "run": (argv_in, True),
    "stdin": (text_in, False),
    "timeout_s": (_timeout_in, False),
}
_CHILD: Json = {
    "name": (name_in, True),
    "cgroup": (path_in, False),
    "oom_score_adj": (lambda request, field: _oom_in(request, field), False),
    "timeout_s": (_timeout_in, False),
}
_ACTIONS: Json = {
    "run": _COMMAND,
    "signal": {
        "pid": (whole_in, True),
        "start_ticks": (whole_in, True),
        "signal": (signal_in, True),
    },
    "start": {"argv": (argv_in, True), **_CHILD},
    "end": {"name": (name_in, True)},
    "write": {"path": (path_in, True), "text": (text_in, True)},
    "restore": {"path": (path_in, True)},
    "fill": {
        "path": (path_in, True),
        "leave_bytes": (whole_in, True),
        "max_bytes": (whole_in, True),
        "timeout_s": (_timeout_in, False),
    },
    "unlink": {"path": (path_in, True)},
    "memory": {"bytes": (whole_in, True), **_CHILD},
    "cpu": {"workers": (whole_in, True), **_CHILD},
    "listen": {"address": (text_in, True), "port": (whole_in, True), **_CHILD},
}
_CHECKS: Json = {
    "run": {
        **_COMMAND,
        "expect_rc": (whole_in, False),
        "stdout_has": (text_in, False),
        "stdout_lacks": (text_in, False),
        "within_s": (_timeout_in, False),
    },
    "gone": {"name": (name_in, True)},
    "same": {"path": (path_in, True), "text": (text_in, True)},
}


def _oom_in(request: Json, field: str) -> int:
    value = request.get(field)
    if not isinstance(value, int) or not -1000 <= value <= 1000:
        raise Refused(f"{field}: needs -1000 to 1000, got {value!r}")
    return value


# --- the ledger: on disk before it happens --------------------------------------------


class Fault:
    """One fault: its steps, how far it came, and what its undo needs to know."""

    def __init__(
        self, fault_id: str, kind: str, target: str, steps: list[Json]
    ) -> None:
        self.fault_id = fault_id
        self.kind = kind
        self.target = target
        self.steps = steps
        self.started = 0
        self.undone: set[int] = set()
        self.state = "armed"
        self.since = time.time()
        self.detail = ""
        self.residual = ""
        self.kept: dict[str, str | None] = {}
        self.made: set[str] = set()
        self.children: dict[str, tuple[int, int]] = {}
        self.results: list[Json] = []
        self.ttl_s = 0.0
        self.expires_at = float("inf")
        self.confirm_by = float("inf")

    @property
    def open(self) -> bool:
        """True while something of it may be in place."""
        return self.state != "reverted"

    def child_alive(self, name: str) -> bool:
        """True while something of the named background child runs."""
        return name in self.children and session_alive(*self.children[name])

    def document(self) -> Json:
        left = min(self.expires_at, self.confirm_by) - now_s()
        return {
            "fault_id": self.fault_id,
            "kind": self.kind,
            "target": self.target,
            "state": self.state,
            "since": self.since,
            "steps": len(self.steps),
            "steps_done": self.started,
            "detail": self.detail,
            "residual": self.residual,
            "expires_in_s": None if left == float("inf") else round(left, 3),
            "results": self.results,
        }


class Book:
    """The ledger of one run on this host; every row is one whole line.

    Rows that stand before an act are synced. Rows written while healing are best
    effort: a full disk must not stop a heal, and all undos may run twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Json = {}
        self.faults: dict[str, Fault] = {}
        self.roles: dict[str, tuple[int, int]] = {}
        self.torn_rows = 0
        self._torn = False
        self._descriptor = -1

    @classmethod
    def create(cls, path: Path, header: Json) -> Book:
        book = cls(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        book._descriptor = os.open(str(path), flags, 0o600)
        book.write({"row": "run", **header})
        return book

    @classmethod
    def read(cls, path: Path) -> Book:
        """Reads a ledger back, of a living or a dead agent."""
        book = cls(path)
        for line in path.read_bytes().splitlines():
            try:
                book._apply(json.loads(line))
            except (ValueError, KeyError, TypeError):
                book.torn_rows += 1
        return book

    @classmethod
    def load(cls, path: Path) -> Book:
        """Reads the ledger of a dead agent back, and goes on writing it."""
        book = cls.read(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        book._descriptor = os.open(str(path), flags)
        book._end_torn_row()
        return book

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def write(self, row: Json) -> None:
        """Applies a row after it is on disk; a torn one takes no later row with it."""
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        line = b"\n" + line if self._torn else line
        written = os.write(self._descriptor, line)
        self._torn = written != len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, "the ledger took only a part of a row")
        os.fsync(self._descriptor)
        self._apply(row)

    def note(self, row: Json) -> None:
        """As `write`, for healing: what the disk does not take is true all the same."""
        try:
            self.write(row)
        except OSError:
            self._apply(row)

    def _end_torn_row(self) -> None:
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            with contextlib.suppress(OSError):
                os.write(self._descriptor, b"\n")

    def _apply(self, row: Json) -> None:
        kind = row["row"]
        if kind == "run":
            self.header = row
        elif kind == "role":
            self.roles[row["role"]] = (int(row["pid"]), int(row["start_ticks"]))
        elif kind == "role_gone":
            self.roles.pop(row["role"], None)
        elif kind == "fault":
            if row["fault_id"] not in self.faults:
                self.faults[row["fault_id"]] = Fault(
                    row["fault_id"], row["kind"], row["target"], row["steps"]
                )
        else:
            self._apply_to(self.faults[row["fault_id"]], row)

    def _apply_to(self, fault: Fault, row: Json) -> None:
        kind = row["row"]
        if kind == "step":
            fault.started = max(fault.started, int(row["index"]) + 1)
            fault.undone.discard(int(row["index"]))
        elif kind == "undone":
            fault.undone.add(int(row["index"]))
        elif kind == "kept":
            fault.kept.setdefault(row["path"], row["text"])
        elif kind == "made":
            fault.made.add(row["path"])
        elif kind == "child":
            fault.children[row["name"]] = (int(row["pid"]), int(row["start_ticks"]))
        elif kind == "state":
            fault.state, fault.detail = row["state"], row["detail"]
            fault.residual = row["residual"]


# --- commands -------------------------------------------------------------------------


class Completed:
    """How a command ended; `problem` says why it never ran."""

    def __init__(self, rc: int, stdout: bytes, stderr: bytes) -> None:
        self.rc = rc
        self.stdout = stdout.decode(errors="replace")
        self.stderr = stderr.decode(errors="replace")
        self.timed_out = False
        self.problem = ""

    @property
    def reason(self) -> str:
        """One line that says what went wrong, "" when nothing did."""
        if self.problem or self.timed_out:
            return self.problem or "took too long"
        if self.rc == 0:
            return ""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return one_line("exit {}: {}".format(self.rc, lines[0] if lines else ""))


class Commands:
    """Runs commands with a deadline and an output bound; they die with us.

    Args:
        alive: Descriptor that commands inherit; who reads its other end knows when the
            last of them is dead. -1 for none.
    """

    def __init__(self, alive: int = -1) -> None:
        self.alive = alive
        self.live: set[int] = set()
        self._parent = os.getpid()

    async def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        new_network: bool = False,
    ) -> Completed:
        """Runs to the end or the deadline. A cancelled caller ends the command."""
        given = os.memfd_create("stdin")
        try:
            os.write(given, stdin)
            os.lseek(given, 0, os.SEEK_SET)
            popen = subprocess.Popen(
                list(argv),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(self.alive,) if self.alive >= 0 else (),
                preexec_fn=tied_to(self._parent, new_network=new_network),
            )
        except (OSError, subprocess.SubprocessError) as error:
            completed = Completed(127, b"", str(error).encode())
            completed.problem = one_line(f"cannot run {argv[0]}: {error}")
            return completed
        finally:
            os.close(given)
        self.live.add(popen.pid)
        try:
            return await self._finish(popen, timeout_s)
        finally:
            self._end(popen)
            self.live.discard(popen.pid)

    async def _finish(
        self, popen: subprocess.Popen[bytes], timeout_s: float
    ) -> Completed:
        out, err = Collected(popen.stdout), Collected(popen.stderr)
        deadline = now_s() + timeout_s
        try:
            while popen.poll() is None and now_s() < deadline:
                if out.ended:
                    await asyncio.sleep(0.002)  # it ends at once, as a rule
                else:
                    await out.wait(min(0.05, deadline - now_s()))
            timed_out = popen.returncode is None
            for stream in (out, err):
                await stream.wait(0.0 if timed_out else 0.2)
        finally:
            out.close()
            err.close()
        rc = popen.returncode if popen.returncode is not None else -signal.SIGKILL
        completed = Completed(rc, bytes(out.data), bytes(err.data))
        completed.timed_out = timed_out
        return completed

    def _end(self, popen: subprocess.Popen[bytes]) -> None:
        if popen.returncode is None:
            kill_session(popen.pid, ticks_of(popen.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(KILL_WAIT_S)
        for stream in (popen.stdout, popen.stderr):
            if stream is not None:
                stream.close()


class Collected:
    """What a pipe brought, up to the bound; the rest is read and dropped."""

    def __init__(self, stream: Any) -> None:
        self.data = bytearray()
        self.dropped = 0
        self.ended = False
        self._descriptor = stream.fileno()
        self._loop = asyncio.get_event_loop()
        self._end = asyncio.Event()
        os.set_blocking(self._descriptor, False)
        self._loop.add_reader(self._descriptor, self._read)

    async def wait(self, timeout_s: float) -> None:
        """Waits for the end of the pipe, no longer than so."""
        if self.ended or timeout_s <= 0:
            return
        waiter = asyncio.ensure_future(self._end.wait())
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            waiter.cancel()

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)

    def _read(self) -> None:
        try:
            chunk = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return
        room = OUTPUT_BYTES - len(self.data)
        self.data += chunk[:room]
        self.dropped += max(0, len(chunk) - room)
        if not chunk:
            self.ended = True
            self._end.set()
            self.close()


def one_line(text: str) -> str:
    return " ".join(text.split())[:ERROR_CHARACTERS]


# --- actions, checks, undo ------------------------------------------------------------


class Bench:
    """Does and undoes actions, for the worker, the warden and `recover` alike.

    Args:
        book: The ledger that the actions belong to.
        commands: How commands are run.
        network_gone: The namespace of the ledger is no more: what network tools would
            undo went with it, and they must not run anywhere else.
        processes_gone: The processes of the ledger are no more (reboot).
    """

    def __init__(
        self,
        book: Book,
        commands: Commands,
        *,
        network_gone: bool = False,
        processes_gone: bool = False,
    ) -> None:
        self.book = book
        self.commands = commands
        self.network_gone = network_gone
        self.processes_gone = processes_gone
        self.popens: dict[int, subprocess.Popen[bytes]] = {}
        self._parent = os.getpid()

    # arming

    async def arm(self, fault: Fault) -> None:
        """Runs the steps in order, each on disk before it runs.

        A command that ended with an error changed nothing (steps are atomic), so its
        undo must not run: `tc qdisc add` fails where somebody else's qdisc is, and the
        undo would delete that one. One that was cut off may have done its work.

        Raises:
            Failed: A step failed; those before it are not undone yet.
        """
        for index, step in enumerate(fault.steps):
            row = {"row": "step", "fault_id": fault.fault_id, "index": index}
            try:
                self.book.write(row)
                fault.results.append(await self.act(fault, step["do"]))
            except OSError as error:
                raise Failed(f"step {index}: {error}") from error
            except Failed as error:
                if error.clean:
                    self.book.note({**row, "row": "undone"})
                raise Failed(f"step {index}: {error}") from error

    async def renew(self, fault: Fault) -> str:
        """Runs the renewals of an active fault again; says what failed."""
        problems = []
        for index, step in enumerate(fault.steps[: fault.started]):
            if step.get("renew") is None:
                continue
            try:
                await self.act(fault, step["renew"])
            except (Failed, OSError) as error:
                problems.append(f"step {index}: {error}")
        return one_line("; ".join(problems))

    async def act(self, fault: Fault, action: Json) -> Json:
        """Does one action.

        Raises:
            Failed: It was not done.
            Gone: It has no target any more.
        """
        if "run" in action:
            return await self._run(action)
        handler: Callable[[Fault, Json], Awaitable[Json]] = getattr(
            self, "_op_" + str(action["op"])
        )
        return await handler(fault, action)

    # healing

    async def heal(self, reason: str) -> list[Fault]:
        """Reverts every open fault, newest first; returns those that are left."""
        for fault in reversed(list(self.book.faults.values())):
            if fault.open:
                await self.revert(fault, reason)
        return [fault for fault in self.book.faults.values() if fault.open]

    async def revert(self, fault: Fault, reason: str) -> str:
        """Undoes the steps in reverse order, then checks them; returns what is left."""
        self._state(fault, "reverting", reason)
        problems: dict[int, str] = {}
        for index in range(fault.started - 1, -1, -1):
            undo = fault.steps[index].get("undo")
            if undo is not None and index not in fault.undone:
                problems[index] = await self._undo(fault, undo)
        for index in range(fault.started - 1, -1, -1):
            await self._conclude(fault, index, problems)
        left = [f"step {i}: {text}" for i, text in problems.items() if text]
        residual = one_line("; ".join(left))
        state = "residual" if residual else "reverted"
        self._state(fault, state, reason, residual)
        return residual

    async def _conclude(
        self, fault: Fault, index: int, problems: dict[int, str]
    ) -> None:
        """A check that is met outweighs an undo that complained, and the reverse."""
        if index in fault.undone:
            return
        check = fault.steps[index].get("verify")
        if check is not None:
            problems[index] = await self._verified(fault, check)
        if not problems.get(index):
            row = {"row": "undone", "fault_id": fault.fault_id, "index": index}
            self.book.note(row)

    async def _undo(self, fault: Fault, action: Json) -> str:
        if self._vanished(action):
            return ""
        try:
            await self.act(fault, action)
        except Gone:
            return ""
        except (Failed, OSError, Refused) as error:
            return str(error)
        return ""

    async def _verified(self, fault: Fault, check: Json) -> str:
        if self._vanished(check):
            return ""
        deadline = now_s() + float(check.get("within_s", STATE_WAIT_S))
        while True:
            problem = await self._unmet(fault, check)
            if not problem or now_s() >= deadline:
                return problem
            await asyncio.sleep(0.05)

    async def _unmet(self, fault: Fault, check: Json) -> str:
        """Why a check is not met, "" when it is."""
        if check.get("op") == "gone":
            alive = fault.child_alive(check["name"])
            return "{} still runs".format(check["name"]) if alive else ""
        if check.get("op") == "same":
            return _differs(check["path"], check["text"])
        stdin = str(check.get("stdin", "")).encode(errors="surrogateescape")
        timeout_s = float(check.get("timeout_s", DEFAULT_TIMEOUT_S))
        done = await self.commands.run(check["run"], stdin, timeout_s)
        if done.problem or done.timed_out:
            return "the check could not tell: " + done.reason
        if done.rc != int(check.get("expect_rc", 0)):
            return (
                ""
                if is_gone(check["run"], done)
                else "check: " + (done.reason or "exit 0")
            )
        if check.get("stdout_has", "") not in done.stdout:
            return "check: no {!r} in the output".format(check["stdout_has"])
        lacks = check.get("stdout_lacks", "")
        if lacks and lacks in done.stdout:
            return f"check: {lacks!r} is in the output"
        return ""

    def _vanished(self, action: Json) -> bool:
        argv = action.get("run")
        if argv:
            return self.network_gone and os.path.basename(argv[0]) in NETWORK_TOOLS  # noqa: PTH119
        return self.processes_gone and action.get("op") in ("signal", "end", "gone")

    def _state(self, fault: Fault, state: str, detail: str, residual: str = "") -> None:
        row = {"row": "state", "fault_id": fault.fault_id, "state": state}
        self.book.note({**row, "detail": detail, "residual": residual})

    # the actions

    async def _run(self, action: Json) -> Json:
        stdin = str(action.get("stdin", "")).encode(errors="surrogateescape")
        timeout_s = float(action.get("timeout_s", DEFAULT_TIMEOUT_S))
        done = await self.commands.run(action["run"], stdin, timeout_s)
        if not done.reason:
            return {"stdout": done.stdout[:4096]}
        text = one_line("{}: {}".format(action["run"][0], done.reason))
        failed = Gone(text) if is_gone(action["run"], done) else Failed(text)
        failed.clean = not done.timed_out and done.rc >= 0
        raise failed

    async def _op_signal(self, fault: Fault, action: Json) -> Json:
        pid, ticks = int(action["pid"]), int(action["start_ticks"])
        number = signal_in(action)
        if not send_signal(pid, ticks, number):
            raise Gone(f"process {pid} has ended")
        wanted = _AFTER_SIGNAL.get(number)
        if wanted is not None and not await _until(
            lambda: wanted(state_of(pid, ticks)), STATE_WAIT_S
        ):
            message = "process {} is in state {!r} after {}"
            raise Failed(message.format(pid, state_of(pid, ticks), action["signal"]))
        return {}

    async def _op_start(self, fault: Fault, action: Json) -> Json:
        popen = self._child(fault, action, action["argv"], subprocess.DEVNULL)
        await asyncio.sleep(START_GRACE_S)
        if popen.poll():
            raise Failed(
                "{} ended at once with {}".format(action["name"], popen.poll())
            )
        return {"pid": popen.pid, "start_ticks": ticks_of(popen.pid)}

    async def _op_memory(self, fault: Fault, action: Json) -> Json:
        return await self._stress(fault, action, "memory", str(action["bytes"]))

    async def _op_cpu(self, fault: Fault, action: Json) -> Json:
        return await self._stress(fault, action, "cpu", str(action["workers"]))

    async def _op_listen(self, fault: Fault, action: Json) -> Json:
        where = (action["address"], str(action["port"]))
        return await self._stress(fault, action, "listen", *where)

    async def _op_end(self, fault: Fault, action: Json) -> Json:
        name = action["name"]
        if name not in fault.children:
            raise Gone(f"{name} was not started")
        pid, ticks = fault.children[name]
        kill_session(pid, ticks)
        if not await _until(lambda: not session_alive(pid, ticks), KILL_WAIT_S):
            raise Failed(f"{name} (pid {pid}) does not end")
        self._reap(pid)
        return {}

    async def _op_write(self, fault: Fault, action: Json) -> Json:
        path = Path(action["path"])
        if action["path"] not in fault.kept:
            row = {"row": "kept", "fault_id": fault.fault_id, "path": action["path"]}
            self.book.write({**row, "text": _content(path)})
        _put(path, action["text"])
        return {}

    async def _op_restore(self, fault: Fault, action: Json) -> Json:
        path = Path(action["path"])
        if action["path"] not in fault.kept or not path.parent.exists():
            raise Gone(f"{path} was not written")
        text = fault.kept[action["path"]]
        if text is not None:
            _put(path, text)
        elif path.exists():
            path.unlink()
        return {}

    async def _op_fill(self, fault: Fault, action: Json) -> Json:
        path = action["path"]
        if os.path.lexists(path):
            raise Failed(f"{path} is there already")
        self.book.write({"row": "made", "fault_id": fault.fault_id, "path": path})
        sizes = (str(action["leave_bytes"]), str(action["max_bytes"]))
        argv = self._own("fill", path, *sizes)
        timeout_s = float(action.get("timeout_s", 60.0))
        done = await self.commands.run(argv, b"", timeout_s)
        if done.reason:
            raise Failed("fill: " + done.reason)
        return cast("Json", json.loads(done.stdout))

    async def _op_unlink(self, fault: Fault, action: Json) -> Json:
        path = Path(action["path"])
        if action["path"] not in fault.made or not os.path.lexists(str(path)):
            raise Gone(f"{path} was not made")
        if not stat.S_ISREG(path.lstat().st_mode):
            raise Failed(f"{path} is not the file that was made")
        path.unlink()
        return {}

    # children

    def _own(self, *words: str) -> list[str]:
        """The argument list of a child that is this program."""
        program = str(self.book.path.parent / "agent.py")
        return [sys.executable or "python3", "-I", program, "child", *words]

    async def _stress(self, fault: Fault, action: Json, *words: str) -> Json:
        """Starts one of our own children and waits for its word that it is ready."""
        popen = self._child(fault, action, self._own(*words), subprocess.PIPE)
        answer = Collected(popen.stdout)
        deadline = now_s() + float(action.get("timeout_s", 30.0))
        try:
            while b"\n" not in answer.data and not answer.ended and now_s() < deadline:
                await answer.wait(0.01)
        finally:
            answer.close()
            cast("Any", popen.stdout).close()
        said = answer.data.decode(errors="replace").strip()
        if said != "ready":
            raise Failed(
                one_line("{}: {}".format(words[0], said or "not ready in time"))
            )
        return {"pid": popen.pid, "start_ticks": ticks_of(popen.pid)}

    def _child(
        self, fault: Fault, action: Json, argv: Sequence[str], stdout: int
    ) -> subprocess.Popen[bytes]:
        """Starts a background child; the kernel kills it when we end."""
        if fault.child_alive(action["name"]):
            raise Failed("{} runs already".format(action["name"]))
        before = _placed(
            tied_to(self._parent),
            action.get("cgroup", ""),
            int(action.get("oom_score_adj", 0 if "argv" in action else 500)),
        )
        try:
            popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                env=marked({}),
                start_new_session=True,
                preexec_fn=before,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Failed(f"cannot start {argv[0]}: {error}") from error
        self.popens[popen.pid] = popen
        row = {"row": "child", "fault_id": fault.fault_id, "name": action["name"]}
        ticks = ticks_of(popen.pid)
        try:
            self.book.write({**row, "pid": popen.pid, "start_ticks": ticks})
        except OSError:  # nobody would find it to end it
            kill_session(popen.pid, ticks)
            self._reap(popen.pid)
            if popen.stdout is not None:
                popen.stdout.close()
            raise
        return popen

    def _reap(self, pid: int) -> None:
        popen = self.popens.pop(pid, None)
        if popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(KILL_WAIT_S)


_AFTER_SIGNAL: dict[int, Callable[[str], bool]] = {
    int(signal.SIGSTOP): lambda state: state in ("T", "t"),
    int(signal.SIGCONT): lambda state: state not in ("T", "t"),
    int(signal.SIGKILL): lambda state: state == "",
}


async def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = now_s() + timeout_s
    while not condition():
        if now_s() >= deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def is_gone(argv: Sequence[str], done: Completed) -> bool:
    """True when a tool says in its own words that its target does not exist."""
    if done.problem or done.timed_out:
        return False
    known = GONE_MESSAGES.get(os.path.basename(argv[0]), ())  # noqa: PTH119
    return any(words in done.stderr for words in known)


def _placed(
    before: Callable[[], None], cgroup: str, oom_score_adj: int
) -> Callable[[], None]:
    """Adds the cgroup and the rank among the kernel's victims to what a child does."""

    def before_exec() -> None:
        before()
        prefer_for_oom(oom_score_adj)
        if cgroup:
            _put(Path(cgroup) / "cgroup.procs", str(os.getpid()))

    return before_exec


def _content(path: Path) -> str | None:
    """What a file holds before we write it, None when there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(KEPT_TEXT_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > KEPT_TEXT_BYTES:
        raise Failed(f"{path} is too long to be kept")
    return data.decode(errors="surrogateescape")


def _put(path: Path, text: str) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(text.encode(errors="surrogateescape"))


def _differs(path: str, text: str) -> str:
    try:
        found = _content(Path(path))
    except (Failed, OSError) as error:
        return str(error)
    if found is None or found == text:
        return ""  # a file that is gone holds nothing of ours
    return f"{path} holds {found!r:.80}"


# --- roles ----------------------------------------------------------------------------


class Role:
    """A process of the system under test that the agent started."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.popen = popen
        self.pid = popen.pid
        self.ticks = ticks_of(popen.pid)
        self.out = log.with_name(name + ".out")
        self.err = log.with_name(name + ".err")
        self.out_from = 0
        self.err_from = 0

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None and state_of(self.pid, self.ticks) != ""

    def document(self) -> Json:
        return {
            "alive": self.alive,
            "pid": self.pid,
            "start_ticks": self.ticks,
            "rc": self.popen.returncode,
        }


class Roles:
    """Starts roles, watches them, ends them."""

    def __init__(self, book: Book, directory: Path) -> None:
        self.book = book
        self.directory = directory
        self.roles: dict[str, Role] = {}
        self._parent = os.getpid()

    def spawn(
        self, name: str, argv: Sequence[str], env: dict[str, str], cwd: str
    ) -> Role:
        if name in self.roles and self.roles[name].alive:
            raise Refused(f"{name} is already running")
        if name in self.roles:
            kill_session(self.roles[name].pid, self.roles[name].ticks)
        log = self.directory / name
        begin = [_size(log.with_name(name + end)) for end in (".out", ".err")]
        role = Role(name, self._start(log, argv, env, cwd), log)
        role.out_from, role.err_from = begin
        self.roles[name] = role
        row = {"row": "role", "role": name, "pid": role.pid, "start_ticks": role.ticks}
        self.book.write(row)
        return role

    def _start(
        self, log: Path, argv: Sequence[str], env: dict[str, str], cwd: str
    ) -> subprocess.Popen[bytes]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        files = [
            os.open(str(log.with_name(log.name + end)), flags, 0o600)
            for end in (".out", ".err")
        ]
        try:
            return subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=files[0],
                stderr=files[1],
                cwd=cwd or None,
                env=marked(env),
                start_new_session=True,
                preexec_fn=tied_to(self._parent),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Refused(f"cannot start {log.name}: {error}") from error
        finally:
            for descriptor in files:
                os.close(descriptor)

    def named(self, request: Json) -> Role:
        name = name_in(request, "role")
        if name not in self.roles:
            raise Refused(f"{name} was not started here")
        return self.roles[name]

    async def wait_line(self, role: Role, marker: str, timeout_s: float) -> str:
        """The first whole line with the marker since this start."""
        deadline = now_s() + timeout_s
        reader = Lines(role.out, role.out_from)
        pause_s = 0.01
        while True:
            ended = not role.alive  # asked before reading: the last line counts
            for line in reader.more():
                if marker in line:
                    return line
            if ended or now_s() >= deadline:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(0.05, pause_s * 1.5)
        rc = role.popen.poll()
        reason = f"ended with {rc}"
        if not ended:
            reason = f"not ready in {timeout_s:g} s"
        detail = _last(role.err, 600, role.err_from).strip()
        raise Refused(reason, reason=reason, rc=rc, tail=detail)

    async def stop(self, role: Role, timeout_s: float) -> int:
        """SIGTERM, and SIGKILL to the whole session when the time is up."""
        for number in (signal.SIGTERM, signal.SIGCONT):
            send_signal(role.pid, role.ticks, number)
        await _until(lambda: role.popen.poll() is not None, timeout_s)
        kill_session(role.pid, role.ticks)
        if not await _until(lambda: role.popen.poll() is not None, KILL_WAIT_S):
            raise Refused(f"{role.name} (pid {role.pid}) does not end")
        self.book.note({"row": "role_gone", "role": role.name})
        return int(role.popen.returncode)

    async def end_all(self) -> None:
        """SIGKILL to every role at once: they keep nothing on disk."""
        for role in self.roles.values():
            kill_session(role.pid, role.ticks)
        for role in self.roles.values():
            popen = role.popen
            await _until(lambda popen=popen: popen.poll() is not None, KILL_WAIT_S)  # type: ignore[misc]
            self.book.note({"row": "role_gone", "role": role.name})

    def bound_logs(self) -> None:
        """Empties a log that has grown past the bound."""
        for role in self.roles.values():
            for path in (role.out, role.err):
                if _size(path) > LOG_BYTES:
                    os.truncate(str(path), 0)
                    role.out_from = min(role.out_from, _size(role.out))
                    role.err_from = min(role.err_from, _size(role.err))


class Lines:
    """The whole lines that were added to a log since the last look."""

    def __init__(self, path: Path, begin: int) -> None:
        self._path = path
        self._at = begin
        self._rest = b""

    def more(self) -> list[str]:
        if _size(self._path) < self._at:
            self._at, self._rest = 0, b""
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read(OUTPUT_BYTES)
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-(1 << 16) :]
        return [line.decode(errors="replace").rstrip("\r") for line in lines]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last(path: Path, count: int, begin: int = 0) -> str:
    size = _size(path)
    with path.open("rb") as file:
        file.seek(max(begin, size - count))
        return file.read(count).decode(errors="replace")


# --- answers: at most once ------------------------------------------------------------


class Answers:
    """Every request id is executed once; its answer is kept and given again.

    Ids are `<client>:<number>` with rising numbers. An id whose answer was dropped to
    keep the bound is refused, never executed again.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[bytes, asyncio.Future[bytes]]] = (
            OrderedDict()
        )
        self._bytes = 0
        self._floor: OrderedDict[str, int] = OrderedDict()

    def once(
        self, request_id: str, digest: bytes, execute: Callable[[], Awaitable[bytes]]
    ) -> asyncio.Future[bytes]:
        """The answer of this request, by executing it or from memory."""
        known = self._kept.get(request_id)
        if known is not None:
            if known[0] != digest:
                raise Refused(f"id {request_id} was another request before")
            return known[1]
        client, _, number = request_id.rpartition(":")
        if not client or not number.isdigit():
            raise Refused(f"id: needs <client>:<number>, got {request_id!r:.80}")
        if int(number) <= self._floor.get(client, -1):
            raise Refused(f"id {request_id} is too old, its answer is dropped")
        if (
            len([1 for _, one in self._kept.values() if not one.done()])
            >= MAX_IN_FLIGHT
        ):
            raise Refused("too many requests at once")
        future = asyncio.ensure_future(execute())
        self._kept[request_id] = (digest, future)
        future.add_done_callback(self._weigh)
        return future

    def _weigh(self, future: asyncio.Future[bytes]) -> None:
        self._bytes += _weight(future)
        while len(self._kept) > MAX_ANSWERS or self._bytes > MAX_ANSWER_BYTES:
            if not self._drop_oldest():
                return

    def _drop_oldest(self) -> bool:
        for request_id, (_, future) in self._kept.items():
            if not future.done():
                continue
            if len(self._kept) == 1:
                return False  # the last answer is kept whatever its size
            del self._kept[request_id]
            self._bytes -= _weight(future)
            client, _, number = request_id.rpartition(":")
            self._floor[client] = max(self._floor.get(client, -1), int(number))
            self._floor.move_to_end(client)
            if len(self._floor) > MAX_CLIENTS:
                self._floor.popitem(last=False)
            return True
        return False


def _weight(future: asyncio.Future[bytes]) -> int:
    failed = future.cancelled() or future.exception() is not None
    return 0 if failed else len(future.result())


# --- the worker -----------------------------------------------------------------------


class Beat:
    """A page shared by warden and worker: the end of the lease and a sign of life."""

    _LAYOUT = struct.Struct("dd")

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, expires_at: float, at: float) -> None:
        self._LAYOUT.pack_into(self._page, 0, expires_at, at)

    def read(self) -> tuple[float, float]:
        expires_at, at = self._LAYOUT.unpack_from(self._page, 0)
        return float(expires_at), float(at)


class Worker:
    """Serves the requests of one run until its lease ends."""

    def __init__(
        self,
        *,
        run: str,
        directory: Path,
        book: Book,
        ttl_s: float,
        beat: Beat,
        alive: int,
    ) -> None:
        self.run = run
        self.directory = directory
        self.book = book
        self.ttl_s = ttl_s
        self.expires_at = now_s() + ttl_s
        self.ending = ""
        self.left: list[Fault] = []
        self.commands = Commands(alive)
        self.bench = Bench(book, self.commands)
        self.roles = Roles(book, directory)
        self._beat = beat
        self._answers = Answers()
        self._locks: dict[str, asyncio.Lock] = {}
        self._work: dict[str, asyncio.Future[Json]] = {}
        self._healing: dict[str, asyncio.Future[Json | None]] = {}
        self._end_task: asyncio.Future[None] | None = None
        self._buried: OrderedDict[str, None] = OrderedDict()
        self._writing: set[asyncio.Task[None]] = set()
        self._next_log_check = 0.0

    async def serve(self, ready: Callable[[Json], None]) -> int:
        """Serves until the end; returns the exit code."""
        loop = asyncio.get_event_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_end, "SIGTERM")
        beating = asyncio.ensure_future(self._keep_beating())
        path = str(self.directory / "agent.sock")
        server = await asyncio.start_unix_server(
            self._connection, path=path, limit=LINE_BYTES
        )
        ready({"ready": True, "socket": path, "pid": os.getpid()})
        while self._end_task is None:
            await asyncio.sleep(TICK_S)
            self._tick()
        await self._end_task
        if self._writing:
            await asyncio.wait(self._writing, timeout=FLUSH_WAIT_S)
        server.close()
        beating.cancel()
        return EXIT_RESIDUE if self.left else 0

    async def _keep_beating(self) -> None:
        while True:
            self._beat.write(self.expires_at, now_s())
            await asyncio.sleep(BEAT_S)

    def _tick(self) -> None:
        """What time brings; nothing here waits, for the end of the lease does not."""
        now = now_s()
        if now >= self.expires_at:
            self._begin_end("the lease ran out")
            return
        for fault in list(self.book.faults.values()):
            if fault.state == "active" and now >= min(
                fault.expires_at, fault.confirm_by
            ):
                self._heal_due(fault, late=now >= fault.confirm_by)
        if now >= self._next_log_check:
            self._next_log_check = now + LOG_CHECK_S
            self.roles.bound_logs()
        self._reap_strays()

    def _heal_due(self, fault: Fault, *, late: bool) -> None:
        """Starts the heal of one fault, once."""
        if fault.fault_id in self._healing:
            return
        reason = "not confirmed in time" if late else "its lease ran out"
        heal = self._quietly(self._exclusive(fault, self._disarm(fault, reason)))
        self._healing[fault.fault_id] = asyncio.ensure_future(heal)

    async def _quietly(self, work: Awaitable[Json]) -> Json | None:
        """For work that nobody waits for: the end of the agent heals what it left."""
        try:
            return await work
        except Refused:
            return None

    def _reap_strays(self) -> None:
        """Orphans come to us; those that have ended are collected, one a tick.

        What is ours is asked first: an ended child that nobody collects hides others.
        """
        for popen in self._popens():
            popen.poll()
        with contextlib.suppress(ChildProcessError):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            ended = os.waitid(os.P_ALL, 0, flags)
            if ended is not None and ended.si_pid not in self.commands.live:
                os.waitpid(ended.si_pid, os.WNOHANG)

    def _popens(self) -> list[subprocess.Popen[bytes]]:
        roles = [role.popen for role in self.roles.roles.values()]
        return [*roles, *self.bench.popens.values()]

    # the end

    def _begin_end(self, reason: str) -> asyncio.Future[None]:
        if self._end_task is None:
            self.ending = reason
            self._end_task = asyncio.ensure_future(self._end(reason))
        return self._end_task

    async def _end(self, reason: str) -> None:
        """Heals, ends the roles, removes the run's directory."""
        for work in list(self._work.values()):
            work.cancel()
        if self._work:
            await asyncio.wait(set(self._work.values()))
        self.left = await self.bench.heal(reason)
        await self.roles.end_all()
        end_children()
        clear(self.directory, keep_ledger=bool(self.left))

    # requests

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pending: set[asyncio.Task[None]] = set()
        try:
            while True:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    break  # the end, or a request torn by a lost connection
                task = asyncio.ensure_future(self._answer(line, writer))
                for tasks in (pending, self._writing):
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            if pending:
                await asyncio.wait(pending)
        except (ValueError, OSError):
            pass  # a line beyond the bound, or the peer is gone: this connection ends
        finally:
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        answer = await self._answer_to(line)
        with contextlib.suppress(OSError, RuntimeError):
            writer.write(answer + b"\n")
            await writer.drain()

    async def _answer_to(self, line: bytes) -> bytes:
        request_id: Any = None
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise Refused("a request is a JSON object")
            request_id = request.get("id")
            if not isinstance(request_id, str) or len(request_id) > 128:
                raise Refused("id: needs a text of at most 128 characters")
            digest = hashlib.sha256(line).digest()
            future = self._answers.once(
                request_id, digest, lambda: self._execute(request)
            )
        except (Refused, ValueError, RecursionError) as error:
            return _encoded(
                {"id": request_id, "ok": False, "error": one_line(str(error))}
            )
        return await asyncio.shield(future)

    async def _execute(self, request: Json) -> bytes:
        answer: Json = {"id": request["id"], "ok": True}
        try:
            handler = getattr(self, "_op_" + str(request.get("op")), None)
            if handler is None:
                raise Refused(
                    "op: no such operation: {!r:.80}".format(request.get("op"))
                )
            answer["result"] = await cast("Handler", handler)(request)
        except Refused as error:
            answer.update(ok=False, error=one_line(str(error)), detail=error.detail)
        except asyncio.CancelledError:
            message = f"the agent is ending: {self.ending}"
            answer.update(ok=False, error=message)
        except Exception as error:
            traceback.print_exc()
            message = f"the agent broke: {type(error).__name__}: {error}"
            answer.update(ok=False, error=one_line(message))
        return _encoded(answer)

    async def _exclusive(self, fault: Fault, work: Coroutine[Any, Any, Json]) -> Json:
        """One change of a fault at a time; the end of the agent interrupts it."""
        async with self._locks.setdefault(fault.fault_id, asyncio.Lock()):
            if self.ending:
                work.close()
                raise Refused(f"the agent is ending: {self.ending}")
            task = self._work[fault.fault_id] = asyncio.ensure_future(work)
            try:
                return await task
            except asyncio.CancelledError:
                ending = f"the agent is ending: {self.ending}"
                reason = ending if self.ending else "it was disarmed meanwhile"
                raise Refused(reason) from None
            finally:
                self._work.pop(fault.fault_id, None)

    async def _op_hello(self, request: Json) -> Json:
        kernel = os.uname()
        return {
            "version": VERSION,
            "run": self.run,
            "pid": os.getpid(),
            "warden": os.getppid(),
            "boot_id": boot_id(),
            "hostname": kernel.nodename,
            "kernel": kernel.release,
            "ttl_s": self.ttl_s,
            "expires_in_s": round(self.expires_at - now_s(), 3),
        }

    async def _op_renew(self, request: Json) -> Json:
        ttl_s = number_in(request, "ttl_s", self.ttl_s, most=86400.0)
        if ttl_s <= 0:
            raise Refused("ttl_s: needs a number above 0")
        if self.ending:
            raise Refused(f"the agent is ending: {self.ending}")
        self.ttl_s, self.expires_at = ttl_s, now_s() + ttl_s
        self._beat.write(self.expires_at, now_s())
        failed = await self._renew_faults()
        return {"expires_in_s": round(self.expires_at - now_s(), 3), "failed": failed}

    async def _renew_faults(self) -> Json:
        """Renews what is active; a fault that takes long delays no other and no answer.

        Returns:
            What failed, by fault.
        """
        active = [one for one in self.book.faults.values() if one.state == "active"]
        tasks = {
            asyncio.ensure_future(
                self._quietly(self._exclusive(fault, self._renew_fault(fault)))
            ): fault.fault_id
            for fault in active
        }
        if not tasks:
            return {}
        done, late = await asyncio.wait(set(tasks), timeout=RENEW_WAIT_S)
        failed = {tasks[task]: "still being renewed" for task in late}
        for task in done:
            problem = (task.result() or {}).get("problem")
            if problem:
                failed[tasks[task]] = problem
        return failed

    async def _renew_fault(self, fault: Fault) -> Json:
        if fault.state != "active":
            return {}
        if fault.ttl_s:
            fault.expires_at = now_s() + fault.ttl_s
        return {"problem": await self.bench.renew(fault)}

    async def _op_run(self, request: Json) -> Json:
        argv = argv_in(request, "argv")
        stdin = text_in(request, "stdin", "").encode(errors="surrogateescape")
        done = await self.commands.run(argv, stdin, _timeout_in(request))
        return {
            "rc": done.rc,
            "stdout": done.stdout,
            "stderr": done.stderr or done.problem,
            "timed_out": done.timed_out,
        }

    async def _op_probe(self, request: Json) -> Json:
        return await capabilities(self.commands)

    async def _op_arm(self, request: Json) -> Json:
        fault_id = text_in(request, "fault_id")
        if not fault_id or len(fault_id) > 200:
            raise Refused("fault_id: needs a text of 1 to 200 characters")
        fault = Fault(
            fault_id,
            text_in(request, "kind", ""),
            text_in(request, "target", ""),
            check_steps(request.get("steps")),
        )
        fault.ttl_s = number_in(request, "ttl_s", 0.0, most=86400.0)
        confirm_s = number_in(request, "confirm_s", 0.0, most=86400.0)
        return await self._exclusive(fault, self._arm(fault, confirm_s))

    async def _arm(self, fault: Fault, confirm_s: float) -> Json:
        if fault.fault_id in self._buried or fault.fault_id in self.book.faults:
            raise Refused(f"{fault.fault_id} was armed or disarmed before")
        row = {"row": "fault", "fault_id": fault.fault_id, "kind": fault.kind}
        self.book.faults[fault.fault_id] = fault
        try:
            self.book.write({**row, "target": fault.target, "steps": fault.steps})
        except OSError as error:
            fault.state = "reverted"
            raise Refused(f"the ledger cannot be written: {error}") from error
        if confirm_s:
            fault.confirm_by = now_s() + confirm_s
        try:
            await self.bench.arm(fault)
        except Failed as error:
            residual = await self.bench.revert(fault, one_line(str(error)))
            raise Refused(str(error), residual=residual) from error
        if fault.ttl_s:
            fault.expires_at = now_s() + fault.ttl_s
        fault.state = "active"
        row = {"row": "state", "fault_id": fault.fault_id, "state": "active"}
        self.book.note({**row, "detail": "", "residual": ""})
        return {"steps": fault.results}

    async def _op_confirm(self, request: Json) -> Json:
        fault = self.book.faults.get(text_in(request, "fault_id"))
        standing = fault is not None and fault.state in ("armed", "active")
        if fault is None or not standing or fault.fault_id in self._healing:
            detail = (fault.detail or "it heals") if fault else "never armed"
            raise Refused("{} is not active: {}".format(request["fault_id"], detail))
        fault.confirm_by = float("inf")
        return {}

    async def _op_disarm(self, request: Json) -> Json:
        fault_id = text_in(request, "fault_id")
        fault = self.book.faults.get(fault_id)
        if fault is None:
            self._bury(fault_id)
            return {"residual": "", "state": "unknown"}
        if fault.state == "armed" and fault_id in self._work:
            self._work[fault_id].cancel()
        return await self._exclusive(fault, self._disarm(fault, "disarmed"))

    def _bury(self, fault_id: str) -> None:
        """An arm that is late must find the door shut."""
        self._buried[fault_id] = None
        if len(self._buried) > MAX_BURIED:
            self._buried.popitem(last=False)

    async def _disarm(self, fault: Fault, reason: str) -> Json:
        residual = fault.residual
        if fault.open:
            residual = await self.bench.revert(fault, reason)
        return {"residual": residual, "state": fault.state}

    async def _op_fault(self, request: Json) -> Json:
        fault_id = text_in(request, "fault_id")
        fault = self.book.faults.get(fault_id)
        if fault is None:
            return {"fault_id": fault_id, "state": "unknown"}
        return fault.document()

    async def _op_faults(self, request: Json) -> Json:
        return {"faults": [fault.document() for fault in self.book.faults.values()]}

    async def _op_spawn(self, request: Json) -> Json:
        env = request.get("env") or {}
        if not isinstance(env, dict):
            raise Refused("env: needs names and texts")
        for name in env:
            text_in(env, name)
            if not name or "=" in name or "\0" in name:
                raise Refused(f"env: no such name can be: {name!r:.80}")
        name, argv = name_in(request, "role"), argv_in(request, "argv")
        cwd = text_in(request, "cwd", "")
        if self.ending:
            raise Refused(f"the agent is ending: {self.ending}")
        role = self.roles.spawn(name, argv, env, cwd)
        return {"pid": role.pid, "start_ticks": role.ticks}

    async def _op_role(self, request: Json) -> Json:
        role = self.roles.roles.get(name_in(request, "role"))
        if role is None:
            return {"alive": False, "pid": 0, "start_ticks": 0, "rc": None}
        return role.document()

    async def _op_wait_line(self, request: Json) -> Json:
        role = self.roles.named(request)
        marker = text_in(request, "marker")
        return {"line": await self.roles.wait_line(role, marker, _timeout_in(request))}

    async def _op_tail(self, request: Json) -> Json:
        role = self.roles.named(request)
        count = min(whole_in(request, "bytes", 4096), OUTPUT_BYTES)
        return {"out": _last(role.out, count), "err": _last(role.err, count)}

    async def _op_stop(self, request: Json) -> Json:
        role = self.roles.named(request)
        return {"rc": await self.roles.stop(role, _timeout_in(request))}

    async def _op_shutdown(self, request: Json) -> Json:
        await asyncio.shield(self._begin_end("shutdown"))
        left = [f"{fault.fault_id}: {fault.residual}" for fault in self.left]
        return {"residual": "; ".join(left)}


def _encoded(answer: Json) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def children_of(parent: int) -> list[int]:
    """Living or ended children of a process."""
    found = []
    for pid in processes():
        fields = stat_of(pid)
        if fields and int(fields[1]) == parent:
            found.append(pid)
    return found


def end_children() -> None:
    """SIGKILL to every child that is left, and to the orphans that come of it."""
    deadline = now_s() + KILL_WAIT_S
    while now_s() < deadline:
        left = children_of(os.getpid())
        if not left:
            return
        for pid in left:
            send_signal(pid, ticks_of(pid), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def clear(directory: Path, *, keep_ledger: bool) -> None:
    """Removes a run's directory, or all of it but the ledger."""
    if not keep_ledger:
        shutil.rmtree(str(directory), ignore_errors=True)
        return
    for path in directory.iterdir():
        if path.name != "ledger.jsonl":
            with contextlib.suppress(OSError):
                path.unlink()


# --- what this host can do ------------------------------------------------------------

_TRY_NFT = """table inet moonquake_probe {
  set peers { type ipv4_addr; flags timeout; elements = { 192.0.2.1 timeout 1s } }
  chain out { type filter hook output priority 0; policy accept;
    ip daddr @peers counter drop
  }
}
"""
_TRY_RULE = (
    "table inet moonquake_probe {{\n  chain out {{ type filter hook output priority 0;"
    " policy accept;\n    ip daddr 192.0.2.1 {}\n  }}\n}}\n"
)
_TRIED: dict[str, tuple[list[str], str]] = {
    "nft": (["nft", "-f", "-"], _TRY_NFT),
    "nft_numgen": (["nft", "-f", "-"], _TRY_RULE.format("numgen inc mod 5 0 drop")),
    "nft_limit": (
        ["nft", "-f", "-"],
        _TRY_RULE.format("limit rate over 1 mbytes/second drop"),
    ),
    "nft_reject": (
        ["nft", "-f", "-"],
        _TRY_RULE.format("meta l4proto tcp reject with tcp reset"),
    ),
    "link": (["ip", "link", "set", "lo", "up"], ""),
    "tbf": (
        [
            "tc",
            "qdisc",
            "add",
            "dev",
            "lo",
            "root",
            "tbf",
            "rate",
            "1mbit",
            "burst",
            "32k",
            "latency",
            "50ms",
        ],
        "",
    ),
    "netem": (["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"], ""),
}


async def capabilities(commands: Commands) -> Json:
    """Tries each tool in a network namespace of its own, where it changes nothing."""
    found: Json = {}
    why: dict[str, str] = {}
    for name, (argv, stdin) in _TRIED.items():
        done = await commands.run(argv, stdin.encode(), new_network=True)
        found[name] = not done.reason
        if done.reason:
            why[name] = done.reason
    found["cgroup"], why["cgroup"] = _cgroup()
    found["root"], why["root"] = os.geteuid() == 0, "needs root: run the agent as root"
    found["pidfd"], why["pidfd"] = _has_pidfd(), "the kernel is older than 5.3"
    found["why_not"] = {name: text for name, text in why.items() if not found[name]}
    return found


def _cgroup() -> tuple[str, str]:
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    memory = Path("/sys/fs/cgroup/memory")
    with contextlib.suppress(OSError):
        if "memory" in unified.read_text(encoding="ascii").split():
            return "v2", ""
    if (memory / "memory.limit_in_bytes").exists() or memory.is_dir():
        writable = os.access(str(memory), os.W_OK)
        return ("v1", "") if writable else ("", f"{memory} is read-only")
    return "", "no memory controller under /sys/fs/cgroup"


def _has_pidfd() -> bool:
    try:
        descriptor = open_pidfd(os.getpid())
    except OSError:
        return False
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0


# --- the children that press on a host ------------------------------------------------


def child(kind: str, words: Sequence[str]) -> int:
    """What a background child does until it is ended."""
    try:
        _PRESSURES[kind](*words)
    except (OSError, MemoryError, ValueError) as error:
        say("error: " + one_line(str(error) or type(error).__name__))
        return 1
    return 0


def _fill(path: str, leave_bytes: str, max_bytes: str) -> None:
    """Takes the free space of a file system but for what shall be left."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    room = os.statvfs(os.path.dirname(path))  # noqa: PTH120
    wanted = min(int(max_bytes), room.f_bavail * room.f_frsize - int(leave_bytes))
    taken = 0
    chunk = 64 << 20
    try:
        while taken < wanted:
            size = min(chunk, wanted - taken)
            try:
                os.posix_fallocate(descriptor, taken, size)
            except OSError as error:
                if error.errno != errno.ENOSPC or chunk <= 4096:
                    raise
                chunk //= 4
                continue
            taken += size
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(descriptor)
    say(json.dumps({"bytes": taken}))


def _hold_memory(size: str) -> None:
    wanted = int(size)
    if wanted:
        page = mmap.mmap(-1, wanted)
        for at in range(0, wanted, mmap.PAGESIZE):
            page[at] = 1
    say("ready")
    signal.pause()


def _burn(workers: str) -> None:
    parent = os.getpid()
    for _ in range(int(workers) - 1):
        if os.fork() == 0:
            tied_to(parent)()
            break
    else:
        say("ready")
    while True:
        pass


def _listen(address: str, port: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, int(port)))
        listener.listen(16)
        say("ready")
        while True:
            listener.accept()[0].close()


_PRESSURES: dict[str, Callable[..., None]] = {
    "fill": _fill,
    "memory": _hold_memory,
    "cpu": _burn,
    "listen": _listen,
}


# --- the warden -----------------------------------------------------------------------


class Warden:
    """Waits for the worker, and heals in its place when it does not end well."""

    def __init__(self, *, directory: Path, lock: Lock, beat: Beat, alive: int) -> None:
        self.directory = directory
        self.lock = lock
        self._beat = beat
        self._alive = alive

    def watch(self, worker: int, ticks: int) -> int:
        """Returns when the worker has ended and the host is healed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: _tell(worker, ticks))
        descriptor = open_pidfd(worker)
        status = None
        while status is None:
            self._pause(descriptor)
            if self._overdue():
                send_signal(worker, ticks, signal.SIGKILL)
            status = self._reap(worker)
        if descriptor >= 0:
            os.close(descriptor)
        code = 0
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != 0:
            code = self._heal()
        end_children()
        self.lock.release()
        return code

    def _pause(self, descriptor: int) -> None:
        watched = [descriptor] if descriptor >= 0 else []
        select.select(watched, [], [], 0.5 if watched else 0.1)

    def _reap(self, worker: int) -> int | None:
        """Collects orphans; the status of the worker once it has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == worker:
                return status
            if pid == 0:
                return None

    def _overdue(self) -> bool:
        """The lease is over and the worker stands still: it must not hold the heal."""
        expires_at, beat_at = self._beat.read()
        now = now_s()
        return now > expires_at + WARDEN_GRACE_S and now > beat_at + WARDEN_GRACE_S

    def _heal(self) -> int:
        self._wait_for_commands()
        ledger = self.directory / "ledger.jsonl"
        if not ledger.exists():
            clear(self.directory, keep_ledger=False)
            return 0
        book = Book.load(ledger)
        left = asyncio.run(heal_book(book, "the worker died", emit=lambda row: None))
        clear(self.directory, keep_ledger=left)
        return EXIT_RESIDUE if left else 0

    def _wait_for_commands(self) -> None:
        """An undo must not overtake the command that it undoes."""
        select.select([self._alive], [], [], KILL_WAIT_S)


def _tell(worker: int, ticks: int) -> None:
    send_signal(worker, ticks, signal.SIGTERM)


async def heal_book(
    book: Book,
    reason: str,
    *,
    emit: Callable[[Json], None],
    network_gone: bool = False,
    processes_gone: bool = False,
) -> bool:
    """Heals what a ledger names and ends its roles; True when something is left."""
    bench = Bench(
        book, Commands(), network_gone=network_gone, processes_gone=processes_gone
    )
    for fault in reversed(list(book.faults.values())):
        if fault.open:
            await bench.revert(fault, reason)
            emit({"row": "fault", **fault.document()})
    if processes_gone:
        return any(fault.open for fault in book.faults.values())
    for role, (pid, ticks) in list(book.roles.items()):
        kill_session(pid, ticks)
        await _until(lambda p=pid, t=ticks: not session_alive(p, t), KILL_WAIT_S)  # type: ignore[misc]
        book.note({"row": "role_gone", "role": role})
        emit({"row": "role", "role": role, "state": "ended"})
    for fault in book.faults.values():
        for pid, ticks in fault.children.values():
            kill_session(pid, ticks)
    return any(fault.open for fault in book.faults.values())


# --- the lock of a host ---------------------------------------------------------------


class Busy(Exception):
    """Another run holds this host."""

    def __init__(self, holder: Json) -> None:
        super().__init__(str(holder))
        self.holder = holder


class Lock:
    """A flock'ed file: it ends with its last holder, however that ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, directory: Path, *, wait_s: float = LOCK_WAIT_S) -> Lock:
        """Takes the lock, waiting a moment for a holder that is about to end.

        Raises:
            Busy: Another run holds it.
        """
        path = directory / "domain.lock"
        deadline = now_s() + wait_s
        while True:
            make_directory(directory)
            with contextlib.suppress(FileNotFoundError):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(str(path), flags, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(descriptor).st_ino == path.stat().st_ino:
                        return cls(path, descriptor)
                except BlockingIOError:
                    if now_s() >= deadline:
                        raise Busy(_holder(descriptor)) from None
                    time.sleep(0.02)
                except FileNotFoundError:
                    pass  # released between opening and locking: once more
                os.close(descriptor)

    def name_holder(self, holder: Json) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, _encoded(holder), 0)

    def release(self) -> None:
        """Removes the file first, so that nobody locks a file without a name."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()


def _holder(descriptor: int) -> Json:
    try:
        found = json.loads(os.pread(descriptor, 1 << 16, 0))
    except ValueError:
        found = {}
    return found if isinstance(found, dict) and found else {"run": "a run that starts"}


def make_directory(directory: Path) -> None:
    """The state directory, which must be ours alone.

    Raises:
        PermissionError: Somebody else made it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        message = "{} is not a directory of ours; name another with --state-dir"
        raise PermissionError(message.format(directory))


# --- recover and status ---------------------------------------------------------------


def recover(state_dir: Path, only: str, emit: Callable[[Json], None]) -> bool:
    """Heals the ledgers of dead agents; the caller holds the lock. True: all healed.

    Each ledger is healed by a child, which may have to enter another namespace.
    """
    healed = True
    for ledger in sorted(state_dir.glob("*/ledger.jsonl")):
        if only and ledger.parent.name != only:
            continue
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            os._exit(_recover_in_child(ledger, writing))
        os.close(writing)
        with os.fdopen(reading, "rb") as rows:
            for line in rows:
                emit({"run": ledger.parent.name, **json.loads(line)})
        status = os.waitpid(pid, 0)[1]
        good = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        emit({"run": ledger.parent.name, "state": "healed" if good else "residual"})
        healed = healed and good
    return healed


def _recover_in_child(ledger: Path, writing: int) -> int:
    try:
        with os.fdopen(writing, "wb", buffering=0) as rows:
            left = _recover_one(ledger, lambda row: _write_row(rows, row))
    except Exception:
        traceback.print_exc()
        return EXIT_BROKE
    return EXIT_RESIDUE if left else 0


def _write_row(rows: Any, row: Json) -> None:
    rows.write(_encoded(row) + b"\n")


def _recover_one(ledger: Path, emit: Callable[[Json], None]) -> bool:
    book = Book.load(ledger)
    header = book.header
    rebooted = bool(header) and header.get("boot_id") != boot_id()
    network_gone = rebooted or not _enter_network(header)
    elsewhere = bool(header) and header.get("pid_ns") != process_namespace()
    if elsewhere and not rebooted and _somebody_in("pid", str(header.get("pid_ns"))):
        text = "its processes live in another process namespace; run recover there"
        emit({"row": "run", "residual": text})
        return True
    left = asyncio.run(
        heal_book(
            book,
            "recovered",
            emit=emit,
            network_gone=network_gone,
            processes_gone=rebooted or elsewhere,
        )
    )
    book.close()
    clear(ledger.parent, keep_ledger=left)
    return left


def _enter_network(header: Json) -> bool:
    """Goes to the network namespace of a ledger; False when it is no more."""
    wanted, cookie = str(header.get("net_ns", "")), int(header.get("net_cookie", 0))
    if not wanted or (network_of() == wanted and cookie == network_cookie()):
        return True
    for pid in _somebody_in("net", wanted):
        try:
            descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        except OSError:
            continue
        entered = _LIBC.setns(descriptor, _CLONE_NEWNET) == 0
        os.close(descriptor)
        if entered and cookie == network_cookie():
            return True
    return False


def _somebody_in(kind: str, namespace: str) -> list[int]:
    found = []
    for pid in processes():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/{kind}") == namespace:  # noqa: PTH115
                found.append(pid)
    return found


def status(state_dir: Path) -> list[Json]:
    """What the ledgers in a state directory say, and whether their agents live."""
    holder: Json = {}
    if (state_dir / "domain.lock").exists():
        try:
            Lock.take(state_dir, wait_s=0.0).release()
        except Busy as busy:
            holder = busy.holder
    rows = []
    for ledger in sorted(state_dir.glob("*/ledger.jsonl")):
        name = ledger.parent.name
        alive = holder.get("run") == name
        rows.append({"run": name, "alive": alive, **_ledger_row(ledger)})
        if alive:
            rows[-1]["holder"] = holder
    return rows


def _ledger_row(ledger: Path) -> Json:
    try:
        book = Book.read(ledger)
    except OSError:
        book = Book(ledger)  # it went while we looked
    return {
        "controller": book.header.get("controller", ""),
        "faults": [fault.document() for fault in book.faults.values() if fault.open],
        "roles": [
            {"role": role, "pid": pid, "start_ticks": ticks}
            for role, (pid, ticks) in book.roles.items()
        ],
    }


# --- the commands of this program -----------------------------------------------------


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def serve(options: argparse.Namespace) -> int:
    """Starts warden and worker, says that they are ready, and leaves them behind."""
    state_dir, directory = Path(options.state_dir), Path(options.state_dir, options.run)
    lock = Lock.take(state_dir)
    if not recover(state_dir, "", lambda row: None):
        lock.release()
        say(json.dumps({"error": "residue", "left": status(state_dir)}))
        return EXIT_RESIDUE
    clear(directory, keep_ledger=False)
    directory.mkdir(mode=0o700)
    install(directory)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        os._exit(_daemon(options, directory, lock, writing))
    os.close(writing)
    ready = _ready_line(reading)
    if not ready:
        say(json.dumps({"error": "not ready", "log": _log_of(directory)}))
        return EXIT_BROKE
    say(ready)
    return 0 if json.loads(ready).get("ready") else EXIT_BROKE


def _ready_line(reading: int) -> str:
    with os.fdopen(reading, "rb", buffering=0) as answer:
        if not select.select([answer], [], [], READY_WAIT_S)[0]:
            return ""
        return answer.readline().decode().strip()


def _log_of(directory: Path) -> str:
    try:
        return _last(directory / "agent.log", 2000)
    except OSError:
        return ""


def install(directory: Path) -> None:
    """Puts a copy of this program beside the ledger, for `relay` and for children."""
    source = globals().get("SOURCE") or Path(__file__).read_bytes()
    (directory / "agent.py").write_bytes(source)


def _daemon(
    options: argparse.Namespace, directory: Path, lock: Lock, ready: int
) -> int:
    """The warden, from its start to its end."""
    os.setsid()
    _leave_the_terminal(directory)
    prefer_for_oom(-900)
    become_subreaper()
    os.chdir("/")
    signal.signal(signal.SIGHUP, lambda *_: None)
    lock.name_holder(
        {
            "run": options.run,
            "controller": options.controller,
            "command": " ".join(sys.argv)[:400],
            "pid": os.getpid(),
            "start_ticks": ticks_of(os.getpid()),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
    )
    beat = Beat()
    beat.write(now_s() + options.ttl, now_s())
    alive_reading, alive_writing = os.pipe()
    warden_pid = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(alive_reading)
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        os._exit(
            _work(options, directory, lock, beat, alive_writing, ready, warden_pid)
        )
    os.close(alive_writing)
    os.close(ready)
    warden = Warden(directory=directory, lock=lock, beat=beat, alive=alive_reading)
    return warden.watch(worker, ticks_of(worker))


def _work(
    options: argparse.Namespace,
    directory: Path,
    lock: Lock,
    beat: Beat,
    alive: int,
    ready: int,
    warden: int,
) -> int:
    """The worker, from its start to its end."""
    become_subreaper()
    if os.getppid() != warden:
        return EXIT_BROKE

    def tell(line: Json) -> None:
        os.write(ready, _encoded({**line, "warden": warden}) + b"\n")
        os.close(ready)

    async def main() -> int:
        header = _header(options)
        worker = Worker(
            run=options.run,
            directory=directory,
            book=Book.create(directory / "ledger.jsonl", header),
            ttl_s=options.ttl,
            beat=beat,
            alive=alive,
        )
        return await worker.serve(tell)

    try:
        code = asyncio.run(main())
    except Exception as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):  # closed, once we were ready
            tell({"error": one_line(f"{type(error).__name__}: {error}")})
        return EXIT_BROKE
    if os.getppid() != warden:
        lock.release()  # nobody else is left to do it
    return code


def _header(options: argparse.Namespace) -> Json:
    return {
        "run": options.run,
        "controller": options.controller,
        "boot_id": boot_id(),
        "net_ns": network_of(),
        "net_cookie": network_cookie(),
        "pid_ns": process_namespace(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _leave_the_terminal(directory: Path) -> None:
    """Input and output end here: whoever started us over SSH may hang up."""
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(
        str(directory / "agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)


def relay(options: argparse.Namespace) -> int:
    """Carries bytes between our standard streams and the socket of an agent."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(options.socket)
    except OSError as error:
        sys.stderr.write(f"no agent at {options.socket}: {error}\n")
        return EXIT_BROKE
    watched: list[Any] = [0, peer]
    try:
        while peer in watched:
            for source in select.select(watched, [], [])[0]:
                data = os.read(0 if source == 0 else peer.fileno(), 1 << 16)
                if not data:
                    watched.remove(source)
                    if source == 0:
                        peer.shutdown(socket.SHUT_WR)
                elif source == 0:
                    peer.sendall(data)
                else:
                    _write_all(1, data)
    except OSError:
        return EXIT_BROKE  # one side is gone: the other one learns it by our end
    finally:
        peer.close()
    return 0


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def run_recover(options: argparse.Namespace) -> int:
    state_dir = Path(options.state_dir)
    if not state_dir.is_dir():
        return 0
    try:
        lock = Lock.take(state_dir, wait_s=0.2)
    except Busy as busy:
        say(json.dumps({"run": busy.holder.get("run"), "state": "live", **busy.holder}))
        return 0
    try:
        healed = recover(state_dir, options.run, lambda row: say(json.dumps(row)))
    finally:
        lock.release()
    return 0 if healed else EXIT_RESIDUE


def run_status(options: argparse.Namespace) -> int:
    state_dir = Path(options.state_dir)
    for row in status(state_dir) if state_dir.is_dir() else []:
        say(json.dumps(row))
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="agent.py", description="Holds the faults of one run on this host."
    )
    commands = found.add_subparsers(dest="command", required=True)
    one = commands.add_parser("serve", help="start the agent of a run")
    one.add_argument("--run", required=True)
    one.add_argument("--state-dir", default=DEFAULT_STATE_DIR)
    one.add_argument(
        "--ttl", type=float, default=30.0, help="seconds, renewed by calls"
    )
    one.add_argument("--controller", default="")
    one.set_defaults(act=serve)
    one = commands.add_parser("relay", help="bridge standard streams to an agent")
    one.add_argument("--socket", required=True)
    one.set_defaults(act=relay)
    one = commands.add_parser("recover", help="heal what dead agents left")
    one.add_argument("--state-dir", default=DEFAULT_STATE_DIR)
    one.add_argument("--run", default="")
    one.set_defaults(act=run_recover)
    one = commands.add_parser("status", help="list runs and their open faults")
    one.add_argument("--state-dir", default=DEFAULT_STATE_DIR)
    one.set_defaults(act=run_status)
    one = commands.add_parser("child")
    one.add_argument("kind", choices=sorted(_PRESSURES))
    one.add_argument("words", nargs="*")
    one.set_defaults(act=lambda options: child(options.kind, options.words))
    return found


def _usage_problem(options: argparse.Namespace) -> str:
    run = getattr(options, "run", "")
    if run and not _NAME.match(run):
        return f"--run: needs letters, digits, '.', '_' or '-', got {run!r}"
    if not 0.0 < getattr(options, "ttl", 1.0) <= 86400.0:
        return f"--ttl: needs seconds above 0, at most a day, got {options.ttl}"
    if options.command == "serve":
        path = os.path.join(options.state_dir, run, "agent.sock")  # noqa: PTH118
        if not path.startswith("/") or len(os.fsencode(path)) > 107:
            message = "--state-dir: {} must be absolute and below 108 bytes"
            return message.format(path)
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line and does what it asks; returns the exit code."""
    options = parser().parse_args(argv)
    problem = _usage_problem(options)
    if problem:
        sys.stderr.write(problem + "\n")
        return EXIT_USAGE
    os.umask(0o077)
    try:
        return int(options.act(options))
    except Busy as busy:
        say(json.dumps({"error": "busy", "holder": busy.holder}))
        return EXIT_BUSY
    except OSError as error:
        say(json.dumps({"error": one_line(str(error))}))
        return EXIT_BROKE


if __name__ == "__main__":
    sys.exit(main())

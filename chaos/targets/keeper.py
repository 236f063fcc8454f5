"""The keeper: a process that holds the unnamed namespaces of a fabric.

It runs as a program of its own (standard library only) and does what it is told by
JSON lines on its standard input. Its namespaces have no name anywhere: they live as
long as a process is in them or the keeper holds a descriptor, so that nothing is left
to clean when the keeper dies. And it dies with the harness, however that ends: it
watches the end of its input and a pidfd of its parent.

A host has a network, a mount and a UTS namespace. A host "with an init" has a PID
namespace as well: its process 1 is a small reaper that starts one service, and all of
the host dies with it, as a machine does. Requests, one a line:

    {"op": "make", "hosts": [HOST...]}      -> {"hosts": {name: DESCRIPTORS}}
    {"op": "boot", "name": N, "argv": [], "log": path}    starts the service of an init
    {"op": "drop", "names": [N...]}         ends the inits and lets the namespaces go
    {"op": "alive", "name": N}              -> {"alive": bool} of an init

HOST = {"name", "hostname", "sysctl": {path under /proc/sys: text}, "init": bool,
"private": [directories that get an empty file system of their own], "directories":
[directories that are made then], "scratch": a small file system that may be filled}
DESCRIPTORS = {"net": fd, "mnt": fd, "uts": fd, "init": pid or 0}; they are reached as
/proc/<keeper>/fd/<fd>. An answer is {"ok": true, ...} or {"ok": false, "error": text}.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import uuid
from typing import Any

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_SAFE = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_PR_SET_PDEATHSIG = 1
_CGROUPS = "/sys/fs/cgroup"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LINE_BYTES = 1 << 20
_READY = b"\n"
_SCRATCH = "mode=700,size=64m"

_LIBC = ctypes.CDLL(None, use_errno=True)

Document = dict[str, Any]


def main(argv: list[str]) -> int:
    """`keeper.py PARENT`: serves until its input ends or the parent is gone."""
    keeper = _Keeper()
    try:
        watched = os.pidfd_open(int(argv[0]))
    except ProcessLookupError:
        return 0
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(watched, select.POLLIN)
    buffer = b""
    while True:
        ready = {descriptor for descriptor, _ in poller.poll()}
        if watched in ready:
            return 0
        more = os.read(0, 65536)
        buffer += more
        if not more or len(buffer) > _LINE_BYTES:
            return 0
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            _reply(keeper.answer(line))


def _reply(answer: Document) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


class _Keeper:
    """Holds hosts by name: their descriptors, and the pipe to an init that waits."""

    def __init__(self) -> None:
        self._hosts: dict[str, Document] = {}
        self._go: dict[str, int] = {}
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)

    def answer(self, line: bytes) -> Document:
        try:
            request = json.loads(line)
            operation = getattr(self, "_do_" + request["op"])
            return {"ok": True, **operation(request)}
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def _do_make(self, request: Document) -> Document:
        made = {host["name"]: self._make(host) for host in request["hosts"]}
        return {"hosts": made}

    def _do_boot(self, request: Document) -> Document:
        order = {"argv": request["argv"], "log": request["log"]}
        with os.fdopen(self._go.pop(request["name"]), "wb") as pipe:
            pipe.write(json.dumps(order).encode())
        return {}

    def _do_drop(self, request: Document) -> Document:
        for name in request["names"]:
            host = self._hosts.pop(name, None)
            if host is not None:
                self._drop(name, host)
        return {}

    def _do_alive(self, request: Document) -> Document:
        init = self._hosts[request["name"]]["init"]
        if not init:
            return {"alive": True}
        status = os.waitid(os.P_PID, init, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return {"alive": status is None}

    def _make(self, host: Document) -> Document:
        if host["name"] in self._hosts:
            raise ValueError(f"host {host['name']} is there")
        ready_out, ready_in = os.pipe()
        go_out, go_in = os.pipe()
        child = self._fork(bool(host.get("init")))
        if child == 0:
            _become_host(host, ready_in, go_out)
        os.close(ready_in)
        os.close(go_out)
        self._go[host["name"]] = go_in
        try:
            _wait_for_ready(ready_out)
            opened = _open_namespaces(child)
        except BaseException:
            os.close(self._go.pop(host["name"]))
            _end(child)
            raise
        finally:
            os.close(ready_out)
        opened["init"] = child if host.get("init") else 0
        if not opened["init"]:  # its namespaces are ours now
            os.close(self._go.pop(host["name"]))
            os.waitpid(child, 0)
        self._hosts[host["name"]] = opened
        return opened

    def _fork(self, pid_namespace: bool) -> int:
        """A child, as process 1 of a PID namespace of its own when asked for."""
        if not pid_namespace:
            return os.fork()
        _unshare(_CLONE_NEWPID)
        try:
            child = os.fork()
        except OSError:
            child = -1
        if child != 0:
            _check(_LIBC.setns(self._own_pids, _CLONE_NEWPID), "setns")
        if child < 0:
            raise OSError("fork failed")
        return child

    def _drop(self, name: str, host: Document) -> None:
        go = self._go.pop(name, None)
        if go is not None:
            os.close(go)
        if host["init"]:
            _end(host["init"])
        for kind in ("net", "mnt", "uts"):
            os.close(host[kind])


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _open_namespaces(pid: int) -> Document:
    opened: Document = {}
    for kind in ("net", "mnt", "uts"):
        opened[kind] = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    return opened


def _wait_for_ready(pipe: int) -> None:
    """The child says that it is ready, or what went wrong."""
    text = os.read(pipe, 4096)
    if text != _READY:
        raise OSError(text.decode(errors="replace") or "a host died at its birth")


# -- in the child ---------------------------------------------------------------------


def _become_host(host: Document, ready: int, go: int) -> None:
    """Builds the namespaces of a host around this process; never returns."""
    code = 1
    try:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _keep_only(ready, go)
        try:
            _enter_new_namespaces(host)
        except (KeyError, OSError, TypeError, ValueError) as error:
            os.write(ready, str(error).encode() or b"?")
        else:
            os.write(ready, _READY)
            os.close(ready)
            code = _live(go)
    finally:
        os._exit(code)


def _keep_only(ready: int, go: int) -> None:
    """Closes what the keeper holds: a host must not keep other hosts alive."""
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    kept = sorted((ready, go))
    for low, high in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)


def _enter_new_namespaces(host: Document) -> None:
    _unshare(_CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWUTS)
    _sethostname(host["hostname"])
    _mount(None, "/", None, _MS_SLAVE | _MS_REC)
    if host.get("init"):
        _mount("proc", "/proc", "proc", _SAFE)
    _fresh_sys()
    for directory in host.get("private", []):
        _mount("tmpfs", directory, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
    for directory in host.get("directories", []):
        os.makedirs(directory, mode=0o755, exist_ok=True)  # noqa: PTH103
    if host.get("scratch"):
        os.makedirs(host["scratch"], mode=0o700, exist_ok=True)  # noqa: PTH103
        _mount("tmpfs", host["scratch"], "tmpfs", _MS_NOSUID | _MS_NODEV, _SCRATCH)
    for path, text in host.get("sysctl", {}).items():
        _write_sysctl(path, text)


def _fresh_sys() -> None:
    """A /sys that shows the devices of this network namespace, cgroups included."""
    cgroups = None
    if os.path.isdir(_CGROUPS):  # noqa: PTH112
        cgroups = os.open(_CGROUPS, os.O_PATH)
    _mount("sysfs", "/sys", "sysfs", _SAFE)
    if cgroups is not None:
        _mount(f"/proc/self/fd/{cgroups}", _CGROUPS, None, _MS_BIND | _MS_REC)
        os.close(cgroups)


def _write_sysctl(path: str, text: str) -> None:
    """Sets a setting of this namespace; a kernel without it has nothing to set."""
    try:
        with open("/proc/sys/" + path, "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)
    except FileNotFoundError:
        return


def _live(go: int) -> int:
    """Waits to be let go; an init is told what to start, and reaps from then on."""
    text = b""
    while True:
        more = os.read(go, 65536)
        if not more:
            break
        text += more
    os.close(go)
    if not text:
        return 0
    order = json.loads(text)
    _new_boot_id()
    service = _start(order["argv"], order["log"])
    return _reap(service)


def _new_boot_id() -> None:
    """Each boot has an id of its own, as a machine has; where we may say so."""
    path = "/run/boot_id"
    try:
        with open(path, "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(uuid.uuid4()) + "\n")
        _mount(path, _BOOT_ID, None, _MS_BIND)
    except OSError:
        return  # the host keeps the machine's id


def _start(argv: list[str], log: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execv(argv[0], argv)  # noqa: S606  (a list of arguments: no shell)
    finally:
        os._exit(127)


def _reap(service: int) -> int:
    """Reaps orphans until the service ends; then the host ends too."""
    while True:
        pid, status = os.wait()
        if pid == service:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1


# -- system calls ---------------------------------------------------------------------


def _check(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def _unshare(flags: int) -> None:
    _check(_LIBC.unshare(flags), "unshare")


def _sethostname(name: str) -> None:
    text = name.encode()
    _check(_LIBC.sethostname(text, len(text)), "sethostname " + name)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str = ""
) -> None:
    arguments = [None if text is None else text.encode() for text in (source, kind)]
    result = _LIBC.mount(
        arguments[0],
        target.encode(),
        arguments[1],
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(result, f"mount {target}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A lab in the background: a process that holds it, and a socket to tell it things.

`scripts/lab up` starts it and returns; it serves one JSON line a connection on
`lab.sock` (mode 0600) in the lab's directory until it is told `down`. When it is
killed the lab vanishes with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.errors import ChaosError, HarnessError, UsageError
from chaos.targets.lab import Lab, LabShape, why_no_lab

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SOCKET: Final = "lab.sock"
_READY: Final = "ready"
_UP_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 60.0
_LINE_BYTES = 1 << 16
_ROOT = Path(__file__).resolve().parents[2]


def start(
    count: int,
    *,
    rails: int,
    inventory: Path,
    environment: str,
    block: int | None,
    engines: int = 0,
) -> str:
    """Starts a lab in the background; returns when every sshd answers.

    Raises:
        UsageError: it cannot be had here, or there is one already.
        HarnessError: it did not come up; the message is its last line.
    """
    directory = directory_of(inventory)
    reason = why_no_lab(directory)
    if reason:
        raise UsageError(f"no lab here: {reason}")
    LabShape.of(count, engines=engines)
    if is_up(directory):
        fix = f"take it down first: scripts/lab down --inventory {inventory}"
        raise UsageError(f"the lab of {inventory} is up already", fix)
    if directory.exists() and not _is_of_a_lab(directory):
        fix = "name another inventory, or remove the directory"
        raise UsageError(f"{directory} is not of a lab", fix)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    words = [str(count), str(rails), str(engines), str(inventory), environment]
    words += [] if block is None else [str(block)]
    with (directory / "server.log").open("ab") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "chaos.targets.lab_server", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=_ROOT,
            start_new_session=True,
        )
    return _first_line(server)


def call(directory: Path, **request: Any) -> dict[str, Any]:
    """One request to the lab of a directory.

    Raises:
        UsageError: there is no lab, or it refuses.
    """
    try:
        with _at(directory) as place, socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(_CALL_TIMEOUT_S)
            channel.connect(place)
            channel.sendall(json.dumps(request).encode() + b"\n")
            text = channel.makefile("rb").readline(_LINE_BYTES)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        fix = "bring one up: scripts/lab up N --inventory FILE"
        raise UsageError(f"no lab is up in {directory}", fix) from error
    answer: dict[str, Any] = json.loads(text or b"{}")
    if not answer.get("ok"):
        raise UsageError(str(answer.get("error", f"the lab in {directory} ended")))
    return answer


def down(inventory: Path) -> None:
    """Ends the lab of an inventory, and clears what one that was killed left.

    Raises:
        UsageError: there is none.
    """
    directory = directory_of(inventory)
    if is_up(directory) or not _is_of_a_lab(directory):
        call(directory, op="down")
    else:
        _clear(directory, inventory)


def _is_of_a_lab(directory: Path) -> bool:
    """Whether a directory holds what a lab writes first."""
    return (directory / "server.log").is_file()


def _clear(directory: Path, inventory: Path) -> None:
    shutil.rmtree(directory)
    inventory.unlink(missing_ok=True)


def is_up(directory: Path) -> bool:
    try:
        call(directory, op="status")
    except UsageError:
        return False
    return True


def directory_of(inventory: Path) -> Path:
    """Where the lab of an inventory keeps its keys and logs: beside it."""
    return inventory.with_name(f"{inventory.name}.lab").absolute()


def _first_line(server: subprocess.Popen[bytes]) -> str:
    assert server.stdout is not None
    with server.stdout as stream:
        ready, _, _ = select.select([stream], [], [], _UP_TIMEOUT_S)
        line = stream.readline().decode(errors="replace").strip() if ready else ""
    if line.startswith(_READY):
        server.returncode = 0  # it goes on without us
        return line.removeprefix(_READY).strip()
    server.kill()
    server.wait()
    raise HarnessError(line or f"the lab did not come up in {_UP_TIMEOUT_S:g} s")


@contextlib.contextmanager
def _at(directory: Path) -> Iterator[str]:
    """A short path to the socket: those of sockets have 107 characters at most."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET}"
    finally:
        os.close(descriptor)


# -- the process in the background ----------------------------------------------------


def serve(lab: Lab, directory: Path) -> None:
    """Answers until told `down`; only the owner of the directory gets in."""
    with socket.socket(socket.AF_UNIX) as listener, _at(directory) as place:
        (directory / _SOCKET).unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            listener.bind(place)
        finally:
            os.umask(old)
        listener.listen(8)
        sys.stdout.write(f"{_READY} {json.dumps(_status(lab))}\n")
        sys.stdout.flush()
        _leave_the_caller()
        while _answer_one(lab, listener):
            pass


def _answer_one(lab: Lab, listener: socket.socket) -> bool:
    """One connection, one request; False after `down`."""
    channel, _ = listener.accept()
    with channel, contextlib.suppress(OSError):
        channel.settimeout(_CALL_TIMEOUT_S)
        request = json.loads(channel.makefile("rb").readline(_LINE_BYTES) or b"{}")
        answer = _answer(lab, request)
        channel.sendall(json.dumps(answer).encode() + b"\n")
        return bool(request.get("op") != "down")
    return True


def _answer(lab: Lab, request: dict[str, Any]) -> dict[str, Any]:
    acts = {"reboot": lab.reboot, "kill": lab.kill, "start": lab.start}
    operation = str(request.get("op"))
    try:
        if operation in acts:
            acts[operation](str(request["name"]))
        elif operation == "down":
            lab.down()
        elif operation != "status":
            return {"ok": False, "error": f"a lab does not know {operation!r}"}
        return {"ok": True, **({} if operation == "down" else _status(lab))}
    except ChaosError as error:
        return {"ok": False, "error": str(error)}


def _status(lab: Lab) -> dict[str, Any]:
    hosts = {
        name: {"address": lab.address(name), "up": lab.alive(name)}
        for name in lab.names
    }
    return {"pid": os.getpid(), "fabric": lab.fabric.block.index, "hosts": hosts}


def _leave_the_caller() -> None:
    """The caller has its line; what is written from now on has a file."""
    os.dup2(2, 1)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos.targets.lab_server")
    parser.add_argument("count", type=int)
    parser.add_argument("rails", type=int)
    parser.add_argument("engines", type=int)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("environment")
    parser.add_argument("block", type=int, nargs="?")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Holds a lab until it is told `down`, or ended by a signal."""
    asked = _parsed(argv)
    directory = directory_of(asked.inventory)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    shape = LabShape.of(
        asked.count,
        engines=asked.engines,
        rails=asked.rails,
        environment=asked.environment,
    )
    try:
        with Lab.up(
            shape, directory=directory, inventory=asked.inventory, block=asked.block
        ) as lab:
            serve(lab, directory)
    except ChaosError as error:
        sys.stdout.write(f"{error}\n")
        return error.exit_code
    finally:
        (directory / _SOCKET).unlink(missing_ok=True)
    _clear(directory, asked.inventory)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Starts the agents of many namespaces at once, from one interpreter.

A program of its own, standard library only: it loads the agent's program once, forks
for every host, enters the host's namespaces and starts the agent there. A dozen agents
cost one start of Python and share its memory, where a dozen commands would cost a
second of both cores. It reads one JSON object and writes one:

    {"program": path of agent.py, "hosts": {name: {"enter": {kind: path}, "words": []}}}
    {name: {"rc": code, "stdout": text, "stderr": text}}

`enter` names the namespaces by kind (mnt, net, uts), `words` is the agent's command
line. The answer is what the command line of the agent would have answered.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import select
import sys
import time
from typing import Any

_KINDS = {"net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000}  # mnt last
_TIMEOUT_S = 40.0
_OUTPUT_BYTES = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Reads the order, starts all, answers."""
    order = json.loads(sys.stdin.buffer.read())
    agent = _load(order["program"])
    births = {
        name: _Birth(agent, host["enter"], host["words"])
        for name, host in order["hosts"].items()
    }
    _collect(list(births.values()), time.monotonic() + _TIMEOUT_S)
    answers = {name: birth.end() for name, birth in births.items()}
    sys.stdout.write(json.dumps(answers))
    return 0


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent"] = module
    spec.loader.exec_module(module)
    return module


class _Birth:
    """One child that becomes the command line of an agent, and what it says."""

    def __init__(self, agent: Any, enter: dict[str, str], words: list[str]) -> None:
        namespaces = [(os.open(enter[kind], os.O_RDONLY), kind) for kind in _KINDS]
        pipes = [os.pipe(), os.pipe()]
        self.pid = os.fork()
        if self.pid == 0:
            _become_agent(agent, namespaces, pipes[0][1], pipes[1][1], words)
        for descriptor, _ in namespaces:
            os.close(descriptor)
        for _, writing in pipes:
            os.close(writing)
        self.open = {reading: bytearray() for reading, _ in pipes}
        self._texts = list(self.open.values())

    def read(self, descriptor: int) -> None:
        """Takes what is there; the end of a pipe takes it off the list."""
        data = os.read(descriptor, 65536)
        kept = self.open[descriptor]
        kept += data[: _OUTPUT_BYTES - len(kept)]
        if not data:
            os.close(descriptor)
            del self.open[descriptor]

    def end(self) -> dict[str, Any]:
        """How it ended; one that did not in time is killed."""
        if self.open:
            os.kill(self.pid, 9)
            for descriptor in self.open:
                os.close(descriptor)
        _, status = os.waitpid(self.pid, 0)
        stdout, stderr = (text.decode(errors="replace") for text in self._texts)
        code = os.waitstatus_to_exitcode(status)
        return {"rc": code, "stdout": stdout, "stderr": stderr}


def _become_agent(
    agent: Any, namespaces: list[tuple[int, str]], out: int, err: int, words: list[str]
) -> None:
    """In the child: enters the namespaces and is the agent's command line."""
    code = 4
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, kind in namespaces:
            if _LIBC.setns(descriptor, _KINDS[kind]) != 0:
                problem = os.strerror(ctypes.get_errno())
                os.write(2, f"cannot enter the {kind} namespace: {problem}\n".encode())
                return
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.argv = [agent.__file__, *words]
        code = agent.main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        raise
    finally:
        os._exit(code)


def _collect(births: list[_Birth], deadline: float) -> None:
    """Reads what all of them say until they have said it, or it is too late."""
    owners = {descriptor: birth for birth in births for descriptor in birth.open}
    poller = select.poll()
    for descriptor in owners:
        poller.register(descriptor, select.POLLIN)
    while owners and time.monotonic() < deadline:
        for descriptor, _ in poller.poll(200):
            birth = owners[descriptor]
            birth.read(descriptor)
            if descriptor not in birth.open:
                poller.unregister(descriptor)
                del owners[descriptor]


if __name__ == "__main__":
    sys.exit(main())

"""One client of Mooncake in a process of its own, `python -m` this module.

A native call that hangs takes its thread here, and nothing of the harness. Frames come
on an inherited socket: `{"id", "op", ...}`, each answered by `{"id", "result",
"took_s", "cpu_s"}` or `{"id", "error"}`, in whatever order calls end; the first frame,
id 0, says that the client joined, or why not. The process ends when the socket does, at
once and without asking Mooncake, which may be hanging.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from chaos.systems.mooncake.frames import Cut, encode, receive

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_ONCE: Final = 32
"""Calls at one time; more wait here, inside their deadlines."""
OPS: Final = frozenset(
    {"write", "read_by", "exists", "remove", "remove_all", "replicas", "health"}
)


def main(argv: Sequence[str] | None = None) -> int:
    """Joins, says so, and serves until the other end is gone."""
    parser = argparse.ArgumentParser(prog="worker", description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--plan", required=True)
    asked = parser.parse_args(argv)
    sock = socket.socket(fileno=asked.socket)
    sender = _Sender(sock)
    store = _joined(json.loads(asked.plan), sender)
    if store is not None:
        _serve(sock, sender, store)
    return 0


class _Sender:
    """Answers of many threads on one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def __call__(self, document: dict[str, Any]) -> None:
        frame = encode(document)
        with self._lock:
            self._sock.sendall(frame)


def _joined(plan: dict[str, Any], send: _Sender) -> Any:
    begin_s = time.monotonic()
    try:
        from chaos.systems.mooncake.native import NativeStore

        store = NativeStore(plan)
    except Exception as error:  # told to the harness, which decides
        code = int(getattr(error, "code", 0))
        send({"id": 0, "error": f"{type(error).__name__}: {error}", "code": code})
        return None
    result = {"hostname": store.hostname, "pid": os.getpid()}
    send({"id": 0, "result": result, "took_s": time.monotonic() - begin_s})
    return store


def _serve(sock: socket.socket, send: _Sender, store: Any) -> None:
    helpers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="call")
    while True:
        try:
            asked = receive(sock)
        except (Cut, OSError, ValueError):
            return
        helpers.submit(_answer, asked, send, store)


def _answer(asked: dict[str, Any], send: _Sender, store: Any) -> None:
    number, op = asked.pop("id", -1), asked.pop("op", "")
    begin_s, cpu_s = time.monotonic(), time.process_time()
    try:
        if op not in OPS:
            message = f"no call is named {op!r}"
            raise ValueError(message)
        answer: dict[str, Any] = {"result": getattr(store, op)(**asked)}
    except Exception as error:  # the caller is told
        answer = {"error": f"{type(error).__name__}: {error}"}
    took_s = time.monotonic() - begin_s
    spent_s = time.process_time() - cpu_s
    try:
        send({"id": number, "took_s": took_s, "cpu_s": spent_s, **answer})
    except OSError:
        os._exit(0)  # nobody is there to be told


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # a hung native call must not keep the process

"""What every role process does alike: listen, say that it is ready, end orderly."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from refimpl.errors import PortTaken, UsageError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc

    from refimpl.security.tls import Tls

_PR_SET_PDEATHSIG: Final = 1
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
GRPC_MESSAGE_BYTES: Final = 64 << 20
"""Largest message of every gRPC server and client here: batches are one message."""
GRPC_OPTIONS: Final = (
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES),
    # No PING frames of its own to guess the bandwidth: what is on a connection is asked
    # for, so that silence can be counted to the byte.
    ("grpc.http2.bdp_probe", 0),
)


def parse_address(text: str, what: str = "address") -> tuple[str, int]:
    """`"127.0.0.1:0"` -> `("127.0.0.1", 0)`.

    Raises:
        UsageError: it is not HOST:PORT.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_port or int(port) > 65535:
        raise UsageError(
            f"{what}: {shown(text)} is not HOST:PORT; write e.g. 127.0.0.1:0"
        )
    return host, int(port)


def port_taken(error: OSError, what: str, address: str) -> PortTaken:
    """The error to raise when bind() or listen() failed."""
    reason = errno.errorcode.get(error.errno or 0, "")
    return PortTaken(what=what, address=address, reason=reason)


def grpc_server(*, threads: int, queued: int = 4096) -> grpc.Server:
    """A gRPC server with a bounded pool that never shares a port with another.

    Calls beyond the `threads` at work and the `queued` are RESOURCE_EXHAUSTED.

    grpcio sets SO_REUSEPORT unless told otherwise: a second server on a taken port
    would start well and get every other call.
    """
    import grpc

    return grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="rpc"),
        options=[*GRPC_OPTIONS, ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=threads + queued,
    )


def grpc_listen(
    server: grpc.Server, listen: str, what: str, *, tls: Tls | None = None
) -> str:
    """Binds a server and returns the address that it really has.

    The port is tried with a plain socket first: that tells the reason, and spares the
    operator the lines that gRPC's core prints beside ours.

    Raises:
        PortTaken: somebody else listens there.
    """
    host, port = parse_address(listen, what)
    try:
        with listening(host, port):
            pass
    except OSError as error:
        raise port_taken(error, what, listen) from error
    try:
        if tls is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, tls.server_credentials())
    except RuntimeError as error:
        raise PortTaken(what=what, address=listen) from error
    if port == 0:
        raise PortTaken(what=what, address=listen)
    return f"{host}:{port}"


def listening(host: str, port: int, *, backlog: int | None = None) -> socket.socket:
    """A listening socket; the host is a name, an IPv4 address or one in brackets."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server(
        (host.strip("[]"), port), family=family, backlog=backlog
    )


def announce(role: str, name: str, addresses: Mapping[str, Any]) -> None:
    """Prints the ready line, `refimpl <role> <name> ready {json}`, flushed."""
    text = json.dumps(addresses, separators=(",", ":"))
    sys.stdout.write(f"refimpl {role} {name} ready {text}\n")
    sys.stdout.flush()


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set. Call it in the main thread, early.

    Wait for it with a timeout in a loop or without one: Python runs handlers in the
    main thread, also while it waits. What comes after the first signal is ignored.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        ignore_signals()
        stop.set()

    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    return stop


def ignore_signals() -> None:
    """Lets a role that is stopping end in peace, exit code 0.

    Python gives its handlers up when the interpreter shuts down, and a SIGTERM then
    kills a healthy process (exit -15); a signal that is ignored stays ignored.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int = 0) -> None:
    """Lets the kernel SIGKILL this process when its parent ends, also while stopped.

    The kernel means the parent *thread*: a process started from a thread that ends
    dies with that thread. Start roles from a thread that outlives them.

    Args:
        parent: its process id, 0 for whoever is the parent now. A parent that ended
            before this call is noticed only when it is told.

    Raises:
        SystemExit: the parent is gone already.
    """
    parent = parent or os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    if os.getppid() != parent:
        raise SystemExit(0)

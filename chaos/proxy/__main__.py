"""`python -m chaos.proxy`: runs the embedded fault proxy server until SIGTERM."""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.proxy.fault_proxy import format_address, parse_address
from chaos.proxy.http import HttpServer
from chaos.proxy.loop import Loop
from chaos.proxy.pipes import MAX_LENT, PipePool
from chaos.proxy.server import VERSION, ProxyServer
from chaos.proxy.token import TOKEN_VARIABLE, is_loopback, read_token

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 2
#: Characters of a complaint.
_LINE_MOST = 500
_EPILOG = """exit codes:
  0  ended by SIGTERM, SIGINT or with its parent
  2  wrong usage: an address that is not loopback without a token, a taken port

examples:
  python -m chaos.proxy --listen 127.0.0.1:8474
  python -m chaos.proxy --listen 127.0.0.1:0 --seed 7 --die-with-parent
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        token = read_token(options.token_file)
        parent = _parent(options.die_with_parent)
        listener = _listen(options.listen, guarded=bool(token))
    except (OSError, ValueError, UsageError) as error:
        line = " ".join(str(error).split())[:_LINE_MOST]
        plain = "".join(letter if letter.isprintable() else "?" for letter in line)
        sys.stderr.write(f"chaos proxy: {plain}\n")
        return USAGE
    _raise_descriptor_limit()
    _serve(listener, parent, seed=options.seed, token=token, splice=options.splice)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.proxy",
        description="Fault proxies behind Toxiproxy's HTTP API.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--listen", default="127.0.0.1:8474", metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=0, help="of every random draw")
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help=f"holds the bearer token that callers send; else {TOKEN_VARIABLE}",
    )
    parser.add_argument(
        "--die-with-parent",
        nargs="?",
        type=int,
        const=0,
        metavar="PID",
        help="end when the starting process (which must be PID) ends",
    )
    parser.add_argument(
        "--no-splice", dest="splice", action="store_false", help="copy all bytes"
    )
    return parser


def _listen(text: str, *, guarded: bool) -> socket.socket:
    """The API's listening socket; only loopback, unless a token guards it."""
    host, port = parse_address(text)
    if not is_loopback(host) and not guarded:
        raise ValueError(
            f"{text!r} is not loopback and needs a token: set {TOKEN_VARIABLE} or "
            "--token-file, or listen on 127.0.0.1"
        )
    host = "127.0.0.1" if host == "localhost" else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise OSError(f"cannot listen on {text}: {error.strerror}") from error


def _parent(pid: int | None) -> int | None:
    """The parent to end with, None when not asked to.

    Raises:
        ValueError: the parent that was meant is gone already.
    """
    if pid is None:
        return None
    parent = os.getppid()
    if pid not in (0, parent):
        raise ValueError(f"the parent {pid} is gone")
    return parent


def _watch_parent(loop: Loop, parent: int) -> int:
    """Stops the loop when the parent ends; returns the descriptor that tells.

    PR_SET_PDEATHSIG would fire when the starting *thread* ends; a pidfd does not.
    """
    parent_fd = os.pidfd_open(parent)
    loop.register(parent_fd, lambda _: loop.stop(), select.EPOLLIN)
    return parent_fd


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _serve(
    listener: socket.socket, parent: int | None, *, seed: int, token: str, splice: bool
) -> None:
    loop = Loop()
    pipes = PipePool(max_lent=MAX_LENT if splice else 0)
    server = ProxyServer(loop, seed=seed, token=token, pipes=pipes)
    address = format_address(listener.getsockname())
    api = HttpServer(loop, listener, server.handle)
    bell, ringer = socket.socketpair()
    ringer.setblocking(False)
    signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: loop.stop())
    loop.register(bell.fileno(), lambda _: loop.stop(), select.EPOLLIN)
    parent_fd = None if parent is None else _watch_parent(loop, parent)
    ready = {"url": f"http://{address}", "pid": os.getpid(), "version": VERSION}
    sys.stdout.write(f"chaos proxy ready {json.dumps(ready)}\n")
    sys.stdout.flush()
    loop.run()
    signal.set_wakeup_fd(-1)
    api.close()
    server.close()
    loop.close()
    if parent_fd is not None:
        os.close(parent_fd)
    bell.close()
    ringer.close()


if __name__ == "__main__":
    raise SystemExit(main())

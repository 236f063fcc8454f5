"""Ports that nobody has, found by binding them; fixed ones where a host is ours alone.

Mooncake listens on some of its ports on every address of a host, so on one machine two
roles cannot share a port even on loopback addresses of their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIXED: Final = {
    "rpc": 50051,
    "admin": 9003,
    "metadata": 8080,
    "segment": 20052,
    "store": 50052,
    "service": 7000,
    "door": 7002,
    "probe": 7004,
    "etcd": 2379,
    "etcd-peer": 2380,
}
_OF_STORES: Final = frozenset({"store", "segment"})
_ATTEMPTS: Final = 64
_BELOW: Final = range(18_000, 32_000)

Wanted = tuple[str, str]
"""A role and what it wants a port for."""


def found(wanted: Sequence[Wanted], address: Callable[[str], str]) -> dict[Wanted, int]:
    """A free port for each, no two alike: all are bound before any is given back.

    Args:
        wanted: roles and purposes.
        address: of a role.

    Raises:
        OSError: The machine has no more ports.
    """
    held: list[socket.socket] = []
    ports: dict[Wanted, int] = {}
    try:
        for want in wanted:
            at, taken = address(want[0]), set(ports.values())
            below = want[1] == "segment"
            ports[want] = (_bound_below if below else _bound)(at, held, taken)
    finally:
        for each in held:
            each.close()
    return ports


def fixed(wanted: Sequence[Wanted]) -> dict[Wanted, int]:
    """The usual ports, where every role has a host of its own.

    Roles that share a host are told apart by their number, 100 ports from each other.
    """
    return {
        (role, what): FIXED[what] + (100 * _number(role) if what in _OF_STORES else 0)
        for role, what in wanted
    }


def _bound(address: str, held: list[socket.socket], taken: set[int]) -> int:
    for _ in range(_ATTEMPTS):
        one = socket.socket()
        held.append(one)
        one.bind((address, 0))
        port = int(one.getsockname()[1])
        if port not in taken:
            return port
    message = f"no free port on {address}"
    raise OSError(message)


def _bound_below(address: str, held: list[socket.socket], taken: set[int]) -> int:
    """A port below those that the kernel hands out.

    Mooncake refuses a range of client ports that reaches into them, and falls back to
    its own (`MC_STORE_CLIENT_MIN_PORT`, measured on 0.3.13).
    """
    first = os.getpid() % len(_BELOW)
    for step in range(len(_BELOW)):
        port = _BELOW[(first + step) % len(_BELOW)]
        one = socket.socket()
        held.append(one)
        with contextlib.suppress(OSError):
            if port not in taken:
                one.bind((address, port))
                return port
        if step >= _ATTEMPTS:
            break
    message = f"no free port below {_BELOW.stop} on {address}"
    raise OSError(message)


def _number(role: str) -> int:
    text = role.rpartition("-")[2]
    return int(text) if text.isdecimal() else 0

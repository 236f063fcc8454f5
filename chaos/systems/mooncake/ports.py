"""Ports that nobody has, found by binding them; fixed ones where a host is ours alone.

Mooncake listens on some of its ports on every address of a host, so on one machine two
roles cannot share a port even on loopback addresses of their own.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIXED: Final = {
    "rpc": 50051,
    "admin": 9003,
    "metadata": 8080,
    "segment": 50052,
    "health": 9300,
    "service": 7000,
    "door": 7002,
    "probe": 7004,
    "etcd": 2379,
    "etcd-peer": 2380,
}
_ATTEMPTS: Final = 64

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
            ports[want] = _bound(address(want[0]), held, set(ports.values()))
    finally:
        for each in held:
            each.close()
    return ports


def fixed(wanted: Sequence[Wanted]) -> dict[Wanted, int]:
    """The usual ports, where every role has a host of its own.

    Roles that share a host are told apart by their number, 100 ports from each other.
    """
    return {
        (role, what): FIXED[what]
        + 100 * _number(role) * (what in ("segment", "health"))
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


def _number(role: str) -> int:
    text = role.rpartition("-")[2]
    return int(text) if text.isdecimal() else 0

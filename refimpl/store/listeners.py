"""The listening sockets of a store, one a rail.

They are taken before anything slow is done, memory or even imports: a taken port must
show at once, on a busy host too.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from refimpl.role import parse_address, port_taken

if TYPE_CHECKING:
    from collections.abc import Iterable

    from refimpl.store.settings import RailSpec

_BACKLOG: Final = 512
"""Connections that may wait for accept: a mass reconnect (Mooncake#2793)."""


def open_listeners(rails: Iterable[RailSpec]) -> dict[str, socket.socket]:
    """Listeners by rail name; all or none.

    Raises:
        PortTaken: somebody else listens there.
    """
    listeners: dict[str, socket.socket] = {}
    try:
        for rail in rails:
            listeners[rail.name] = _listen(rail)
    except BaseException:
        for listener in listeners.values():
            listener.close()
        raise
    return listeners


def _listen(rail: RailSpec) -> socket.socket:
    host, port = parse_address(rail.listen, f"rail {rail.name}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # On Linux this frees ports in TIME_WAIT only, never a listener's.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise port_taken(error, f"rail {rail.name}", rail.listen) from error
    return listener

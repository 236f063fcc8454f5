"""An SSH transport on which several threads may use channels that end by themselves.

A command may end while its input is still being written or ended. The library then
answers the host's CLOSE in one thread while another is about to send EOF or data of the
same channel; a server that sees them behind the CLOSE hangs up on everybody
(OpenSSH channels.c: "packet referred to nonexistent channel").
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import paramiko
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_WINDOW_ADJUST,
)

if TYPE_CHECKING:
    import socket

_OF_A_CHANNEL = frozenset(
    {
        MSG_CHANNEL_CLOSE,
        MSG_CHANNEL_DATA,
        MSG_CHANNEL_EOF,
        MSG_CHANNEL_EXTENDED_DATA,
        MSG_CHANNEL_REQUEST,
        MSG_CHANNEL_WINDOW_ADJUST,
    }
)
_NUMBER = slice(1, 5)
_PEERS_NUMBER = slice(4, 8)


class OrderedTransport(paramiko.Transport):
    """Sends nothing for a channel behind its CLOSE (RFC 4254, 5.3)."""

    def __init__(self, sock: socket.socket) -> None:
        self._order = threading.Lock()
        self._closed_numbers: set[int] = set()
        super().__init__(sock)

    def _send_message(self, data: Any) -> None:
        packet = data.asbytes()
        if packet[0] not in _OF_A_CHANNEL:
            super()._send_message(data)  # type: ignore[misc]
            return
        number = int.from_bytes(packet[_NUMBER], "big")
        with self._order:  # nobody overtakes the CLOSE
            if number in self._closed_numbers:
                return
            if packet[0] == MSG_CHANNEL_CLOSE:
                self._closed_numbers.add(number)
            super()._send_message(data)  # type: ignore[misc]

    def _parse_channel_open_success(self, message: Any) -> None:
        """The peer uses a number again once both sides have closed it."""
        number = int.from_bytes(message.asbytes()[_PEERS_NUMBER], "big")
        self._closed_numbers.discard(number)
        super()._parse_channel_open_success(message)  # type: ignore[misc]

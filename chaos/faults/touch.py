"""One bare TCP connection through a link: does it answer, stay silent, or get reset?

Evidence for proxies that count nothing (the real Toxiproxy). It says the greeting of
the link, which its owner answers with data, or zeros, on which every protocol of the
pool ends the connection: a healthy link reacts at once either way. A silent one shows
by its silence, a delayed one by its delay, of data only: Toxiproxy delays no end.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NONSENSE = bytes(256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """What became of the connection: answered, silent, reset or refused."""

    outcome: str
    elapsed_s: float


def touch(
    address: str,
    *,
    timeout_s: float,
    words: bytes = NONSENSE,
    clock: Callable[[], float] = time.monotonic,
) -> Touch:
    """Connects, says these words, and waits for any reaction of the other side."""
    host, _, port = address.rpartition(":")
    begin = clock()
    outcome = _outcome((host, int(port)), timeout_s, words)
    return Touch(outcome=outcome, elapsed_s=clock() - begin)


def _outcome(address: tuple[str, int], timeout_s: float, words: bytes) -> str:
    try:
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(words)
            connection.recv(1)
    except TimeoutError:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    except (ConnectionResetError, BrokenPipeError):
        return "reset"
    return "answered"

"""How the way to a host of the lab is cut, from outside and while it is in use."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from chaos.exits.snapshot import connections_of, processes_of
from chaos.safety.identity import send_signal, start_ticks_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.targets.lab import Lab

_RELAY = "agent.py relay "


def cut(lab: Lab, host: str, way: str) -> None:
    """Cuts the way to a host; only a silent one stays cut, until it is mended."""
    init = lab.fabric.namespaces(host).init
    if way == "silent":
        lab.cut(host)
    elif way == "sessions":
        _kill(connections_of(init))
    else:
        there = processes_of({host: init})[host].items()
        _kill(pid for pid, words in there if _RELAY in words)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        ticks = start_ticks_of(pid)
        if ticks is not None:
            send_signal(pid, ticks, signal.SIGKILL)

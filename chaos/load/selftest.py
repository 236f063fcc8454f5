"""How good the generator itself is on this machine: its lag against a null system.

A threshold below ten times this lag cannot be judged here; see `chaos.judge.validity`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chaos.load.replay import OpenLoop, failed
from chaos.systems.base import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.load.sample import LoadRun

MAX_THREADS = 256


def generator_floor(
    *,
    rate_per_s: float = 200.0,
    requests: int = 200,
    clock: Callable[[], float] = time.monotonic,
) -> LoadRun:
    """Replays at a constant rate against a system that answers at once."""
    plan = [
        Request(
            request_id=f"null-{index}",
            session="null",
            at_s=index / rate_per_s,
            input_length=1,
            output_length=0,
            hash_ids=(0,),
        )
        for index in range(requests)
    ]
    return OpenLoop(
        lambda _engine, request: failed(request, ""),
        plan,
        clock=clock,
        max_in_flight=min(requests, MAX_THREADS),  # lag is wanted here, no shedding
    ).run()

"""tap: changes nothing and counts what flows over some links, both ways.

No fault at all, but armed, counted and removed like one: what a law forbids to be sent
can be counted only where it would pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.toxic import BOTH_STREAMS, Toxic, ToxicFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.touch import Touch
    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Link


# Pieces larger than any chunk: nothing is ever cut.
_WHOLE = {"average_size": 64 << 20, "size_variation": 0, "delay": 0}


class Tap(ToxicFault):
    """A slicer that never cuts; its counters are what it is for."""

    kind = "tap"

    def __init__(self, control: ToxicControl, links: Sequence[Link]) -> None:
        toxics = [
            Toxic(type="slicer", stream=stream, attributes=_WHOLE)
            for stream in BOTH_STREAMS
        ]
        target = ",".join(link.name for link in links)
        super().__init__(control, links, toxics, target=target)

    def touched(self, reaction: Touch) -> bool:
        return reaction.outcome != "silent"

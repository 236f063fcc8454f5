"""reset: connections on some links end with a TCP RST as soon as they carry data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.toxic import BOTH_STREAMS, Toxic, ToxicFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.touch import Touch
    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Link


class Reset(ToxicFault):
    """Resets live and new connections."""

    kind = "reset"
    counter = "connections"

    def __init__(self, control: ToxicControl, links: Sequence[Link]) -> None:
        toxics = [
            Toxic(type="reset_peer", stream=stream, attributes={"timeout": 0})
            for stream in BOTH_STREAMS
        ]
        target = ",".join(link.name for link in links)
        super().__init__(control, links, toxics, target=target)

    def touched(self, reaction: Touch) -> bool:
        return reaction.outcome in ("reset", "refused")

"""bandwidth: some links carry no more than a rate, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.toxic import BOTH_STREAMS, Toxic, ToxicFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.touch import Touch
    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Link


class Bandwidth(ToxicFault):
    """Limits each direction of each connection to `kb_per_s` KB/s."""

    kind = "bandwidth"

    def __init__(
        self, control: ToxicControl, links: Sequence[Link], kb_per_s: int
    ) -> None:
        toxics = [
            Toxic(type="bandwidth", stream=stream, attributes={"rate": kb_per_s})
            for stream in BOTH_STREAMS
        ]
        target = ",".join(link.name for link in links)
        super().__init__(control, links, toxics, target=target)

    def touched(self, reaction: Touch) -> bool:
        """A handful of bytes shows no rate: without counters this has no evidence."""
        return False

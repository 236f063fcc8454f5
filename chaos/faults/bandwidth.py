"""bandwidth: some links carry no more than a rate, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.toxic import BOTH_STREAMS, Toxic, ToxicFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.touch import Touch
    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Link


_BYTES_PER_KB = 1000
#: Toxiproxy takes so many bytes at once from a connection, and no more than it passes
#: on in 0.1 s, and hands them on when their time is over.
_CHUNK_BYTES = 32 << 10
_SLICE_S = 0.1
_TOLERANCE = 0.8
_LEAST_SHOWN_S = 0.04


class Bandwidth(ToxicFault):
    """Limits each direction of each connection to `kb_per_s` KB/s."""

    kind = "bandwidth"
    touches = 3

    def __init__(
        self, control: ToxicControl, links: Sequence[Link], kb_per_s: int
    ) -> None:
        toxics = [
            Toxic(type="bandwidth", stream=stream, attributes={"rate": kb_per_s})
            for stream in BOTH_STREAMS
        ]
        rate = max(kb_per_s, 1) * _BYTES_PER_KB
        self._touch_bytes = min(int(rate * _SLICE_S), _CHUNK_BYTES)
        self._least_s = _TOLERANCE * self._touch_bytes / rate
        target = ",".join(link.name for link in links)
        super().__init__(control, links, toxics, target=target)

    def words(self, link: Link) -> bytes:
        """Nonsense that is long enough to be held up."""
        return bytes(self._touch_bytes)

    def touched(self, reaction: Touch) -> bool:
        """The nonsense arrives late by its size over the rate, and is answered then.

        A rate so high that this is less than a hiccup of the host shows nothing.
        """
        shown = self._least_s >= _LEAST_SHOWN_S and reaction.outcome != "silent"
        return shown and reaction.elapsed_s >= self._least_s

"""latency: answers on some links come late, by a mean and a uniform jitter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.toxic import TOUCH_TIMEOUT_S, Toxic, ToxicFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.touch import Touch
    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Link

_MS_PER_S = 1000


class Latency(ToxicFault):
    """Delays the way back from the owner of each link."""

    kind = "latency"

    def __init__(
        self,
        control: ToxicControl,
        links: Sequence[Link],
        latency_ms: int,
        jitter_ms: int = 0,
    ) -> None:
        self._least_s = max(latency_ms - jitter_ms, 0) / _MS_PER_S
        attributes = {"latency": latency_ms, "jitter": jitter_ms}
        toxic = Toxic(type="latency", stream="downstream", attributes=attributes)
        target = ",".join(link.name for link in links)
        super().__init__(control, links, (toxic,), target=target)

    def touched(self, reaction: Touch) -> bool:
        """A healthy link answers nonsense at once; a long delay outlasts the touch."""
        return reaction.elapsed_s >= min(self._least_s, TOUCH_TIMEOUT_S)

"""blackhole: connected but silent. Packets vanish, TCP stays open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.toxic import ToxicFault, silence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Link


class Blackhole(ToxicFault):
    """Drops everything on the links, both ways, and closes nothing."""

    kind = "blackhole"

    def __init__(self, control: ToxicControl, links: Sequence[Link]) -> None:
        target = ",".join(link.name for link in links)
        super().__init__(control, links, silence(), target=target)

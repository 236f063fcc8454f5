"""nic_down: one rail of a store goes silent, both ways, live connections included.

A dead NIC is silent, it does not refuse; a disabled proxy would refuse, which is
another fault. The store's other rail and its control plane stay up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.toxic import ToxicFault, silence

if TYPE_CHECKING:
    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Cluster


class NicDown(ToxicFault):
    """Drops everything on the links of one rail."""

    kind = "nic_down"

    def __init__(
        self, cluster: Cluster, control: ToxicControl, store: str, rail: str
    ) -> None:
        links = [
            link for link in cluster.links if link.owner == store and link.rail == rail
        ]
        super().__init__(control, links, silence(), target=f"{store}.{rail}")

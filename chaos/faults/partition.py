"""partition: a role cannot be reached, by everybody or by one other role.

Packets vanish both ways and connections stay open, as behind a switch that died.
Links that many share (a store's rails) cannot be cut for one user alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.toxic import ToxicFault, silence

if TYPE_CHECKING:
    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Cluster, Link


class Partition(ToxicFault):
    """Cuts the links of a role, optionally of one plane, or to one other role."""

    kind = "partition"

    def __init__(
        self,
        cluster: Cluster,
        control: ToxicControl,
        role: str,
        *,
        from_: str = "",
        plane: str = "",
    ) -> None:
        links = [
            link
            for link in cluster.links
            if _between(link, role, from_) and plane in ("", link.plane)
        ]
        target = f"{role} from {from_ or 'everybody'}"
        if plane:
            target += f" on {plane}"
        super().__init__(control, links, silence(), target=target)


def _between(link: Link, role: str, other: str) -> bool:
    if not other:
        return role in (link.owner, link.user)
    return {role, other} == {link.owner, link.user}

"""A store that hears nothing and still speaks, on hosts: drops what comes in, only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.faults import nft
from chaos.faults.cut import TableFault
from chaos.faults.sockets import of_links

if TYPE_CHECKING:
    from chaos.systems.base import Cluster

_INWARDS: Final = nft.Effect(directions=("in",))


class HostOneWay(TableFault):
    """What others send to a store's data plane is dropped at the store.

    Its own messages go out, and their answers come on connections of its own to other
    addresses: the master goes on to believe that it is well.
    """

    kind = "one_way"
    measure = "packets dropped on their way in"

    def __init__(self, cluster: Cluster, store: str) -> None:
        links = [link for link in cluster.links if link.owner == store and link.rail]
        here = cluster.hosts.of(store).name if cluster.hosts is not None else ""
        matches = {
            host: rules
            for host, rules in of_links(cluster, links).items()
            if host == here
        }
        super().__init__(cluster, f"{store} inwards", matches, _INWARDS)

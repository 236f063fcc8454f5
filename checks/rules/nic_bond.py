"""Bonds of RDMA NICs: one RDMA device over all legs (RoCE LAG), all legs up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.ip_addr import links
from checks.ports import ports
from checks.rules.declare import Subject, check
from checks.rules.optional import UNREADABLE, optional

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.node import Node
    from checks.parse.ip_addr import Link


def _bonds(node: Node) -> list[Subject[str]]:
    """Bonds that an RDMA device uses, or whose leg one uses; "" where there is none."""
    every = links(node.facts)
    used = _rdma_devices(node)
    found = [
        Subject(item=link.name, label=link.name, touches=frozenset({link.name, *legs}))
        for link in every.values()
        if link.kind == "bond"
        and not used.keys().isdisjoint({link.name, *(legs := _legs(every, link.name))})
    ]
    return found or [Subject(item="")]


def _legs(every: Mapping[str, Link], bond: str) -> list[str]:
    return sorted(link.name for link in every.values() if link.master == bond)


def _rdma_devices(node: Node) -> dict[str, str]:
    """RDMA devices by the network device they use."""
    found = {}
    for port in ports(node.facts):
        netdev = optional(port.netdev, UNREADABLE | {"empty"})
        if netdev:
            found[netdev] = port.device
    return found


@check(
    "nic-eswitch-lag",
    group="nic",
    severity="W",
    why="without RoCE LAG the bond protects TCP only: RDMA stays on one leg, and its"
    " GIDs do not move when that leg fails",
    fix=(
        "bond mode active-backup, balance-xor or 802.3ad; both ports of one card",
        "no virtual functions before the bond is made",
        "look at /sys/kernel/debug/mlx5/BDF/lag/state",
    ),
    source=("R46", "mlx5 driver: conditions of RoCE LAG"),
    needs=("ip -j -d addr", "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*"),
    over=_bonds,
)
def lag(node: Node, bond: str) -> Outcome:
    expected = "one RDMA device over all legs, every leg up"
    if not bond:
        return ok("no RDMA NIC is in a bond", expected)
    every = links(node.facts)
    legs = _legs(every, bond)
    if not legs:
        raise Unread("missing", f"legs of {bond}", "no link names it as its master")
    down = [name for name in legs if not every[name].up]
    if down:
        return bad(f"leg {', '.join(down)} of {bond} is down", expected)
    used = _rdma_devices(node)
    own = [f"{used[name]} on {name}" for name in legs if name in used]
    if own and bond not in used:
        return bad(f"RDMA devices of single legs: {', '.join(own)}", expected)
    return ok(f"{used[bond]} over {', '.join(legs)}", expected)

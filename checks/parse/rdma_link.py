"""`rdma -j link`: RDMA ports as the kernel's netlink tells them.

iproute2 up to 5.4 prints `"ifname":"mlx5_0/1"`, later `"ifname":"mlx5_0","port":1`.
States are spelled `ACTIVE`, `LINK_UP`, unlike sysfs (`4: ACTIVE`, `5: LinkUp`).
`netdev` is missing where the netdev lives in another network namespace. Without an RDMA
core in the kernel stdout is empty, rc 1, "Failed to open NETLINK_RDMA socket".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

SOURCE = "rdma -j -d link"
NO_CORE = "Failed to open NETLINK_RDMA socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaLink:
    """One port; `state` and `physical` in the spelling of this tool."""

    device: str
    port: int
    state: str
    physical: str
    netdev: str


def parse_links(rows: Any) -> tuple[RdmaLink, ...]:
    """Ports in the order of the kernel."""
    if not isinstance(rows, list):
        raise Garbled(SOURCE, "no list of ports")
    return tuple(_port(row) for row in rows if row)


@derived
def rdma_links(facts: Facts) -> tuple[RdmaLink, ...]:
    """The ports of the host; Unread where they cannot be told."""
    return parse_links(facts.result("rdma", "link").json())


@derived
def core_is_absent(facts: Facts) -> bool:
    """The kernel has no RDMA core at all, as the tool says."""
    return any(NO_CORE in result.stderr for result in facts.find("rdma"))


def _port(row: Any) -> RdmaLink:
    if not isinstance(row, Mapping) or not isinstance(row.get("ifname"), str):
        raise Garbled(SOURCE, "a port without a name")
    device, _, number = row["ifname"].partition("/")
    return RdmaLink(
        device=device,
        port=int(row.get("port", number or 1)),
        state=str(row.get("state", "")).upper(),
        physical=str(row.get("physical_state", "")).upper(),
        netdev=str(row.get("netdev", "")),
    )

"""What a profile says of NICs: number, link layer, rate, firmware and driver."""

from __future__ import annotations

from pydantic import Field

from checks.profile.section import Section


class Nic(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    count: int | None = None
    """Selected RDMA ports of a node."""
    link_layer: str = ""
    """Ethernet or InfiniBand."""
    min_rate_gbps: float | None = None
    """Least rate of a rail; of the bond where the rail is one."""
    firmware: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Allowed firmware by PSID."""
    driver: tuple[str, ...] = ()
    """Allowed driver versions, in any spelling that normalises to the same."""
    vfs: int | None = None
    """Virtual functions of every selected NIC."""
    peermem: bool | None = None
    """Whether GPU memory is registered through nvidia_peermem; None: as the service."""
    max_flaps_24h: int = Field(default=4, ge=0)
    """Losses of a link that are accepted within a day."""

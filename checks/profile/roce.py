"""What a profile says of RoCE: GIDs, MTU, QoS, congestion control, RDMA namespaces."""

from __future__ import annotations

from checks.profile.section import Section


class Roce(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    active_mtu: int | None = None
    trust: str = ""
    """dscp or pcp."""
    pfc_priorities: tuple[int, ...] | None = None
    traffic_class: int | None = None
    rdma_netns: str = ""
    """shared or exclusive."""
    retransmissions_per_s: float = 1.0
    """Above it, lost or repeated packets of one kind warn."""
    ecn_priorities: tuple[int, ...] | None = None
    """Priorities on which DCQCN must react (RP) and notify (NP)."""
    rtt_cc: bool | None = None
    """Whether congestion control by round-trip times must be on."""
    resource_share: float = 0.9
    """Of QPs, CQs and MRs; above it a device is nearly full."""

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

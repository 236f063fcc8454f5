"""What a profile says of routes: cross-rail traffic, path MTU, source rules."""

from __future__ import annotations

from checks.profile.section import Section


class Routes(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    cross_rail: bool | None = None
    """Whether every rail must reach every other rail of its peers; None warns only."""
    source_based: bool | None = None
    """Whether packets from a rail's address must leave by that rail."""
    rail_mtu: int | None = None
    """The least MTU of a rail's network device, in bytes."""
    ipv6: bool | None = None
    """Whether rails are addressed by IPv6; None takes whatever family they have."""

"""What a profile says of OVS: whether it is expected, its bridges and offload."""

from __future__ import annotations

from pydantic import Field

from checks.profile.section import Section


class Ovs(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    expected: bool | None = None
    """Whether the node runs Open vSwitch at all."""
    bridges: tuple[str, ...] = ()
    """All bridges of a node; none but these."""
    uplinks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Devices that belong into each bridge."""
    hw_offload: bool | None = None
    mtu: int | None = None
    """Least MTU of an uplink."""
    datapath_type: str = ""
    """`system` or `netdev`, of every bridge."""
    stp: bool | None = None
    """Whether bridges speak (rapid) spanning tree; None takes: they do not."""

    @property
    def is_expected(self) -> bool:
        """The profile asks for Open vSwitch, in one way or another."""
        return self.expected is True or bool(self.bridges or self.uplinks)

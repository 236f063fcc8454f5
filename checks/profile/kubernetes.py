"""What a profile says of Kubernetes: resources, networks, MTU."""

from __future__ import annotations

from pydantic import Field

from checks.profile.section import Section


class Kubernetes(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    expected: bool | None = None
    """Whether the node is a Kubernetes node."""
    rdma_resources: dict[str, int] = Field(default_factory=dict)
    """Allocatable RDMA resources a node must have."""

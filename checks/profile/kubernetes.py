"""What a profile says of Kubernetes: resources, networks, MTU."""

from __future__ import annotations

from pydantic import Field

from checks.profile.section import Section


class Kubernetes(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    expected: bool | None = None
    """Whether the node is a Kubernetes node."""
    multus: bool | None = None
    """Whether Multus must be the first CNI of the node."""
    rdma_resources: dict[str, int] = Field(default_factory=dict)
    """Allocatable RDMA resources a node must have."""
    topology_manager: str = ""
    """Wanted `topologyManagerPolicy` of the kubelet."""
    cpu_manager: str = ""
    """Wanted `cpuManagerPolicy` of the kubelet."""

"""What a profile says of IOMMU, PCIe and GPUDirect."""

from __future__ import annotations

from checks.profile.section import Section


class Iommu(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    domain: str = ""
    """Wanted `iommu_group/type`, e.g. identity; "" takes the built-in rule."""
    gdr_required: bool = False
    cmdline: tuple[str, ...] = ()
    """All arguments of the kernel about IOMMU and ACS, e.g. `iommu=pt`."""
    min_read_request: int | None = None
    """Least MaxReadReq of a NIC in bytes."""

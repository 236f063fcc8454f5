"""What a profile says of memory and limits."""

from __future__ import annotations

from checks.profile.section import Section


class Memory(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    segment_bytes: int | None = None
    """Planned segment of one store; wins over what the service says."""
    max_map_count: int | None = None
    """Least `vm.max_map_count`."""
    nofile: int | None = None
    """Least number of files a service may open."""
    nproc: int | None = None
    """Least number of processes a service may have."""
    headroom_bytes: int = 4 << 30
    """What must stay free beside the planned segment."""
    shm_bytes: int = 8 << 30
    """Least size of /dev/shm."""
    swap: bool | None = None
    """Whether the node may swap."""

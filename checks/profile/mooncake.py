"""What a profile says of time, ports and Mooncake itself."""

from __future__ import annotations

from checks.profile.section import Section


class Mooncake(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    offset_warning_s: float = 0.1
    offset_error_s: float = 1.0
    master: str = ""
    """HOST:PORT of the master."""
    ports: tuple[int, ...] = ()
    """Ports that the rollout will listen on, besides the built-in ones."""
    devices: int | None = None
    """Number of RDMA devices that Mooncake must be told to use."""
    latency_warning_ms: float = 500.0
    """A connection to the master that takes longer is suspicious."""

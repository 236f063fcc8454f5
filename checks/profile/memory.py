"""What a profile says of memory and limits."""

from __future__ import annotations

from checks.profile.section import Section


class Memory(Section):
    """Golden values of one site; None or empty means that the profile is silent."""

    segment_bytes: int | None = None
    """Planned segment of one store, where the service does not say."""
    max_map_count: int | None = None

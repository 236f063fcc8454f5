"""Settings of the pool's state machine: upstream's defaults (Mooncake `types.h`)."""

from __future__ import annotations

from dataclasses import dataclass

from refimpl.core.scaling import scale

STRATEGIES = ("random", "free_ratio_first", "local_first")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What an operator may choose. Durations are seconds at factor 1."""

    max_objects: int = 1 << 20
    """Objects in the table at most; eviction by count keeps it below."""
    max_names_bytes: int = 64 << 20
    """Bytes of object names kept for listings; only writers that send names cost any.
    """
    max_segments: int = 4096
    """Segments mounted or not yet swept at most."""
    allocation_strategy: str = "random"
    default_kv_lease_ttl_s: float = 10.0
    """How long a lookup keeps what it found."""
    default_kv_soft_pin_ttl_s: float = 1800.0
    """How long a soft pin holds after the last lookup."""
    allow_evict_soft_pinned_objects: bool = True
    """Whether a pass that is short may take soft-pinned objects."""
    eviction_ratio: float = 0.05
    eviction_high_watermark_ratio: float = 0.90
    eviction_period_s: float = 0.01
    """Between two eviction passes; a poll, never scaled."""
    futile_backoff_max_s: float = 1.0
    """Longest pause after passes that freed nothing; doubles up to it."""
    client_ttl_s: float = 10.0
    """Silence after which a client is expired."""
    ping_interval_s: float = 1.0
    """A client's name is taken while it was heard within three of these."""
    put_start_discard_timeout_s: float = 30.0
    """After it another writer may take over a put that never ended."""
    put_start_release_timeout_s: float = 600.0
    """After it the space of a put that never ended is used again."""
    slow_start_s: float = 30.0
    """How long a segment that joined a filled pool is held to twice its fair share."""
    slow_start_window_s: float = 1.0
    """Over which that share is counted."""

    def __post_init__(self) -> None:
        if self.allocation_strategy not in STRATEGIES:
            raise ValueError(
                f"allocation_strategy is one of {', '.join(STRATEGIES)}, "
                f"not {self.allocation_strategy!r}"
            )
        if not 1 <= self.max_segments < 1 << 16:
            raise ValueError(f"max_segments is 1 to 65535, not {self.max_segments}")

    def scaled(self, factor: float) -> PoolSettings:
        """Every duration times `factor`; the eviction poll keeps its value."""
        return scale(self, factor, fixed=("eviction_period_s",))

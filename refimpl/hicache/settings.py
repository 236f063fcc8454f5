"""Settings of the hierarchical cache of one engine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Self

from refimpl.core.breaker import BreakerSettings
from refimpl.core.prefetch import PrefetchSettings
from refimpl.core.quarantine import QuarantineSettings
from refimpl.core.scaling import scale

_OF_THE_MACHINE = ("slow_floor_s", "probe_floor_s", "prefill_tokens_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class HiCacheSettings:
    """Sizes are pages and bytes, durations seconds at factor 1.

    A page is one row of `page_bytes`. Its main part, all but the last `sidecar_bytes`,
    is cut equally into `components`, each an object of its own in the pool under the
    component's key; the component "" has the page key itself. Every component is
    written in `ranks` equal parts, each by its own put.
    """

    page_tokens: int = 64
    page_bytes: int = 16 << 10
    l1_pages: int = 512
    l2_pages: int = 2048
    components: tuple[str, ...] = ("",)
    sidecar_bytes: int = 0
    ranks: int = 1
    replicas: int = 1

    prefetch: PrefetchSettings = field(default_factory=PrefetchSettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    quarantine: QuarantineSettings = field(default_factory=QuarantineSettings)

    negative_ttl_s: float = 10.0
    negative_capacity: int = 65_536
    prefill_tokens_per_s: float = 0.0
    """Speed of recomputing: a read slower than that, by half as much again, is a fault;
    0 switches it off."""
    slow_floor_s: float = 0.1
    """No read faster than 1.5 times this is slow, and nobody waits longer than this for
    another request's read of the same pages. The article's 95 % bound; the machine's,
    never scaled."""

    probe_floor_s: float = 0.25
    """No probe of the breaker gets less: a probe that a busy machine lost would reopen
    it for twice as long. Never scaled."""

    prefetch_threads: int = 8
    prefetch_queue: int = 1024
    probe_threads: int = 4
    canary_bytes: int = 4096

    writeback_tasks: int = 256
    put_attempts: int = 3
    put_backoff_s: float = 0.05
    put_timeout_s: float = 2.0

    poison_free_pages: bool = False
    """Overwrites freed pages, so that a use after free shows as wrong bytes."""

    def scaled(self, factor: float) -> Self:
        """Every duration times `factor`, the rate of recomputing divided by it.

        Probes keep a least patience: no machine answers faster for sure.
        """
        breaker, quarantine = self.breaker, self.quarantine
        least_s = (
            min(self.probe_floor_s, breaker.probe_deadline_s),
            min(self.slow_floor_s, quarantine.probe_deadline_s),
        )
        breaker, quarantine = breaker.scaled(factor), quarantine.scaled(factor)
        own = scale(self, factor, fixed=_OF_THE_MACHINE)
        return dataclasses.replace(
            own,
            prefill_tokens_per_s=self.prefill_tokens_per_s / factor,
            prefetch=self.prefetch.scaled(factor),
            breaker=dataclasses.replace(
                breaker, probe_deadline_s=max(breaker.probe_deadline_s, least_s[0])
            ),
            quarantine=dataclasses.replace(
                quarantine,
                probe_deadline_s=max(quarantine.probe_deadline_s, least_s[1]),
            ),
        )

"""What operators and harnesses may read and pull at in a running engine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from refimpl.engine.model import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from refimpl.engine.engine import Engine
    from refimpl.engine.settings import EngineSettings
    from refimpl.hicache import HiCache
    from refimpl.hicache.settings import HiCacheSettings

TIERS: Final = ("l1", "l2")


class Counted(Protocol):
    """The client of L3, as far as operators look into it."""

    def stats(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLevers:
    """The parts of one engine process, seen from outside."""

    chosen: EngineSettings
    """As the operator wrote them, at factor 1."""
    cache_settings: HiCacheSettings
    """In real seconds."""
    engine: Engine
    cache: HiCache
    client: Counted

    def state(self) -> dict[str, Any]:
        """Everything that can be seen, as JSON."""
        return {
            "role": "engine",
            "name": self.chosen.name,
            "pid": os.getpid(),
            "modelled": "prefill time is modelled; waits are real",
            "breaker": self.cache.breaker.state.value,
            "engine": self.engine.state(),
            "hicache": self.cache.state(),
            "client": self.client.stats(),
        }

    def settings(self) -> dict[str, Any]:
        """The limits as configured, in real seconds; names as a harness has them."""
        prefetch, breaker = self.cache_settings.prefetch, self.cache_settings.breaker
        return {
            "deadline_base_s": prefetch.base_s,
            "deadline_per_ki_token_s": prefetch.per_ki_token_s,
            "deadline_max_s": prefetch.max_s,
            "poll_s": prefetch.poll_s,
            "policy": prefetch.policy,
            "prefetch_threshold_tokens": prefetch.threshold_tokens,
            "breaker_window_s": breaker.window_s,
            "breaker_open_for_s": breaker.open_for_s,
            "breaker_probes_to_close": breaker.probes_to_close,
            "breaker_min_samples": breaker.min_samples,
            "breaker_fault_ratio": breaker.fault_ratio,
            "breaker_consecutive_deadlines": breaker.consecutive_deadlines,
            "breaker_probe_deadline_s": breaker.probe_deadline_s,
            "quarantine_probe_interval_s": (
                self.cache_settings.quarantine.probe_interval_s
            ),
            "prefill_tokens_per_s": self.chosen.prefill_rate,
            "prefill_slots": self.chosen.prefill_slots,
            "block_tokens": BLOCK_TOKENS,
            "page_tokens": self.chosen.page_tokens,
            "page_bytes": self.chosen.page_bytes,
            "ranks": self.chosen.ranks,
            "components": list(self.chosen.components),
            "model": self.chosen.model,
            "revision": self.chosen.revision,
            "dtype": self.chosen.dtype,
            "time_scale": self.chosen.time_scale,
        }

    def flush(self, tiers: Sequence[str]) -> None:
        """Empties local tiers.

        Raises:
            ValueError: no tier has this name.
        """
        unknown = set(tiers) - set(TIERS)
        if unknown:
            raise ValueError(f"no tiers {sorted(unknown)}; there are {TIERS}")
        self.cache.flush(tuple(tiers))

    def force_breaker(self, state: str) -> None:
        """ "open": local only until "none" takes it back."""
        if state not in ("open", "none"):
            raise ValueError(f'force is "open" or "none", not {state!r}')
        self.cache.breaker.force(None if state == "none" else "open")

    def reset(self) -> None:
        """Empty tiers, breaker closed, counters at zero; who is inside is aborted.

        Called off first: reset tiers must not change bytes that a request still reads.
        """
        self.engine.call_off("reset")
        self.cache.reset()
        self.engine.reset()

    def gauges(self) -> Mapping[str, float]:
        """For Prometheus, without the prefix."""
        return self.engine.slots.counts()

"""What Mooncake promises by its settings, in the harness's words, in real seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.systems.base import Limits

if TYPE_CHECKING:
    from chaos.systems.mooncake.shape import Shape

PING_INTERVAL_S: Final = 1.0
"""A store pings its master so often (Mooncake's client, fixed)."""


def limits_of(shape: Shape) -> Limits:
    """Mooncake's own limits; those of engines are the reference engine's defaults.

    Mooncake's seconds do not scale; what an engine does, scales.
    """
    scale, profile = shape.spec.time_scale, shape.profile
    return Limits(
        deadline_base_s=2.0 * scale,
        deadline_per_ki_token_s=0.1 * scale,
        deadline_max_s=30.0 * scale,
        poll_s=0.02,
        client_ttl_s=profile.client_ttl_s,
        ping_interval_s=PING_INTERVAL_S,
        lease_ttl_s=profile.lease_ttl_s,
        breaker_window_s=10.0 * scale,
        breaker_open_for_s=5.0 * scale,
        breaker_probes_to_close=3,
        prefill_tokens_per_s=20_000.0 / scale,
        block_tokens=512,
        page_tokens=shape.spec.page_tokens,
    )

"""What Mooncake promises by its settings, in the harness's words, in real seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.systems.engines import engine_limits, engine_settings

if TYPE_CHECKING:
    from chaos.systems.base import Limits
    from chaos.systems.mooncake.shape import Shape

PING_INTERVAL_S: Final = 1.0
"""A store pings its master so often (Mooncake's client, fixed)."""


def limits_of(shape: Shape) -> Limits:
    """Mooncake's own limits beside those of the engines.

    Mooncake's seconds do not scale; those of an engine do.
    """
    return engine_limits(
        engine_settings(shape.spec),
        client_ttl_s=shape.profile.client_ttl_s,
        ping_interval_s=PING_INTERVAL_S,
        lease_ttl_s=shape.profile.lease_ttl_s,
    )

"""Which backend L3 has: the pool of the house, or Mooncake. Imported when chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack

    from refimpl.engine.levers import Counted
    from refimpl.engine.settings import EngineSettings
    from refimpl.failpoints import Failpoints
    from refimpl.hicache.settings import HiCacheSettings
    from refimpl.hicache.storage.base import Storage


def open_storage(
    settings: EngineSettings,
    cache_settings: HiCacheSettings,
    failpoints: Failpoints,
    stack: ExitStack,
) -> tuple[Storage, Counted]:
    """The backend and the client whose counters operators see; `stack` ends them.

    Raises:
        UsageError: Mooncake is asked for and not installed.
    """
    if settings.storage == "mooncake":
        return _mooncake(settings, cache_settings, stack)
    return _pool(settings, cache_settings, failpoints, stack)


def _pool(
    settings: EngineSettings,
    cache_settings: HiCacheSettings,
    failpoints: Failpoints,
    stack: ExitStack,
) -> tuple[Storage, Counted]:
    from refimpl.client import ClientSettings, PoolClient
    from refimpl.hicache.storage.pool import PoolStorage
    from refimpl.security.options import data_secret_of, tls_of

    client = PoolClient(
        settings.master,
        host_id=settings.host_id,
        settings=ClientSettings().scaled(settings.time_scale),
        failpoints=failpoints,
        tls=tls_of(settings, "client"),
        data_secret=data_secret_of(settings.data_secret_file),
    )
    stack.callback(client.close)
    storage = PoolStorage(
        client,
        replicas=cache_settings.replicas,
        canary_bytes=cache_settings.canary_bytes,
    )
    return storage, client


def _mooncake(
    settings: EngineSettings, cache_settings: HiCacheSettings, stack: ExitStack
) -> tuple[Storage, Counted]:
    from refimpl.hicache.storage.mooncake import MooncakeSettings, MooncakeStorage
    from refimpl.native.client import NativeOptions
    from refimpl.native.process import ProcessOpener

    opener = ProcessOpener(
        NativeOptions(
            master=settings.mooncake_master,
            metadata=settings.mooncake_metadata,
            host=settings.mooncake_host,
            protocol=settings.mooncake_protocol,
            admin=settings.mooncake_admin,
        )
    )
    stack.callback(opener.close)
    storage = MooncakeStorage(
        opener,
        MooncakeSettings(
            admin=settings.mooncake_admin,
            lanes=settings.mooncake_lanes,
            lane_bytes=settings.mooncake_lane_bytes,
            replicas=cache_settings.replicas,
            ranks=cache_settings.ranks,
            host=_near(settings),
            canary_bytes=cache_settings.canary_bytes,
        ),
    )
    stack.callback(storage.close)
    return storage, storage


def _near(settings: EngineSettings) -> str:
    """The address whose segments a put goes to first, "" for all alike."""
    if not settings.mooncake_near:
        return ""
    return settings.mooncake_near_host or settings.mooncake_host

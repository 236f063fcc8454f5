"""Settings of the master: upstream's names and defaults (Mooncake `master.cpp`)."""

from __future__ import annotations

from dataclasses import dataclass

from refimpl.core.pool_settings import STRATEGIES, PoolSettings
from refimpl.security.options import tls_file, token_file
from refimpl.settings import setting

_TICK_S = 1.0
"""Upstream's period of the client monitor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterSettings:
    """What an operator may choose. Durations are seconds at factor 1."""

    name: str = setting("master", "name in the ready line", named=True)
    listen: str = setting("127.0.0.1:50051", "HOST:PORT of the gRPC service")
    management_listen: str = setting(
        "", "a second HOST:PORT of the gRPC service, on a network for operators"
    )
    heartbeat_listen: str = setting("127.0.0.1:50052", "HOST:PORT of the heartbeats")
    admin_listen: str = setting(
        "127.0.0.1:9003",
        "HOST:PORT of metrics, state and failpoints; loopback or a token",
    )
    token_file: str = token_file()
    tls_cert: str = tls_file("the master's certificate")
    tls_key: str = tls_file("its private key")
    tls_ca: str = tls_file("the CA that signs stores and clients")
    allocation_strategy: str = setting(
        "local_first", "where new objects go", choices=STRATEGIES
    )
    time_scale: float = setting(1.0, "factor for every duration", at_least=1e-4)
    max_objects: int = setting(
        1 << 20, "objects in the table at most", at_least=1, at_most=1 << 26
    )
    rpc_threads: int = setting(
        8, "calls served at a time; more wait in a queue", at_least=1, at_most=256
    )
    client_ttl_s: float = setting(
        10.0, "silence after which a client is expired", scales=True, at_least=0.001
    )
    ping_interval_s: float = setting(
        1.0, "seconds between a client's beats", scales=True, at_least=0.001
    )
    default_kv_lease_ttl_s: float = setting(
        10.0, "how long a lookup keeps what it found", scales=True, at_least=0.001
    )
    default_kv_soft_pin_ttl_s: float = setting(
        1800.0, "how long a soft pin holds", scales=True, at_least=0.001
    )
    put_start_discard_timeout_s: float = setting(
        30.0, "after this another writer may take the key", scales=True, at_least=0.001
    )
    put_start_release_timeout_s: float = setting(
        600.0, "after this the space of a dead put is free", scales=True, at_least=0.001
    )
    slow_start_s: float = setting(
        30.0, "how long a joining segment is held back", scales=True, at_least=0.0
    )
    eviction_high_watermark_ratio: float = setting(
        0.90, "share of bytes above which eviction starts", at_least=0.01, at_most=1.0
    )
    eviction_ratio: float = setting(
        0.05, "share of evictable objects to evict at least", at_least=0.0, at_most=1.0
    )
    seed: int = setting(0, "of random placement; 0 takes one from the system")

    def pool(self) -> PoolSettings:
        """Settings of the state machine, its durations in real seconds."""
        return PoolSettings(
            max_objects=self.max_objects,
            allocation_strategy=self.allocation_strategy,
            default_kv_lease_ttl_s=self.default_kv_lease_ttl_s,
            default_kv_soft_pin_ttl_s=self.default_kv_soft_pin_ttl_s,
            eviction_ratio=self.eviction_ratio,
            eviction_high_watermark_ratio=self.eviction_high_watermark_ratio,
            client_ttl_s=self.client_ttl_s,
            ping_interval_s=self.ping_interval_s,
            put_start_discard_timeout_s=self.put_start_discard_timeout_s,
            put_start_release_timeout_s=self.put_start_release_timeout_s,
            slow_start_s=self.slow_start_s,
        ).scaled(self.time_scale)

    def tick_s(self) -> float:
        """Real seconds between expiry ticks: upstream's, at most a tenth of the ttl."""
        return min(_TICK_S, self.client_ttl_s / 10) * self.time_scale

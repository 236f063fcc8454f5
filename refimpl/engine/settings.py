"""What can be set for an engine: flat names, so that flags stay plain."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refimpl.role import parse_address
from refimpl.security.options import (
    data_secret_file,
    tls_file,
    tls_server_name,
    token_file,
)
from refimpl.settings import setting

if TYPE_CHECKING:
    from refimpl.core.hashing import Fingerprint
    from refimpl.hicache.settings import HiCacheSettings

POLICIES = ("best_effort", "wait_complete", "timeout")
STORAGES = ("pool", "mooncake")
LAYOUT = "page_first"
"""One page is one contiguous buffer, as L3 without copies needs it upstream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Flags, environment and file of `refimpl engine`; durations at factor 1."""

    name: str = setting("engine-0", "name of this engine", named=True)
    host_id: str = setting(
        "", "host it runs on: puts go to stores there first", named=True
    )
    listen: str = setting("127.0.0.1:0", "HOST:PORT of the gRPC service Engine")
    admin_listen: str = setting(
        "127.0.0.1:0", "HOST:PORT of the admin HTTP; loopback or a token"
    )
    token_file: str = token_file()
    tls_cert: str = tls_file("this engine's certificate")
    tls_key: str = tls_file("its private key")
    tls_ca: str = tls_file("the CA that signs the master")
    tls_server_name: str = tls_server_name()
    data_secret_file: str = data_secret_file()
    master: str = setting("127.0.0.1:50051", "HOST:PORT of the master; may come later")
    time_scale: float = setting(1.0, "factor on every duration", at_least=1e-4)
    seed: int = setting(0, "of jitter and dice; nothing secret")

    storage: str = setting("pool", "what L3 is", choices=STORAGES)
    mooncake_master: str = setting(
        "127.0.0.1:50051", "HOST:PORT of mooncake_master, or etcd://HOST:PORT"
    )
    mooncake_admin: str = setting(
        "", "HOST:PORT of its admin HTTP; without it Mooncake chooses all places"
    )
    mooncake_metadata: str = setting("P2PHANDSHAKE", "metadata server of Mooncake")
    mooncake_protocol: str = setting("tcp", "transport of Mooncake")
    mooncake_host: str = setting("127.0.0.1", "this engine's address for Mooncake")
    mooncake_near: bool = setting(
        True, "put to segments of that address first, where an admin is given"
    )
    mooncake_near_host: str = setting(
        "", "the address of segments near by, where it is not this engine's own"
    )
    mooncake_lanes: int = setting(
        16, "native calls at one time, hung ones too", at_least=2, at_most=256
    )
    mooncake_lane_bytes: int = setting(
        4 << 20, "staging memory of one such call", at_least=4096
    )

    model: str = setting("reference", "model name, part of every page key")
    revision: str = setting("0", "weight revision, part of every page key")
    dtype: str = setting("bfloat16", "KV type, part of every page key")
    page_tokens: int = setting(64, "tokens of a page", at_least=1, at_most=4096)
    page_bytes: int = setting(16 << 10, "bytes of a page", at_least=8)
    ranks: int = setting(1, "ranks that write one page together", at_least=1)
    components: tuple[str, ...] = setting(
        ("",), "objects that a page is cut into; none: one object", repeatable=True
    )
    sidecar_bytes: int = setting(0, "bytes of a page read as a sidecar", at_least=0)

    prefill_tokens_per_s: float = setting(
        20_000.0, "modelled speed of prefill per slot at factor 1", at_least=1
    )
    prefill_slots: int = setting(4, "prefills at one time", at_least=1, at_most=1024)
    max_requests: int = setting(
        256, "requests inside at one time; more are refused", at_least=1, at_most=4096
    )

    l1_pages: int = setting(512, "pages of L1", at_least=1)
    l2_pages: int = setting(2048, "pages of L2", at_least=1)
    policy: str = setting("timeout", "when a prefetch may end", choices=POLICIES)
    poll_s: float = setting(0.02, "seconds between looks at a prefetch", at_least=1e-3)
    prefetch_base_s: float = setting(2.0, "T: base", scales=True, at_least=0)
    prefetch_per_ki_token_s: float = setting(
        0.1, "T: per 1,024 tokens", scales=True, at_least=0
    )
    prefetch_max_s: float = setting(30.0, "T: most", scales=True, at_least=0)
    prefetch_threshold_tokens: int = setting(
        256, "fewer missing tokens are not prefetched", at_least=0
    )
    prefetch_capacity_ratio: float = setting(
        0.5, "share of L2 that prefetches may hold", at_least=0.01, at_most=1.0
    )
    prefetch_storage_batch_pages: int = setting(
        128, "pages of one storage operation", at_least=1
    )
    prefetch_threads: int = setting(8, "prefetches at one time", at_least=1)

    breaker_window_s: float = setting(
        10.0, "window of the breaker", scales=True, at_least=1e-3
    )
    breaker_min_samples: int = setting(20, "samples before it may open", at_least=1)
    breaker_fault_ratio: float = setting(
        0.5, "share of faults that opens it", at_least=0.01, at_most=1.0
    )
    breaker_consecutive_deadlines: int = setting(
        5, "read deadlines in a row that open it", at_least=1
    )
    breaker_open_for_s: float = setting(
        5.0, "how long it stays open at first", scales=True, at_least=1e-3
    )
    breaker_open_for_factor: float = setting(2.0, "longer per re-trip", at_least=1.0)
    breaker_open_for_max_s: float = setting(
        60.0, "how long it stays open at most", scales=True, at_least=1e-3
    )
    breaker_jitter: float = setting(
        0.2, "share that chance adds or takes", at_least=0, at_most=0.9
    )
    breaker_probes_to_close: int = setting(3, "good probes that close it", at_least=1)
    breaker_probe_deadline_s: float = setting(
        1.0, "lease of a probe", scales=True, at_least=1e-3
    )

    quarantine_probe_interval_s: float = setting(
        1.0, "seconds between probes of an endpoint", scales=True, at_least=1e-3
    )
    quarantine_probe_deadline_s: float = setting(
        0.5, "seconds such a probe may take", scales=True, at_least=1e-3
    )
    quarantine_probes_to_admit: int = setting(
        2, "good probes that take it back", at_least=1
    )
    quarantine_share: float = setting(
        0.8, "share of faults naming one endpoint", at_least=0.01, at_most=1.0
    )
    quarantine_consecutive_faults: int = setting(3, "faults in a row", at_least=1)
    quarantine_min_samples: int = setting(10, "samples before its ratio", at_least=1)
    quarantine_fault_ratio: float = setting(
        0.5, "share of its faults", at_least=0.01, at_most=1.0
    )
    quarantine_window_s: float = setting(
        10.0, "window of its samples", scales=True, at_least=1e-3
    )

    negative_ttl_s: float = setting(
        10.0, "how long a failed page is not asked for", scales=True, at_least=0
    )
    slow_floor_s: float = setting(0.1, "no read faster is slow", at_least=0)
    put_attempts: int = setting(3, "tries of a write-back", at_least=1)
    put_backoff_s: float = setting(0.05, "wait between them", scales=True, at_least=0)
    put_timeout_s: float = setting(
        2.0, "seconds of one try", scales=True, at_least=1e-3
    )
    writeback_tasks: int = setting(256, "write-backs waiting at most", at_least=1)
    replicas: int = setting(1, "copies of a page in the pool", at_least=1)
    poison_free_pages: bool = setting(False, "overwrite freed pages (for tests)")

    def __post_init__(self) -> None:
        """Refuses what no engine could run with.

        Raises:
            UsageError: the master's address is not HOST:PORT.
            ValueError: a page cannot be cut into its components and ranks.
        """
        from refimpl.hicache.layout import layout_of

        parse_address(self.master, "the master (--master)")
        where = self.mooncake_master.rpartition("://")[2].partition(",")[0]
        parse_address(where, "the master of Mooncake (--mooncake-master)")
        if self.mooncake_admin:
            parse_address(self.mooncake_admin, "its admin (--mooncake-admin)")
        layout_of(hicache_settings(self))

    @property
    def fingerprint(self) -> Fingerprint:
        """The namespace of this engine's pages: other models share none."""
        from refimpl.core.hashing import Fingerprint

        return Fingerprint(
            model=self.model,
            revision=self.revision,
            dtype=self.dtype,
            page_size=self.page_tokens,
            layout=LAYOUT,
            tp=self.ranks,
        )

    @property
    def prefill_rate(self) -> float:
        """Modelled tokens per real second, after the time scale."""
        return self.prefill_tokens_per_s / self.time_scale


def hicache_settings(settings: EngineSettings) -> HiCacheSettings:
    """The cache's settings, scaled to real seconds."""
    from refimpl.core.breaker import BreakerSettings
    from refimpl.core.prefetch import PrefetchSettings
    from refimpl.core.quarantine import QuarantineSettings
    from refimpl.hicache.settings import HiCacheSettings

    prefetch = {
        **_fields(PrefetchSettings, settings, "prefetch_"),
        "policy": settings.policy,
        "poll_s": settings.poll_s,
    }
    own = {
        **_fields(HiCacheSettings, settings, ""),
        "prefetch": PrefetchSettings(**prefetch),
        "breaker": BreakerSettings(**_fields(BreakerSettings, settings, "breaker_")),
        "quarantine": QuarantineSettings(
            **_fields(QuarantineSettings, settings, "quarantine_")
        ),
    }
    return HiCacheSettings(**own).scaled(settings.time_scale)


def _fields(cls: type, settings: EngineSettings, prefix: str) -> dict[str, Any]:
    """The fields of `cls` that the engine lets one set, by the names of `cls`."""
    return {
        field.name: getattr(settings, prefix + field.name)
        for field in dataclasses.fields(cls)
        if hasattr(settings, prefix + field.name)
    }

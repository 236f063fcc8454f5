"""The hierarchical KV cache of an engine: tiers, prefetch, write-back, breaker."""

from refimpl.hicache.hicache import HiCache
from refimpl.hicache.request import Outcome, Prefetch, Reuse
from refimpl.hicache.settings import HiCacheSettings

__all__ = ["HiCache", "HiCacheSettings", "Outcome", "Prefetch", "Reuse"]

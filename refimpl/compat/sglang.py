"""SGLang's dynamic storage backend: HiCache's third tier in the reference pool.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
        "backend_name": "moonquake", "module_path": "refimpl.compat.sglang",
        "class_name": "MoonquakeStorage", "interface_v1": 1, "master": "HOST:PORT"}'

`interface_v1` chooses the zero-copy calls. Further fields: `StorageOptions`. Only this
file needs SGLang; what it does stands in `page_storage.py`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolName,
    PoolTransferResult,
)

from refimpl.compat.page_storage import KV, PageStorage

if TYPE_CHECKING:
    from collections.abc import Sequence


class MoonquakeStorage(PageStorage, HiCacheStorage):  # type: ignore[misc]
    """`PageStorage` as a subclass of SGLang's interface, as its factory asks for."""

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: Sequence[Any] | None = None,
        extra_info: Any = None,
    ) -> PoolTransferResult:
        """Longest prefix that all pools can serve."""
        usable, longest = self.usable_prefixes(keys, pool_transfers)
        if KV in longest:
            # Members of a str enumeration are equal to their texts, and hash otherwise.
            longest = {PoolName.KV: longest.pop(KV), **longest}
        found = (max(usable, default=0), longest, usable)
        # Later releases also ask for the lengths of all usable prefixes.
        return PoolTransferResult(*found[: len(fields(PoolTransferResult))])

"""Pages of a host memory pool as objects of the pool, in SGLang's words.

Everything of SGLang's `HiCacheStorage` but the class itself, which `sglang.py` mixes
in. A page is one object, although its keys and values may stand in several buffers: it
is there as a whole or not at all, and verified as a whole. An object of another size
than the page is no hit. Nothing here raises after construction: what fails is a miss.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from refimpl.compat.config import ReplicateConfig
from refimpl.compat.guard import Guard
from refimpl.compat.mooncake import MooncakeDistributedStore
from refimpl.core.breaker import BreakerSettings, Kind
from refimpl.core.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LOG: Final = logging.getLogger(__name__)
KV: Final = "kv"
"""SGLang's name of the pool that every page is in."""
_TRAILING: Final = "trailing_pages"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """What `--hicache-storage-backend-extra-config` may say beside SGLang's fields."""

    master: str
    """HOST:PORT of the master's RPC; `master_server_address` is understood too."""
    local_hostname: str = "localhost"
    timeout_s: float = 2.0
    """Of each batch, lookup and transfer together."""
    reconnect_s: float = 5.0
    """Between attempts to reach a master that was not there."""
    tag: str = ""
    """Keeps users of one pool apart."""
    replicas: int = 1

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> StorageOptions:
        """Reads the extra config.

        Raises:
            ValueError: no master is named, or a value makes no sense.
        """
        master = config.get("master") or config.get("master_server_address")
        if not isinstance(master, str) or ":" not in master:
            raise ValueError(
                'extra config: "master" is not HOST:PORT of the pool\'s master'
            )
        options = cls(
            master=master,
            local_hostname=str(config.get("local_hostname", "localhost")),
            timeout_s=float(config.get("timeout_s", 2.0)),
            reconnect_s=float(config.get("reconnect_s", 5.0)),
            tag=str(config.get("extra_backend_tag", config.get("tag", ""))),
            replicas=int(config.get("replicas", 1)),
        )
        if options.timeout_s <= 0 or options.reconnect_s < 0 or options.replicas < 1:
            raise ValueError(
                "extra config: timeout_s is above 0, reconnect_s at least 0, "
                "replicas at least 1"
            )
        return options


class PageStorage:
    """Stores pages for one rank.

    Args:
        storage_config: SGLang's `HiCacheStorageConfig`.
        kwargs: what SGLang's factory hands to dynamic backends; not needed.
        breaker: when to stop asking the pool.
        clock: monotonic seconds.

    Raises:
        ValueError: the extra config makes no sense, or heads are to be split.
    """

    def __init__(
        self,
        storage_config: Any,
        kwargs: Mapping[str, Any] | None = None,
        *,
        breaker: BreakerSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if getattr(storage_config, "should_split_heads", False):
            raise ValueError("pages of split heads (tp_lcm_size) are not supported")
        self._options = StorageOptions.of(storage_config.extra_config or {})
        self._rank = _rank_of(storage_config)
        self._config = ReplicateConfig()
        self._config.replica_num = self._options.replicas
        self._clock = clock
        self._lock = threading.Lock()
        self._store: MooncakeDistributedStore | None = None
        self._try_at = float("-inf")
        self._closed = False
        self._regions: dict[int, int] = {}
        self._pools: dict[str, Any] = {}
        self.guard = Guard(breaker, clock=clock)
        self._connected()

    # Registration.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the pool that pages go from and to."""
        self.mem_pool_host = mem_pool_host
        self._take(KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes a further pool, by name."""
        if str(host_pool_name) != KV:
            self._take(str(host_pool_name), host_pool)

    # The interface of pages, zero copy.

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Reads pages into the host pool; True for each that is there, whole."""
        return self._move(KV, keys, host_indices, self._read)

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Writes pages of the host pool; True for each that is in the pool now."""
        return self._move(KV, keys, host_indices, self._write)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages are there, from the first on without a gap."""
        if self._is_logical(KV):
            return len(keys)
        return _leading(self._there(KV, keys))

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self.batch_exists([key]) == 1

    # The interface of several pools.

    def batch_get_v2(
        self, transfers: list[Any], extra_info: Any = None
    ) -> dict[str, list[bool]]:
        """Reads pages of several pools; successes by name of the pool."""
        return {
            one.name: self._move(str(one.name), one.keys, one.host_indices, self._read)
            for one in transfers
        }

    def batch_set_v2(
        self, transfers: list[Any], extra_info: Any = None
    ) -> dict[str, list[bool]]:
        """Writes pages of several pools; successes by name of the pool."""
        return {
            one.name: self._move(str(one.name), one.keys, one.host_indices, self._write)
            for one in transfers
        }

    def usable_prefixes(
        self, keys: list[str], pool_transfers: Sequence[Any] | None
    ) -> tuple[list[int], dict[Any, int]]:
        """Lengths of prefixes that every pool can serve, and each pool's longest.

        A pool that needs all pages serves none beyond its first gap; one that needs
        trailing pages only serves the prefixes whose last pages it has.
        """
        pages = self.batch_exists(keys)
        usable = list(range(1, pages + 1))
        longest: dict[Any, int] = {KV: pages} if pages else {}
        for transfer in pool_transfers or ():
            if not usable:
                break
            there = self._there(str(transfer.name), keys[:pages])
            policy = str(getattr(transfer.hit_policy, "value", transfer.hit_policy))
            if policy == _TRAILING:
                served = _trailing(there, max(1, len(transfer.keys or ())))
            else:
                served = list(range(1, _leading(there) + 1))
            if served:
                longest[transfer.name] = max(served)
            usable = [pages for pages in usable if pages in served]
        return usable, longest

    # The interface of tensors, with copies.

    def get(
        self, key: str, target_location: Any = None, target_sizes: Any = None
    ) -> Any:
        """Fills a tensor with a page and answers it; None when there is none."""
        return self.batch_get([key], [target_location], [target_sizes])[0]

    def batch_get(
        self,
        keys: list[str],
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> list[Any]:
        """Fills tensors with pages and answers them; None where there is none."""
        targets = target_locations or [None] * len(keys)
        if len(targets) != len(keys) or any(one is None for one in targets):
            return [None] * len(keys)
        done = self._views(keys, [[_view(one)] for one in targets], self._read)
        return [one if ok else None for one, ok in zip(targets, done, strict=True)]

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Writes a page out of a tensor."""
        return self.batch_set([key], [value], [target_location], [target_sizes])

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Writes pages out of tensors; True when all of them are in the pool now."""
        given = values or target_locations or []
        if len(given) != len(keys) or any(one is None for one in given) or not keys:
            return False
        return all(self._views(keys, [[_view(one)] for one in given], self._write))

    # Life.

    def clear(self) -> None:
        """Removes the pages of this rank, as far as no reader holds them."""
        pattern = f"^{re.escape(self._space('', ''))}"
        self._ask(Kind.WRITE, 1, lambda store: [store.remove_by_regex(pattern)])

    def get_stats(self) -> None:
        """Nothing that SGLang collects; `state` tells more."""
        return

    def state(self) -> dict[str, Any]:
        """Breaker and counters."""
        return {
            "breaker": self.guard.state.value,
            "connected": self._store is not None,
            "counts": dict(sorted(self.guard.counts.items())),
        }

    def close(self) -> None:
        """Leaves the pool."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()

    # Privately.

    def _take(self, name: str, pool: Any) -> None:
        with self._lock:
            self._pools[name] = pool
            for buffer in _buffers_of(pool):
                size = buffer.numel() * buffer.element_size()
                if size:
                    self._regions[int(buffer.data_ptr())] = int(size)
            if self._store is not None:
                self._register(self._store)

    def _register(self, store: MooncakeDistributedStore) -> None:
        """Registers what is not registered; doing it again is refused, harmlessly."""
        for address, size in self._regions.items():
            store.register_buffer(address, size)

    def _connected(self) -> MooncakeDistributedStore | None:
        """The client, made anew when there is none, but not in a hurry."""
        with self._lock:
            now = self._clock()
            if self._store is None and not self._closed and now >= self._try_at:
                self._try_at = now + self._options.reconnect_s
                store = MooncakeDistributedStore()
                code = store.setup(_setup_of(self._options))
                if code == 0:
                    self._register(store)
                    self._store = store
                else:
                    _LOG.warning("no pool at %s: %d", self._options.master, code)
            return self._store

    def _ask(
        self,
        kind: Kind,
        count: int,
        call: Callable[[MooncakeDistributedStore], Sequence[int]],
    ) -> list[int]:
        def attempt() -> Sequence[int]:
            store = self._connected()
            return [int(Code.RPC_FAIL)] * count if store is None else call(store)

        return self.guard.call(kind, count, attempt)

    def _there(self, pool: str, keys: Sequence[str]) -> list[bool]:
        if not keys:
            return []
        names = self._names(pool, keys)
        codes = self._ask(Kind.LOOKUP, len(keys), lambda s: s.batch_is_exist(names))
        return [code == 1 for code in codes]

    def _move(
        self,
        name: str,
        keys: Sequence[str],
        host_indices: Any,
        move: Callable[[list[str], list[list[int]], list[list[int]]], list[bool]],
    ) -> list[bool]:
        """Moves pages of one pool at the places that its indices name."""
        if self._is_logical(name):
            return [True] * len(keys)
        pool = self._pools.get(name)
        if pool is None or not keys:
            return [False] * len(keys)
        try:
            ptrs, sizes = pool.get_page_buffer_meta(host_indices)
        except Exception:
            _LOG.exception("pool %s does not tell where its pages are", name)
            return [False] * len(keys)
        count, rest = divmod(len(ptrs), len(keys))
        if rest or not count or len(ptrs) != len(sizes):
            _LOG.error("pool %s: %d buffers for %d pages", name, len(ptrs), len(keys))
            return [False] * len(keys)
        rows = range(0, len(ptrs), count)
        return move(
            self._names(name, keys),
            [[int(p) for p in ptrs[at : at + count]] for at in rows],
            [[int(s) for s in sizes[at : at + count]] for at in rows],
        )

    def _views(
        self,
        keys: Sequence[str],
        views: Sequence[Sequence[tuple[int, int]]],
        move: Callable[[list[str], list[list[int]], list[list[int]]], list[bool]],
    ) -> list[bool]:
        """Moves pages at addresses of the caller's own tensors, for this call only."""
        store = self._connected()
        if store is None:
            return [False] * len(keys)
        wanted = [region for row in views for region in row]
        # Those within a region of the host pool are registered already.
        mine = [at for at, size in wanted if store.register_buffer(at, size) == 0]
        try:
            return move(
                self._names(KV, keys),
                [[address for address, _ in row] for row in views],
                [[size for _, size in row] for row in views],
            )
        finally:
            for address in mine:
                store.unregister_buffer(address)

    def _read(
        self, names: list[str], ptrs: list[list[int]], sizes: list[list[int]]
    ) -> list[bool]:
        codes = self._ask(
            Kind.READ,
            len(names),
            lambda store: store.batch_get_into_multi_buffers(names, ptrs, sizes),
        )
        return [code == sum(row) for code, row in zip(codes, sizes, strict=True)]

    def _write(
        self, names: list[str], ptrs: list[list[int]], sizes: list[list[int]]
    ) -> list[bool]:
        codes = self._ask(
            Kind.WRITE,
            len(names),
            lambda store: store.batch_put_from_multi_buffers(
                names, ptrs, sizes, self._config
            ),
        )
        return [code == Code.OK for code in codes]

    def _is_logical(self, name: str) -> bool:
        """A pool without memory of its own: its data are in others."""
        pool = self._pools.get(name)
        return pool is not None and getattr(pool, "kv_buffer", pool) is None

    def _names(self, pool: str, keys: Sequence[str]) -> list[str]:
        space = self._space(pool, _shape_of(self._pools.get(pool)))
        return [space + key for key in keys]

    def _space(self, pool: str, shape: str) -> str:
        """Who may read whose pages: equal in all that shapes their bytes."""
        start = f"sglang/{self._options.tag}/{self._rank}/"
        return f"{start}{pool}/{shape}/" if pool else start


def _rank_of(config: Any) -> str:
    """What of a model this rank has; ranks with equal pages have equal names."""
    model = str(config.model_name or "").replace("/", "-")
    parts = [model, "mla" if config.is_mla_model else ""]
    if not config.is_mla_model:
        parts[1] = f"tp{config.tp_rank}of{config.tp_size}"
    if config.pp_size > 1:
        parts.append(f"pp{config.pp_rank}of{config.pp_size}")
    if getattr(config, "attn_cp_size", 1) > 1:
        parts.append(f"cp{config.attn_cp_rank}of{config.attn_cp_size}")
    return "/".join(parts)


def _shape_of(pool: Any) -> str:
    parts = (getattr(pool, name, "") for name in ("dtype", "layout", "page_size"))
    return ",".join(str(part).replace("/", "-") for part in parts)


def _setup_of(options: StorageOptions) -> dict[str, Any]:
    return {
        "local_hostname": options.local_hostname,
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": 0,
        "local_buffer_size": 0,
        "master_server_addr": options.master,
        "timeout_s": options.timeout_s,
    }


def _buffers_of(pool: Any) -> list[Any]:
    """Tensors of a host pool, with those in lists among them."""
    hybrid = getattr(pool, "get_hybrid_pool_buffer", None)
    found = hybrid() if callable(hybrid) else [getattr(pool, "kv_buffer", None)]
    flat: list[Any] = []
    for one in found:
        flat += one if isinstance(one, list | tuple) else [one]
    return [one for one in flat if one is not None]


def _view(tensor: Any) -> tuple[int, int]:
    """Address and bytes of a tensor; none of one that has gaps, which are others'."""
    if not getattr(tensor, "is_contiguous", lambda: True)():
        return 0, 0
    return int(tensor.data_ptr()), int(tensor.numel() * tensor.element_size())


def _leading(there: Sequence[bool]) -> int:
    """Successes before the first failure."""
    return there.index(False) if False in there else len(there)


def _trailing(there: Sequence[bool], window: int) -> list[int]:
    """Lengths of prefixes whose last `window` pages, or all they have, are there."""
    return [
        pages
        for pages in range(1, len(there) + 1)
        if all(there[max(0, pages - window) : pages])
    ]

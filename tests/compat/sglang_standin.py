"""What SGLang's side of a dynamic storage backend looks like, as far as it shows.

The abstract class has SGLang's methods and defaults (`hicache_storage.py`), `create`
does what its factory does with `dynamic` (`backend_factory.py`): import by path, check
the base class, call with the configuration and a dictionary, register the host pool.
"""

from __future__ import annotations

import abc
import ctypes
import dataclasses
import enum
import importlib
import types
from typing import Any

MODULE = "sglang.srt.mem_cache.hicache_storage"


class PoolName(str, enum.Enum):  # noqa: UP042 -- as SGLang's are
    KV = "kv"
    MAMBA = "mamba"
    INDEXER = "indexer"

    def __str__(self):
        return self.value


class PoolHitPolicy(str, enum.Enum):  # noqa: UP042
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"


@dataclasses.dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    device_indices: Any = None
    keys: Any = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclasses.dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict


@dataclasses.dataclass
class HiCacheStorageConfig:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str | None = "org/model"
    dp_rank: int = 0
    dp_size: int = 1
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    extra_config: dict | None = None


class HiCacheStorage(abc.ABC):
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        raise NotImplementedError

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        raise NotImplementedError

    def batch_get_v2(self, transfers, extra_info=None):
        raise NotImplementedError

    def batch_set_v2(self, transfers, extra_info=None):
        raise NotImplementedError

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        raise NotImplementedError

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        raise NotImplementedError

    @abc.abstractmethod
    def get(self, key, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_set(
        self, keys, values=None, target_locations=None, target_sizes=None
    ): ...

    @abc.abstractmethod
    def exists(self, key): ...

    def batch_exists(self, keys, extra_info=None):
        raise AssertionError("the backend has a batched one")

    def clear(self):
        raise AssertionError("the backend has its own")

    def get_stats(self):
        return "default"


def modules():
    """SGLang's package as far as a backend imports it, for `sys.modules`."""
    found = {}
    for end in range(1, MODULE.count(".") + 2):
        name = ".".join(MODULE.split(".")[:end])
        found[name] = types.ModuleType(name)
        found[name].__path__ = []
    shown = (PoolName, PoolHitPolicy, PoolTransfer, PoolTransferResult, HiCacheStorage)
    for one in (*shown, HiCacheStorageConfig):
        setattr(found[MODULE], one.__name__, one)
    return found


def create(config, pool):
    """A dynamic backend for a host pool."""
    extra = config.extra_config
    module = importlib.import_module(extra["module_path"])
    backend = getattr(module, extra["class_name"])
    assert issubclass(backend, HiCacheStorage)
    made = backend(config, {})
    made.register_mem_pool_host(pool)
    return made


class Tensor:
    """Bytes with the methods of a tensor that a backend may use."""

    def __init__(self, size):
        self.array = (ctypes.c_ubyte * size)()

    def data_ptr(self):
        return ctypes.addressof(self.array)

    def numel(self):
        return len(self.array)

    def element_size(self):
        return 1

    def __bytes__(self):
        return bytes(self.array)


class HostPool:
    """Pages of keys and values in two buffers; an index is a page's first token."""

    page_size = 4
    layout = "page_first"
    dtype = "bfloat16"

    def __init__(self, pages, page_bytes=96):
        self.half = page_bytes // 2
        self.k_buffer, self.v_buffer = (
            Tensor(pages * self.half),
            Tensor(pages * self.half),
        )
        self.kv_buffer = [self.k_buffer, self.v_buffer]

    def get_page_buffer_meta(self, indices):
        ptrs = []
        for token in indices[:: self.page_size]:
            at = token // self.page_size * self.half
            ptrs += [self.k_buffer.data_ptr() + at, self.v_buffer.data_ptr() + at]
        return ptrs, [self.half] * len(ptrs)

    def indices(self, *pages):
        return [p * self.page_size + t for p in pages for t in range(self.page_size)]

    def fill(self, page, byte):
        for buffer in self.kv_buffer:
            at = buffer.data_ptr() + page * self.half
            ctypes.memset(at, byte, self.half)

    def page(self, page):
        cut = slice(page * self.half, (page + 1) * self.half)
        return bytes(self.k_buffer.array[cut]) + bytes(self.v_buffer.array[cut])

"""A backend in the memory of the process: for tests and for runs without a pool.

Objects live on named stores, chosen by key; a `fault` hook may delay, fail or corrupt
any operation.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.codes import Code
from refimpl.hicache.storage.base import StorageResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from refimpl.transfer.cancel import Cancel

    Fault = Callable[[str, bytes, str, "Cancel | None", float], int | None]

_KEY = 32


class MemoryStorage:
    """Keeps every deadline and answers a cancel, unless the hook says otherwise.

    `fault(operation, key, store, cancel, timeout_s)` runs for every key of `get` and
    `put`, and with key b"" once for every call of `exists`; a code it answers is the
    key's (or the call's) result.
    """

    def __init__(
        self, stores: Sequence[str] = ("s0",), fault: Fault | None = None
    ) -> None:
        self.stores = list(stores)
        self.fault = fault
        self.objects: dict[bytes, dict[int, bytes]] = {}
        self.calls: list[tuple[str, int]] = []
        self.closed = False
        self.obeys_cancel = True
        self._parts: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def store_of(self, key: bytes) -> str:
        """The store that holds a key."""
        return self.stores[key[0] % len(self.stores)]

    def drop(self, key: bytes) -> None:
        """Removes one object."""
        with self._lock:
            self.objects.pop(key, None)

    def value(self, key: bytes) -> bytes:
        """The bytes of a complete object."""
        return b"".join(part for _, part in sorted(self.objects[key].items()))

    def exists(self, keys: bytes, *, timeout_s: float) -> NDArray[np.int16]:
        rows = self._called("exists", keys)
        code = self.fault and self.fault("exists", b"", "", None, timeout_s)
        if code is not None:
            return np.full(len(rows), code, np.int16)
        found = [0 if self._complete(k) else Code.OBJECT_NOT_FOUND for k in rows]
        return np.array(found, np.int16)

    def get(
        self,
        keys: bytes,
        buffers: Sequence[memoryview],
        *,
        timeout_s: float,
        avoid: frozenset[str] = frozenset(),
        cancel: Cancel | None = None,
    ) -> StorageResult:
        rows = self._called("get", keys)
        until = time.monotonic() + timeout_s
        ask = [
            self._get_one(key, buffer, avoid, cancel, until)
            for key, buffer in zip(rows, buffers, strict=True)
        ]
        return self._result(rows, ask, avoid)

    def put(
        self,
        keys: bytes,
        buffers: Sequence[memoryview],
        *,
        timeout_s: float,
        part: int = 0,
        parts: int = 1,
        object_bytes: int | None = None,
        avoid: frozenset[str] = frozenset(),
    ) -> StorageResult:
        del object_bytes
        rows = self._called("put", keys)
        until = time.monotonic() + timeout_s
        codes = []
        for key, buffer in zip(rows, buffers, strict=True):
            store = self.store_of(key)
            left = max(0.0, until - time.monotonic())
            code = self.fault and self.fault("put", key, store, None, left)
            if code is None:
                code = self._put_one(key, buffer, part, parts, store in avoid)
            codes.append(code)
        return self._result(rows, codes, avoid)

    def canary(self, *, timeout_s: float, avoid: frozenset[str]) -> StorageResult:
        self.calls.append(("canary", 1))
        left = [s for s in self.stores if s not in avoid]
        if not left:
            return StorageResult(codes=np.full(1, Code.NO_AVAILABLE_HANDLE, np.int16))
        code = self.probe(left[0], timeout_s=timeout_s)
        return StorageResult(
            codes=np.full(1, code, np.int16),
            endpoints={left[0]: code},
            asked=(left[0],),
        )

    def probe(self, endpoint: str, *, timeout_s: float) -> int:
        self.calls.append(("probe", 1))
        if endpoint not in self.stores:
            return Code.SEGMENT_NOT_FOUND
        for kind in ("put", "get"):
            code = self.fault and self.fault(kind, b"", endpoint, None, timeout_s)
            if code is not None:
                return code
        return 0

    def close(self) -> None:
        self.closed = True

    def _called(self, kind: str, keys: bytes) -> list[bytes]:
        rows = [keys[i : i + _KEY] for i in range(0, len(keys), _KEY)]
        self.calls.append((kind, len(rows)))
        return rows

    def _complete(self, key: bytes) -> bool:
        return len(self.objects.get(key, ())) == self._parts.get(key, 1)

    def _get_one(
        self,
        key: bytes,
        buffer: memoryview,
        avoid: frozenset[str],
        cancel: Cancel | None,
        until: float,
    ) -> int:
        store = self.store_of(key)
        if store in avoid:
            return Code.REPLICA_NOT_FOUND
        code = self.fault and self.fault(
            "get", key, store, cancel, max(0.0, until - time.monotonic())
        )
        if code is not None:
            return code
        if self.obeys_cancel and cancel is not None and cancel.is_set():
            return Code.RPC_TIMEOUT
        if not self._complete(key):
            return Code.OBJECT_NOT_FOUND
        buffer[:] = self.value(key)
        return 0

    def _put_one(
        self, key: bytes, buffer: memoryview, part: int, parts: int, avoided: bool
    ) -> int:
        if avoided:
            return Code.NO_AVAILABLE_HANDLE
        with self._lock:
            if self._complete(key):
                return Code.OBJECT_ALREADY_EXISTS
            self._parts[key] = parts
            self.objects.setdefault(key, {})[part] = bytes(buffer)
        return 0

    def _result(
        self, rows: list[bytes], codes: list[int], avoid: frozenset[str]
    ) -> StorageResult:
        endpoints: dict[str, int] = {}
        for key, code in zip(rows, codes, strict=True):
            store = self.store_of(key)
            if store not in avoid:
                fault = code <= Code.TRANSFER_FAIL
                endpoints[store] = min(endpoints.get(store, 0), code if fault else 0)
        return StorageResult(
            codes=np.array(codes, np.int16),
            endpoints=endpoints,
            asked=tuple(endpoints),
        )

"""The pool of the house as a HiCache backend: an adapter over `PoolClient`."""

from __future__ import annotations

import itertools
import time
import uuid
from typing import TYPE_CHECKING

import numpy as np

from refimpl.client.results import MASTER
from refimpl.core.codes import Code, Outcome, outcome_of
from refimpl.core.hashing import object_key
from refimpl.hicache.storage.base import StorageResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from refimpl.client import PoolClient
    from refimpl.transfer.cancel import Cancel


class PoolStorage:
    """Reads and writes through a `PoolClient`, which it closes at the end.

    Args:
        client: contributes no memory itself.
        replicas: copies of every object written.
        canary_bytes: size of the objects that probes write.
        clock: for the one deadline over the steps of a probe.
    """

    def __init__(
        self,
        client: PoolClient,
        *,
        replicas: int = 1,
        canary_bytes: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._replicas = replicas
        self._canary_bytes = canary_bytes
        self._clock = clock
        self._nonce = uuid.uuid4().hex
        self._numbers = itertools.count()

    def exists(self, keys: bytes, *, timeout_s: float) -> NDArray[np.int16]:
        """Codes. Unlike upstream's it grants no lease: who only asks holds nothing in
        memory (Mooncake#2187); what goes before it is read is a miss."""
        return self._client.exists(keys, timeout_s=timeout_s)

    def get(
        self,
        keys: bytes,
        buffers: Sequence[memoryview],
        *,
        timeout_s: float,
        avoid: frozenset[str] = frozenset(),
        cancel: Cancel | None = None,
    ) -> StorageResult:
        """One batched read from all stores in parallel, straight into `buffers`."""
        result = self._client.get(
            keys, buffers, timeout_s=timeout_s, avoid=avoid, cancel=cancel
        )
        return StorageResult(
            codes=result.codes,
            endpoints=_stores(result.endpoints),
            asked=tuple(result.asked),
            heard_s=result.heard_s,
        )

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
        """One batched write of one part of every object."""
        result = self._client.put(
            keys,
            buffers,
            timeout_s=timeout_s,
            part=part,
            parts=parts,
            object_bytes=object_bytes,
            replicas=self._replicas,
            avoid=avoid,
        )
        endpoints = _stores(result.endpoints)
        return StorageResult(
            codes=result.codes, endpoints=endpoints, asked=tuple(endpoints)
        )

    def canary(self, *, timeout_s: float, avoid: frozenset[str]) -> StorageResult:
        """Writes, reads back, compares and removes an object nobody else knows."""
        until = self._clock() + timeout_s
        key = object_key(f"hicache-canary/{self._nonce}/{next(self._numbers)}")
        wrote = np.frombuffer((key * (self._canary_bytes // 32 + 1)), np.uint8)
        wrote = wrote[: self._canary_bytes].copy()
        put = self.put(key, [wrote.data], timeout_s=timeout_s, avoid=avoid)
        if put.codes[0] != Code.OK:
            return _blamed(put)
        read = np.zeros_like(wrote)
        left = max(0.0, until - self._clock())
        got = self.get(key, [read.data], timeout_s=left, avoid=avoid)
        left = max(0.05 * timeout_s, until - self._clock())
        self._client.remove(key, timeout_s=left, force=True)
        if got.codes[0] >= 0 and not np.array_equal(wrote, read):
            codes = np.full(1, Code.CHECKSUM_MISMATCH, np.int16)
            return StorageResult(codes=codes, endpoints=got.endpoints, asked=got.asked)
        if outcome_of(int(got.codes[0])) is Outcome.MISS:
            # Written well a moment ago and gone: this is no healthy answer.
            codes = np.full(1, Code.TRANSFER_FAIL, np.int16)
            return StorageResult(codes=codes, endpoints=got.endpoints, asked=got.asked)
        return got

    def probe(self, endpoint: str, *, timeout_s: float) -> int:
        """A canary that must live on `endpoint`, every other store being avoided."""
        until = self._clock() + timeout_s
        names = {s.name for s in self._client.segments(timeout_s)}
        if endpoint not in names:
            return int(Code.SEGMENT_NOT_FOUND)
        left = max(0.0, until - self._clock())
        result = self.canary(timeout_s=left, avoid=frozenset(names - {endpoint}))
        return int(result.codes[0])

    def close(self) -> None:
        """Closes the client."""
        self._client.close()


def _stores(endpoints: Mapping[str, Code]) -> dict[str, int]:
    """The stores among the endpoints: a master that fails names no store."""
    return {name: int(code) for name, code in endpoints.items() if name != MASTER}


def _blamed(put: StorageResult) -> StorageResult:
    """A put that failed on a store and found no other place is that store's fault."""
    faults = [c for c in put.endpoints.values() if outcome_of(c) is Outcome.FAULT]
    if not faults:
        return put
    codes = np.full(1, faults[0], np.int16)
    return StorageResult(codes=codes, endpoints=put.endpoints, asked=put.asked)

"""The pool client: batched get and put with one total deadline, codes per key.

It contributes no memory. Nothing raises for a failure of the pool: every key has a
code, and what went wrong inside is an INTERNAL_ERROR with a log line.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from refimpl.client.buffers import flat_views, packed_keys
from refimpl.client.get import Get
from refimpl.client.put import Put
from refimpl.client.ranges import RangeGet
from refimpl.client.reservation import Reservation
from refimpl.client.results import (
    GetResult,
    Lookup,
    MasterFacts,
    PutResult,
    filled,
)
from refimpl.client.rpc import MasterRpc, RpcFailed, column, segment_of
from refimpl.client.settings import ClientSettings
from refimpl.core.codes import Code
from refimpl.failpoints import Failpoints
from refimpl.proto import pool_pb2
from refimpl.transfer.engine import TransferEngine
from refimpl.transfer.rails import Rails

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from refimpl.client.buffers import Buffers, Keys
    from refimpl.core.rails import Topology
    from refimpl.core.segments import SegmentInfo
    from refimpl.security.secret import Secret
    from refimpl.security.tls import Tls
    from refimpl.transfer.cancel import Cancel

_LOG: Final = logging.getLogger(__name__)
_KNOWN_SEGMENTS: Final = 4096


class PoolClient:
    """A client of one pool; safe from several threads.

    Args:
        master: HOST:PORT of the master's RPC.
        host_id: failure domain of this process; writes prefer it, reads too.
        settings: patience.
        failpoints: `client.before_transfer` and the defects of the client.
        clock: monotonic seconds.
        topology: NICs by storage location, to choose near rails first.
        location: where this process's buffers are, "cpu:0".
        tls: certificates of the line to the master (`refimpl.security.tls.load_tls`).
        data_secret: what stores and this client prove to each other.
    """

    def __init__(
        self,
        master: str,
        *,
        host_id: str = "",
        settings: ClientSettings | None = None,
        failpoints: Failpoints | None = None,
        clock: Callable[[], float] = time.monotonic,
        topology: Topology | None = None,
        location: str = "*",
        tls: Tls | None = None,
        data_secret: Secret | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        self._failpoints = failpoints or Failpoints()
        self._clock = clock
        self._host_id = host_id
        self._client = secrets.randbits(63) | 1
        self._rpc = MasterRpc(master, self._settings, clock, tls=tls)
        rails = Rails(self._settings.rails, topology=topology, location=location)
        self._engine = TransferEngine(
            self._settings.transfer, clock, rails=rails, secret=data_secret
        )
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._names: dict[int, str] = {}
        self._names_at = -math.inf

    def lookup(
        self, keys: Keys, *, timeout_s: float, grant_lease: bool = True
    ) -> Lookup:
        """Where a batch is; holds it in memory for the lease unless told not to.

        Raises:
            ValueError: the keys are no whole number of keys.
        """
        packed = packed_keys(keys)
        deadline = self._clock() + timeout_s
        return self._rpc.lookup(packed, deadline, grant_lease=grant_lease)

    def get(
        self,
        keys: Keys,
        buffers: Buffers,
        *,
        timeout_s: float,
        avoid: Collection[str] = frozenset(),
        cancel: Cancel | None = None,
        found: Lookup | None = None,
    ) -> GetResult:
        """Reads objects into buffers, all stores in parallel.

        Args:
            keys: packed 32-byte keys, duplicates allowed.
            buffers: one per key, as large as its object at least.
            timeout_s: one total deadline over lookup and transfer.
            avoid: names of stores not to ask.
            cancel: ends the call at once; what is missing is RPC_TIMEOUT.
            found: a lookup of these keys that the caller made lately, with a lease.
        """
        deadline = self._clock() + timeout_s
        try:
            packed = packed_keys(keys)
            views = flat_views(buffers, len(packed) // 32, writable=True)
        except (TypeError, ValueError, BufferError):
            codes = filled(len(buffers), Code.INVALID_PARAMS)
            return GetResult(codes=codes, endpoints={})
        if not views:
            return GetResult(codes=filled(0, Code.OK), endpoints={})
        try:
            result = Get(
                rpc=self._rpc,
                engine=self._engine,
                settings=self._settings,
                failpoints=self._failpoints,
                clock=self._clock,
                host_id=self._host_id,
                keys=packed,
                views=views,
                deadline=deadline,
                avoid=avoid,
                cancel=cancel,
                found=found,
            ).run()
        except Exception:
            _LOG.exception("get of %d keys broke", len(views))
            codes = filled(len(views), Code.INTERNAL_ERROR)
            result = GetResult(codes=codes, endpoints={})
        self._count("get", result.codes)
        return result

    def get_ranges(
        self,
        found: Lookup,
        rows: Sequence[int],
        offsets: Sequence[int],
        buffers: Buffers,
        *,
        timeout_s: float,
        cancel: Cancel | None = None,
    ) -> NDArray[np.int16]:
        """Reads byte ranges of objects looked up before; a code for each range.

        Args:
            found: a lookup with a lease. Past its end ranges are LEASE_EXPIRED.
            rows: of each range, the row of its object in `found`.
            offsets: of each range, its first byte within the object.
            buffers: one per range, exactly as large as the range.
            timeout_s: one total deadline.
            cancel: ends the call at once; what is missing is RPC_TIMEOUT.
        """
        deadline = self._clock() + timeout_s
        try:
            views = flat_views(buffers, len(rows), writable=True)
            if len(offsets) != len(rows):
                raise ValueError(f"{len(offsets)} offsets for {len(rows)} ranges")
            shifts = np.array(offsets, np.uint64)
        except (TypeError, ValueError, BufferError, OverflowError):
            return filled(len(rows), Code.INVALID_PARAMS)
        if not views:
            return filled(0, Code.OK)
        try:
            result = RangeGet(
                found=found,
                rows=np.array(rows, np.intp),
                offsets=shifts,
                views=views,
                rpc=self._rpc,
                engine=self._engine,
                settings=self._settings,
                failpoints=self._failpoints,
                clock=self._clock,
                host_id=self._host_id,
                deadline=deadline,
                avoid=frozenset(),
                cancel=cancel,
            ).run()
        except Exception:
            _LOG.exception("get of %d ranges broke", len(views))
            return filled(len(views), Code.INTERNAL_ERROR)
        self._count("get", result.codes)
        return result.codes

    def exists(self, keys: Keys, *, timeout_s: float) -> NDArray[np.int16]:
        """Codes per key, without holding anything in memory."""
        try:
            found = self.lookup(keys, timeout_s=timeout_s, grant_lease=False)
        except ValueError:
            return filled(len(keys) // 32, Code.INVALID_PARAMS)
        return found.status.copy()

    def put(
        self,
        keys: Keys,
        buffers: Buffers,
        *,
        timeout_s: float,
        part: int = 0,
        parts: int = 1,
        object_bytes: int | None = None,
        replicas: int = 1,
        avoid: Collection[str] = frozenset(),
        pin: str = "",
        prefer: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> PutResult:
        """Writes objects, or one part of each at its place within the object.

        Args:
            keys: packed 32-byte keys.
            buffers: one per key: the object, or this part of it.
            timeout_s: one total deadline.
            part: number of the part that the buffers hold.
            parts: parts that make an object; ranks write one each.
            object_bytes: whole size of each object, `parts` times the buffer if None.
            replicas: copies on different hosts.
            avoid: names of stores not to write to, as far as they are known.
            pin: "soft" or "hard" keeps the objects from eviction.
            prefer: names of stores to write to if they have room.
            names: none, or one a key: what `names` lists.
        """
        deadline = self._clock() + timeout_s
        try:
            packed = packed_keys(keys)
            views = flat_views(buffers, len(packed) // 32)
            sizes = _object_sizes(views, part, parts, object_bytes)
            if replicas < 1:
                raise ValueError(f"{replicas} replicas")
        except (TypeError, ValueError, BufferError, OverflowError):
            codes = filled(len(buffers), Code.INVALID_PARAMS)
            return PutResult(codes=codes, endpoints={})
        if not views:
            return PutResult(codes=filled(0, Code.OK), endpoints={})
        try:
            result = self._put(
                keys=packed,
                views=views,
                deadline=deadline,
                part=part,
                parts=parts,
                object_bytes=sizes,
                replicas=replicas,
                exclude=set(self._ids_of(avoid, deadline)),
                pin=pin,
                prefer=self._ids_of(prefer, deadline),
                names=names,
            ).run()
        except Exception:
            _LOG.exception("put of %d keys broke", len(views))
            codes = filled(len(views), Code.INTERNAL_ERROR)
            result = PutResult(codes=codes, endpoints={})
        self._count("put", result.codes)
        return result

    def reserve(
        self,
        keys: Keys,
        buffers: Buffers,
        *,
        timeout_s: float,
        replicas: int = 1,
        pin: str = "",
        prefer: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> Reservation:
        """Takes places for objects whose bytes come later; see `Reservation`.

        The arguments are those of `put`; the buffers are read when rows are completed.

        Raises:
            ValueError: not one buffer per key, or an empty or an endless one.
        """
        deadline = self._clock() + timeout_s
        packed = packed_keys(keys)
        views = flat_views(buffers, len(packed) // 32)
        put = self._put(
            keys=packed,
            views=views,
            deadline=deadline,
            part=0,
            parts=1,
            object_bytes=_object_sizes(views, 0, 1, None),
            replicas=replicas,
            exclude=set(),
            pin=pin,
            prefer=self._ids_of(prefer, deadline),
            names=names,
        )
        codes = put.reserve() if views else filled(0, Code.OK)
        return Reservation(put, codes, self._clock)

    def remove(
        self, keys: Keys, *, timeout_s: float, force: bool = False
    ) -> NDArray[np.int16]:
        """Removes objects; one with a live lease only by force."""
        deadline = self._clock() + timeout_s
        count = len(keys) // 32
        try:
            packed = packed_keys(keys)
            count = len(packed) // 32
            request = pool_pb2.RemoveRequest(keys=packed, force=force)
            answer = self._rpc.call(self._rpc.stub.Remove, request, deadline)
            status: NDArray[np.int16] = column(answer.status, "<i2", count)
        except RpcFailed as error:
            return filled(count, error.code)
        except ValueError:
            return filled(count, Code.INVALID_PARAMS)
        return status.copy()

    def remove_all(self, timeout_s: float, *, force: bool = False) -> int:
        """Removes every object that no reader holds, by force the others as well.

        Answers how many were removed, or a negative code.
        """
        request = pool_pb2.RemoveRequest(all=True, force=force)
        deadline = self._clock() + timeout_s
        try:
            answer = self._rpc.call(self._rpc.stub.Remove, request, deadline)
        except RpcFailed as error:
            return error.code
        return int(answer.removed)

    def names(self, timeout_s: float) -> list[str]:
        """Names of the readable objects whose writers gave them one.

        Raises:
            RpcFailed: the master did not answer.
        """
        deadline = self._clock() + timeout_s
        found: list[str] = []
        cursor = 0
        while True:
            request = pool_pb2.ListNamesRequest(cursor=cursor)
            answer = self._rpc.call(self._rpc.stub.ListNames, request, deadline)
            found += answer.names
            if answer.cursor <= cursor:  # 0 is the end; a master that turns back is it
                return found
            cursor = answer.cursor

    def describe(self, timeout_s: float) -> MasterFacts:
        """What the master says of itself.

        Raises:
            RpcFailed: the master did not answer.
        """
        answer = self._rpc.call(
            self._rpc.stub.Describe,
            pool_pb2.DescribeRequest(),
            self._clock() + timeout_s,
        )
        return MasterFacts(
            heartbeat=answer.heartbeat,
            time_scale=answer.time_scale,
            lease_s=answer.lease_ms / 1000,
            view=answer.view,
        )

    def segments(self, timeout_s: float) -> list[SegmentInfo]:
        """The live segments.

        Raises:
            RpcFailed: the master did not answer.
        """
        answer = self._rpc.call(
            self._rpc.stub.ListSegments,
            pool_pb2.ListSegmentsRequest(),
            self._clock() + timeout_s,
        )
        found = [segment_of(message) for message in answer.segments]
        self._names = {segment.id: segment.name for segment in found[:_KNOWN_SEGMENTS]}
        self._names_at = self._clock()
        return found

    def stats(self) -> dict[str, Any]:
        """Counters of this client, and its connections and rails."""
        with self._lock:
            counts = dict(sorted(self._counts.items()))
        return {"counts": counts, "transfer": self._engine.state()}

    def close(self) -> None:
        """Closes the channel and idle connections."""
        self._rpc.close()
        self._engine.close()

    def _put(self, **parts: Any) -> Put:
        return Put(
            rpc=self._rpc,
            engine=self._engine,
            settings=self._settings,
            clock=self._clock,
            client=self._client,
            host_id=self._host_id,
            **parts,
        )

    def _count(self, call: str, codes: NDArray[np.int16]) -> None:
        values, counts = np.unique(codes, return_counts=True)
        with self._lock:
            self._counts[f"{call}_calls"] += 1
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                self._counts[f"{call}_keys_{code_name(value)}"] += count

    def _ids_of(self, names: Collection[str], deadline: float) -> list[int]:
        """Ids of the segments of stores, which the master's answers are named by.

        In the order of the names, where they have one.
        """
        if not names:
            return []
        if self._clock() - self._names_at > self._settings.names_fresh_s:
            try:
                self.segments(deadline - self._clock())
            except RpcFailed:
                # PutStart will meet the same master; the last list must do.
                _LOG.debug("list of segments not to be had", exc_info=True)
        by_name = {name: number for number, name in self._names.items()}
        return [by_name[name] for name in names if name in by_name]


def code_name(number: int) -> str:
    """Lower-case name of a code, for counters."""
    try:
        return Code(number).name.lower()
    except ValueError:
        return f"code_{-number}"


def _object_sizes(
    views: list[memoryview], part: int, parts: int, object_bytes: int | None
) -> NDArray[np.uint32]:
    """Whole sizes of objects whose part is `views`.

    Raises:
        ValueError: part and sizes do not fit together.
    """
    if not 0 <= part < parts:
        raise ValueError(f"part {part} of {parts}")
    sizes = np.fromiter(map(len, views), np.int64, len(views)) * parts
    if object_bytes is not None and np.any(sizes != object_bytes):
        raise ValueError(f"parts do not make objects of {object_bytes} bytes")
    if np.any(sizes > np.iinfo(np.uint32).max):
        raise ValueError("an object is beyond 4 GiB")
    return sizes.astype(np.uint32)

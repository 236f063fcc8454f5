"""The gRPC face of the pool: columns in, one locked call, columns out.

Each method is a plain function from request to response, so a test needs no server. The
decorator turns a caller's mistake into INVALID_ARGUMENT with INVALID_PARAMS and a clear
text, and anything unforeseen into INTERNAL: never a traceback for the caller.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np

from refimpl.core.codes import Code
from refimpl.core.objects import REPLICAS_MAX
from refimpl.master.columns import BadRequest, column_of, keys_of
from refimpl.master.directory import from_message, to_message
from refimpl.master.heartbeat import KEY_BYTES
from refimpl.names import NAME_RULE, is_name, is_plain
from refimpl.proto import pool_pb2, pool_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from refimpl.core.pool_answers import Started
    from refimpl.core.segments import SegmentInfo
    from refimpl.failpoints import Failpoints
    from refimpl.master.directory import Directory
    from refimpl.master.guarded import GuardedPool
    from refimpl.master.metrics import CallMetrics

_LOG: Final = logging.getLogger(__name__)
_PINS: Final = ("", "soft", "hard")
_MOST_PARTS: Final = 64
_MOST_RAILS: Final = 64
_MOST_PREFERRED: Final = 64


def _answers(call: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a gRPC handler of a method that raises BadRequest; `call` is counted."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def handle(
            self: MasterService, request: Any, context: grpc.ServicerContext
        ) -> Any:
            try:
                return method(self, request)
            except BadRequest as error:
                status, text = grpc.StatusCode.INVALID_ARGUMENT, f"{error}"
                name = Code.INVALID_PARAMS.name
            except Exception as error:
                _LOG.exception("%s broke", call)
                status, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__}"
                name = Code.INTERNAL_ERROR.name
            self.metrics.refused(call)
            return context.abort(status, f"{name}: {text}")

        return handle

    return decorate


class MasterService(pool_pb2_grpc.MasterServicer):
    """Answers the calls of stores and clients.

    Args:
        shared: the pool behind its lock.
        failpoints: `master.lookup`, `master.put_start`, `master.put_end` and defects.
        metrics: counts every call.
        lease_s: how long a lookup keeps what it found, in real seconds.
        about: what `Describe` tells: `heartbeat`, `time_scale`, `view`.
        signed_beats: whether who mounts has to bring a key for its heartbeats.
    """

    def __init__(
        self,
        shared: GuardedPool,
        failpoints: Failpoints,
        metrics: CallMetrics,
        *,
        lease_s: float,
        about: Mapping[str, Any] | None = None,
        signed_beats: bool = False,
    ) -> None:
        self._shared = shared
        self._failpoints = failpoints
        self.metrics = metrics
        self._lease_ms = int(lease_s * 1000)
        self._about = dict(about or {})
        self._key_bytes = KEY_BYTES if signed_beats else 0

    @_answers("batch_get_replica_list")
    def Lookup(self, request: pool_pb2.LookupRequest) -> pool_pb2.LookupResponse:
        """Locates a batch; `no_lease` makes it an existence probe."""
        began = self._shared.clock()
        keys = keys_of(request.keys)
        call = "batch_exist_key" if request.no_lease else "batch_get_replica_list"
        code = self._failpoints.hit("master.lookup")
        if code is not None and code < 0:
            self.metrics.answered(call, len(keys), len(keys))
            return _nothing_located(len(keys), code)
        shared = self._shared
        with shared.locked() as (pool, now):
            found = pool.lookup(keys, now, grant_lease=not request.no_lease)
            directory = shared.directory
        self.metrics.answered(call, len(keys), int(np.count_nonzero(found.status)))
        self.metrics.lookup_took(shared.clock() - began)
        segment, offset = _used_replicas(found.segment, found.offset)
        return pool_pb2.LookupResponse(
            status=found.status.tobytes(),
            segment=segment.tobytes(),
            offset=offset.tobytes(),
            size=found.size.tobytes(),
            checksum=found.checksum.tobytes(),
            parts=found.parts.tobytes(),
            replicas=segment.shape[1],
            lease_ms=0 if request.no_lease else self._lease_ms,
            segments=directory.describe(segment),
        )

    @_answers("batch_put_start")
    def PutStart(self, request: pool_pb2.PutStartRequest) -> pool_pb2.PutStartResponse:
        """Gives each new key a place and a token."""
        keys = keys_of(request.keys)
        sizes = column_of(request.sizes, "sizes", "<u4", len(keys))
        replicas, parts = request.replicas or 1, request.parts or 1
        _require(request.pin in _PINS, f"pin {request.pin!r} is not one of {_PINS}")
        _require(replicas <= REPLICAS_MAX, f"replicas is above {REPLICAS_MAX}")
        _require(parts <= _MOST_PARTS, f"parts is above {_MOST_PARTS}")
        _require(
            len(request.names) in (0, len(keys)),
            f"names has {len(request.names)} names for {len(keys)} keys",
        )
        _require(
            len(request.prefer) <= _MOST_PREFERRED, f"prefer is above {_MOST_PREFERRED}"
        )
        code = self._failpoints.hit("master.put_start")
        if code is not None and code < 0:
            self.metrics.answered("batch_put_start", len(keys), len(keys))
            return _nothing_started(len(keys), replicas, code)
        started, directory = self._started(request, keys, sizes)
        self.metrics.values_started(sizes[started.status == 0])
        self._count("batch_put_start", started.status)
        return pool_pb2.PutStartResponse(
            status=started.status.tobytes(),
            token=started.token.tobytes(),
            segment=started.segment.tobytes(),
            offset=started.offset.tobytes(),
            replicas=started.segment.shape[1],
            segments=directory.describe(started.segment),
        )

    def _started(
        self,
        request: pool_pb2.PutStartRequest,
        keys: NDArray[np.uint64],
        sizes: NDArray[np.uint32],
    ) -> tuple[Started, Directory]:
        """Places a batch; without room, has maintenance look at once."""
        random = self._failpoints.enabled("defect.placement_random")
        shared = self._shared
        with shared.locked() as (pool, now):
            started = pool.put_start(
                keys,
                sizes,
                now,
                client=request.client,
                host_id="" if random else request.host_id,
                replicas=request.replicas or 1,
                parts=request.parts or 1,
                exclude=frozenset(request.exclude),
                pin=request.pin,
                prefer=tuple(request.prefer),
                names=tuple(request.names),
            )
            directory = shared.directory
        if np.any(started.status == Code.NO_AVAILABLE_HANDLE):
            shared.urgent.set()
        return started, directory

    @_answers("batch_put_end")
    def PutEnd(self, request: pool_pb2.PutEndRequest) -> pool_pb2.StatusResponse:
        """Makes the writer's parts readable."""
        keys = keys_of(request.keys)
        tokens = column_of(request.token, "token", "<u8", len(keys))
        checksums = column_of(request.checksum, "checksum", "<u8", len(keys))
        _require(request.part < _MOST_PARTS, f"part is not below {_MOST_PARTS}")
        code = self._failpoints.hit("master.put_end")
        if code is not None and code < 0:
            return self._statuses("batch_put_end", _all(len(keys), code))
        stale_accepted = self._failpoints.enabled("defect.stale_end_accepted")
        with self._shared.locked() as (pool, now):
            status = pool.put_end(
                keys,
                tokens,
                checksums,
                now,
                client=request.client,
                part=request.part,
                any_token=stale_accepted,
            )
        return self._statuses("batch_put_end", status)

    @_answers("batch_put_revoke")
    def PutRevoke(self, request: pool_pb2.PutEndRequest) -> pool_pb2.StatusResponse:
        """Gives back what PutStart gave."""
        keys = keys_of(request.keys)
        tokens = column_of(request.token, "token", "<u8", len(keys))
        stale_accepted = self._failpoints.enabled("defect.stale_end_accepted")
        with self._shared.locked() as (pool, now):
            status = pool.put_revoke(
                keys,
                tokens,
                now,
                client=request.client,
                any_token=stale_accepted,
            )
        return self._statuses("batch_put_revoke", status)

    @_answers("batch_remove")
    def Remove(self, request: pool_pb2.RemoveRequest) -> pool_pb2.StatusResponse:
        """Removes keys, or everything that no reader holds."""
        keys = keys_of(request.keys)
        if request.all:
            with self._shared.locked() as (pool, now):
                removed = pool.remove_all(now, force=request.force)
            self.metrics.answered("remove_all", 1, 0)
            return pool_pb2.StatusResponse(removed=removed)
        with self._shared.locked() as (pool, now):
            status = pool.remove(keys, now, force=request.force)
        return self._statuses("batch_remove", status)

    @_answers("get_all_keys")
    def ListNames(
        self, request: pool_pb2.ListNamesRequest
    ) -> pool_pb2.ListNamesResponse:
        """Names of objects in one slice of the table: the lock is held for that."""
        with self._shared.locked() as (pool, _):
            names, cursor = pool.names(request.cursor)
        self.metrics.answered("get_all_keys", 1, 0)
        return pool_pb2.ListNamesResponse(names=names, cursor=cursor)

    @_answers("service_ready")
    def Describe(self, _request: pool_pb2.DescribeRequest) -> pool_pb2.DescribeResponse:
        """Where to send heartbeats, and the factor on every duration."""
        self.metrics.answered("service_ready", 1, 0)
        return pool_pb2.DescribeResponse(lease_ms=self._lease_ms, **self._about)

    @_answers("mount_segment")
    def MountSegment(self, request: pool_pb2.MountRequest) -> pool_pb2.Status:
        """Takes a store's memory into the pool."""
        segment = _require_segment(request.segment)
        key = request.beat_key if self._key_bytes else b""
        _require(
            len(key) == self._key_bytes, f"beat_key has not {self._key_bytes} bytes"
        )
        return self._status(
            "mount_segment", self._shared.mount(segment, request.client, key)
        )

    @_answers("unmount_segment")
    def UnmountSegment(self, request: pool_pb2.UnmountRequest) -> pool_pb2.Status:
        """Takes a store's memory out of the pool."""
        _require(0.0 <= request.grace_s < 1e6, "grace_s is not within 0 and 1e6")
        code = self._shared.unmount(request.id, request.client, request.grace_s)
        return self._status("unmount_segment", code)

    @_answers("get_all_segments")
    def ListSegments(
        self, _request: pool_pb2.ListSegmentsRequest
    ) -> pool_pb2.ListSegmentsResponse:
        """Every live segment, with what is allocated in it."""
        with self._shared.locked() as (pool, _):
            segments = pool.segments()
        self.metrics.answered("get_all_segments", 1, 0)
        return pool_pb2.ListSegmentsResponse(segments=map(to_message, segments))

    def _statuses(self, call: str, status: NDArray[Any]) -> pool_pb2.StatusResponse:
        self._count(call, status)
        return pool_pb2.StatusResponse(status=status.tobytes())

    def _status(self, call: str, code: Code) -> pool_pb2.Status:
        self.metrics.answered(call, 1, int(code < 0))
        return pool_pb2.Status(code=code, detail=Code(code).name)

    def _count(self, call: str, status: NDArray[Any]) -> None:
        self.metrics.answered(call, len(status), int(np.count_nonzero(status < 0)))


def _require_segment(message: pool_pb2.Segment) -> SegmentInfo:
    """A segment that could be mounted: its names are as foreign as any other bytes.

    Raises:
        BadRequest: it could not.
    """
    segment = from_message(message)
    _require(segment.id != 0, "segment.id is 0, which means none")
    _require(segment.size > 0, "segment.size is 0")
    _require(bool(segment.name), "segment.name is empty")
    _require(is_name(segment.name), f"segment.name is not {NAME_RULE}")
    _require(is_name(segment.host_id or "-"), f"segment.host_id is not {NAME_RULE}")
    _require(bool(segment.rails), "segment.rails is empty: nobody could read it")
    _require(len(segment.rails) <= _MOST_RAILS, f"rails are above {_MOST_RAILS}")
    for name, address in segment.rails:
        _require(is_name(name), f"the name of a rail is not {NAME_RULE}")
        _require(is_plain(address), "the address of a rail is not HOST:PORT")
    return segment


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise BadRequest(text)


def _used_replicas(
    segment: NDArray[np.uint64], offset: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The columns without those of replicas that no object of the batch has."""
    used = max(1, segment.shape[1])
    while used > 1 and not segment[:, used - 1].any():
        used -= 1
    return segment[:, :used], offset[:, :used]


def _all(count: int, code: int) -> NDArray[np.int16]:
    return np.full(count, code, dtype=np.int16)


def _nothing_located(count: int, code: int) -> pool_pb2.LookupResponse:
    """An answer whose every key has `code`: what a failpoint asked for."""
    return pool_pb2.LookupResponse(
        status=_all(count, code).tobytes(),
        segment=bytes(8 * count),
        offset=bytes(8 * count),
        size=bytes(4 * count),
        checksum=bytes(8 * count),
        parts=bytes(count),
        replicas=1,
    )


def _nothing_started(count: int, replicas: int, code: int) -> pool_pb2.PutStartResponse:
    return pool_pb2.PutStartResponse(
        status=_all(count, code).tobytes(),
        token=bytes(8 * count),
        segment=bytes(8 * count * replicas),
        offset=bytes(8 * count * replicas),
        replicas=replicas,
    )

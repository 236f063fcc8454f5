"""The client's line to the master: batched calls with what is left of a deadline."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np

from refimpl.client.results import Lookup, filled
from refimpl.core.codes import Code
from refimpl.core.segments import SegmentInfo
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import GRPC_OPTIONS
from refimpl.security.tls import open_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from refimpl.client.settings import ClientSettings
    from refimpl.security.tls import Tls
    from refimpl.transfer.cancel import Cancel

_WAITERS: Final = 16
"""Threads for lookups that may be cancelled; more wait their turn, within deadlines."""
_CODES: Final = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Code.RPC_TIMEOUT,
    grpc.StatusCode.CANCELLED: Code.RPC_TIMEOUT,
    grpc.StatusCode.INVALID_ARGUMENT: Code.INVALID_PARAMS,
}


class RpcFailed(Exception):
    """A call to the master had no answer; `code` says why."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(f"{code.name}: {detail}")
        self.code = code


class MasterRpc:
    """A channel that outlives restarts of the master."""

    def __init__(
        self,
        address: str,
        settings: ClientSettings,
        clock: Callable[[], float],
        *,
        tls: Tls | None = None,
    ) -> None:
        self._clock = clock
        self._waiters = ThreadPoolExecutor(_WAITERS, thread_name_prefix="lookup")
        self._sent: set[Any] = set()
        self._channel = open_channel(address, _options(settings), tls)
        self.stub = pool_pb2_grpc.MasterStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Cancels what is in flight."""
        self._channel.close()
        self._waiters.shutdown()

    def call(
        self, method: Any, request: Any, deadline: float, cancel: Cancel | None = None
    ) -> Any:
        """One call within the deadline.

        grpcio can cancel only futures, and each of those starts a thread when no other
        is in flight: the blocking call is a quarter faster, in a thread of our own when
        it must be left behind on cancellation.

        Raises:
            RpcFailed: no answer in time, or none at all.
        """
        left_s = self._left_s(deadline)
        try:
            if cancel is None:
                return method(request, timeout=left_s)
            return self._call_aside(method, request, left_s, cancel)
        except grpc.RpcError as error:
            code = _CODES.get(error.code(), Code.RPC_FAIL)
            raise RpcFailed(code, str(error.details())) from error
        except (RuntimeError, ValueError) as error:  # the channel or pool is closed
            raise RpcFailed(Code.RPC_FAIL, str(error)) from error

    def send(self, method: Any, request: Any, deadline: float) -> None:
        """A call whose answer nobody waits for.

        The future is kept until it is done: grpcio cancels a call that nobody holds.

        Raises:
            RpcFailed: it could not even be sent.
        """
        try:
            future = method.future(request, timeout=self._left_s(deadline))
        except ValueError as error:
            raise RpcFailed(Code.RPC_FAIL, str(error)) from error
        self._sent.add(future)
        future.add_done_callback(self._sent.discard)

    def _call_aside(
        self, method: Any, request: Any, left_s: float, cancel: Cancel
    ) -> Any:
        woken = threading.Event()
        future = self._waiters.submit(method, request, timeout=left_s)
        future.add_done_callback(lambda _future: woken.set())
        cancel.call_when_set(woken.set)
        try:
            woken.wait(left_s)
        finally:
            cancel.forget(woken.set)
        if not future.done():
            future.cancel()
            raise RpcFailed(Code.RPC_TIMEOUT, "cancelled or out of time")
        return future.result()

    def _left_s(self, deadline: float) -> float:
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise RpcFailed(Code.RPC_TIMEOUT, "deadline passed before the call")
        return left_s

    def lookup(
        self,
        keys: bytes,
        deadline: float,
        *,
        grant_lease: bool = True,
        cancel: Cancel | None = None,
    ) -> Lookup:
        """Locates a batch; a call without answer gives its code to every row."""
        # Before the call: the master starts the lease when it gets it (Mooncake#896).
        started = self._clock()
        request = pool_pb2.LookupRequest(keys=keys, no_lease=not grant_lease)
        try:
            answer = self.call(self.stub.Lookup, request, deadline, cancel)
        except RpcFailed as error:
            return _no_answer(len(keys) // 32, error.code)
        return _located(answer, len(keys) // 32, started)


def _options(settings: ClientSettings) -> list[tuple[str, int]]:
    def in_ms(seconds: float) -> int:
        return max(20, int(seconds * 1000))

    return [
        *GRPC_OPTIONS,
        ("grpc.initial_reconnect_backoff_ms", in_ms(settings.reconnect_min_s)),
        # Despite its name this is also the patience with one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", in_ms(settings.connect_s)),
        ("grpc.max_reconnect_backoff_ms", in_ms(settings.reconnect_max_s)),
        # Channels of one process would share connections and back-off otherwise.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]


def _no_answer(count: int, code: Code) -> Lookup:
    none = np.zeros((count, 1), np.uint64)
    return Lookup(
        code=code,
        status=filled(count, code),
        segment=none,
        offset=none,
        size=np.zeros(count, np.uint32),
        checksum=np.zeros(count, np.uint64),
        parts=np.zeros(count, np.uint8),
        segments={},
        lease_until=0.0,
    )


def _located(answer: Any, count: int, started: float) -> Lookup:
    """Columns of an answer; one that does not fit the question is an error."""
    replicas = answer.replicas or 1
    try:
        return Lookup(
            code=Code.OK,
            status=column(answer.status, "<i2", count),
            segment=column(answer.segment, "<u8", count, replicas),
            offset=column(answer.offset, "<u8", count, replicas),
            size=column(answer.size, "<u4", count),
            checksum=column(answer.checksum, "<u8", count),
            parts=column(answer.parts, "u1", count),
            segments=segments_of(answer.segments),
            lease_until=started + answer.lease_ms / 1000,
        )
    except ValueError:
        return _no_answer(count, Code.INTERNAL_ERROR)


def column(packed: bytes, dtype: str, count: int, width: int = 0) -> Any:
    """A packed column as an array, (n,) or (n, width).

    Raises:
        ValueError: it has another length.
    """
    array = np.frombuffer(packed, dtype)
    return array.reshape((count, width) if width else (count,))


def segments_of(messages: Iterable[Any]) -> dict[int, SegmentInfo]:
    """Segments by id."""
    return {message.id: segment_of(message) for message in messages}


def segment_of(message: Any) -> SegmentInfo:
    """A segment out of its message."""
    return SegmentInfo(
        id=message.id,
        name=message.name,
        host_id=message.host_id,
        size=message.size,
        rails=tuple((rail.name, rail.address) for rail in message.rails),
        numa_node=message.numa_node,
        allocated=message.allocated,
        status=message.status,
    )

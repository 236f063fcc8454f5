"""One batched put: PutStart, parallel writes, PutEnd; revoked where it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from refimpl.client.results import MASTER, Endpoints, PutResult, filled
from refimpl.client.rpc import RpcFailed, column, segments_of
from refimpl.core.codes import Code, Outcome, outcome_of
from refimpl.core.hashing import checksum_of
from refimpl.proto import pool_pb2
from refimpl.transfer.operation import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from refimpl.client.rpc import MasterRpc
    from refimpl.client.settings import ClientSettings
    from refimpl.core.segments import SegmentInfo
    from refimpl.transfer.engine import TransferEngine

_FOR_THE_END: Final = 0.05
"""Share of what is left of the deadline that a transfer leaves for PutEnd."""
_MOST_FOR_THE_END_S: Final = 0.1
_SUMS_AT_ONCE: Final = 8
_NO_SECOND_TRY: Final = (Code.NO_AVAILABLE_HANDLE, Code.OBJECT_ALREADY_EXISTS)


class Put:
    """The state of one put of whole objects, or of one part of each.

    Args:
        exclude: ids of segments not to write to.
        object_bytes: whole size of each object.
        pin: "", "soft" or "hard".
        prefer: ids of segments to write to if there is room.
        names: none, or one a key, for those who list objects by name.
    """

    def __init__(
        self,
        *,
        rpc: MasterRpc,
        engine: TransferEngine,
        settings: ClientSettings,
        clock: Callable[[], float],
        client: int,
        host_id: str,
        keys: bytes,
        views: Sequence[memoryview],
        deadline: float,
        part: int,
        parts: int,
        object_bytes: NDArray[np.uint32],
        replicas: int,
        exclude: set[int],
        pin: str = "",
        prefer: Sequence[int] = (),
        names: Sequence[str] = (),
    ) -> None:
        self._rpc = rpc
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._client = client
        self._host_id = host_id
        self._keys = np.frombuffer(keys, np.uint64).reshape(-1, 4)
        self._views = views
        self._deadline = deadline
        self._part = part
        self._parts = parts
        self._object_bytes = object_bytes
        self._replicas = replicas
        self._exclude = exclude
        self._pin = pin
        self._prefer = prefer
        self._names = names
        self._reserved: _Placed | None = None
        self._sums = _Sums(views, part)
        self._endpoints = Endpoints()
        self._codes = filled(len(views), Code.INTERNAL_ERROR)

    def run(self) -> PutResult:
        """Writes everything; rows whose store failed are tried once elsewhere."""
        rows = np.arange(len(self._views))
        failed = self._attempt(rows, wait_for_revoke=True)
        if len(failed) and self._parts == 1 and self._clock() < self._deadline:
            first = self._codes[failed]
            self._attempt(failed, wait_for_revoke=False)
            # No room elsewhere is not why the put failed; and what exists already is
            # maybe our own first try, whose revocation did not arrive.
            second = self._codes[failed]
            kept = np.isin(second, _NO_SECOND_TRY)
            self._codes[failed] = np.where(kept, first, second)
        return PutResult(codes=self._codes, endpoints=self._endpoints.found)

    def reserve(self) -> NDArray[np.int16]:
        """Only the first step: places for all rows, without their bytes."""
        try:
            placed = self._start(np.arange(len(self._views)))
        except RpcFailed as error:
            return filled(len(self._views), error.code)
        self._reserved = placed
        return placed.status.copy()

    def complete(self, rows: NDArray[np.intp], deadline: float) -> NDArray[np.int16]:
        """The other steps for reserved rows: writes them and makes them readable."""
        assert self._reserved is not None, "nothing is reserved"
        self._deadline = deadline
        self._sums = _Sums(self._views, self._part, rows)
        placed = self._reserved.at(rows)
        written = self._write(placed)
        self._codes[rows] = written
        self._end(placed.only(written == Code.OK), gives_up=False)
        return self._codes[rows]

    def revoke(self, rows: NDArray[np.intp], deadline: float) -> NDArray[np.int16]:
        """Gives the places of reserved rows back."""
        assert self._reserved is not None, "nothing is reserved"
        request = self._ending(self._reserved.at(rows), b"")
        try:
            answer = self._rpc.call(self._rpc.stub.PutRevoke, request, deadline)
            status: NDArray[np.int16] = column(answer.status, "<i2", len(rows))
        except RpcFailed as error:
            return filled(len(rows), error.code)
        except ValueError:
            return filled(len(rows), Code.INTERNAL_ERROR)
        return status.copy()

    def _attempt(
        self, rows: NDArray[np.intp], *, wait_for_revoke: bool
    ) -> NDArray[np.intp]:
        """Start, write, end; answers the rows that a store could not take."""
        try:
            placed = self._start(rows)
        except RpcFailed as error:
            self._codes[rows] = error.code
            self._endpoints.blame(MASTER, error.code)
            return rows[:0]
        self._codes[rows] = placed.status
        good = placed.status == Code.OK
        if not good.any():
            return rows[:0]
        placed = placed.only(good)
        written = self._write(placed)
        self._codes[placed.rows] = written
        self._end(placed.only(written == Code.OK))
        if not written.any():
            return rows[:0]
        lost = placed.only(written != Code.OK)
        self._revoke(lost, wait=wait_for_revoke and self._parts == 1)
        faults = [outcome_of(c) is Outcome.FAULT for c in written.tolist()]
        retry: NDArray[np.intp] = placed.rows[np.array(faults, bool)]
        return retry

    def _start(self, rows: NDArray[np.intp]) -> _Placed:
        request = pool_pb2.PutStartRequest(
            keys=self._keys[rows].tobytes(),
            sizes=self._object_bytes[rows].tobytes(),
            client=self._client,
            host_id=self._host_id,
            replicas=self._replicas,
            parts=self._parts,
            exclude=sorted(self._exclude),
            pin=self._pin,
            prefer=self._prefer,
            names=[self._names[row] for row in rows.tolist()] if self._names else (),
        )
        answer = self._rpc.call(self._rpc.stub.PutStart, request, self._deadline)
        count, replicas = len(rows), answer.replicas or 1
        try:
            return _Placed(
                rows=rows,
                status=column(answer.status, "<i2", count),
                token=column(answer.token, "<u8", count),
                segment=column(answer.segment, "<u8", count, replicas),
                offset=column(answer.offset, "<u8", count, replicas),
                segments=segments_of(answer.segments),
            )
        except ValueError as error:
            raise RpcFailed(Code.INTERNAL_ERROR, str(error)) from error

    def _write(self, placed: _Placed) -> NDArray[np.int16]:
        """Writes every replica; a row is good when all of its replicas are."""
        left_s = self._deadline - self._clock()
        deadline = self._deadline - min(_MOST_FOR_THE_END_S, left_s * _FOR_THE_END)
        silence_s = min(self._settings.replica_stall_s, left_s / 2)
        ops = self._ops(placed, silence_s)
        watch = _Watch(self._endpoints, self._exclude, self._sums)
        moved = np.array(self._engine.write(ops, deadline, watch=watch), np.int16)
        written = filled(len(placed.rows), Code.OK)
        for op in ops if moved.any() else ():
            row = op.rows % len(placed.rows)
            codes = moved[op.rows]
            bad = codes != Code.OK
            written[row[bad]] = codes[bad]
            for code in set(codes[bad].tolist()):
                watch.blame(op, code)
        written[~placed.named()] = Code.REPLICA_NOT_FOUND
        return written

    def _ops(self, placed: _Placed, silence_s: float) -> list[Op]:
        """An op per segment; row r of replica k is numbered `k * rows + r`."""
        count, replicas = placed.segment.shape
        index = np.arange(count)
        shift = self._part * (self._object_bytes[placed.rows] // self._parts)
        ops = []
        for number in placed.numbers():
            if number not in placed.segments:
                continue
            for replica in range(replicas):
                mine = index[placed.segment[:, replica] == number]
                if not len(mine):
                    continue
                segment = placed.segments[number]
                self._endpoints.asked(segment.name)
                op = Op(
                    segment=segment,
                    rows=mine + replica * count,
                    offsets=placed.offset[mine, replica] + shift[mine],
                    buffers=[self._views[row] for row in placed.rows[mine].tolist()],
                    silence_s=silence_s,
                )
                ops.append(op)
        return ops

    def _end(self, placed: _Placed, *, gives_up: bool = True) -> None:
        """Makes what was written readable; without an answer nobody knows."""
        if not len(placed.rows):
            return
        request = self._ending(placed, self._sums.all()[placed.rows].tobytes())
        stub = self._rpc.stub
        try:
            answer = self._rpc.call(stub.PutEnd, request, self._deadline)
            self._codes[placed.rows] = column(answer.status, "<i2", len(placed.rows))
        except RpcFailed as error:
            self._codes[placed.rows] = error.code
            self._endpoints.blame(MASTER, error.code)
            if gives_up:
                self._revoke(placed, wait=False)
        except ValueError:
            self._codes[placed.rows] = Code.INTERNAL_ERROR

    def _revoke(self, placed: _Placed, *, wait: bool) -> None:
        """Gives the places back. What does not arrive the master discards by time."""
        until = self._clock() + self._settings.revoke_s
        request = self._ending(placed, b"")
        stub = self._rpc.stub
        try:
            if wait:
                self._rpc.call(stub.PutRevoke, request, min(until, self._deadline))
            else:
                self._rpc.send(stub.PutRevoke, request, until)
        except RpcFailed as error:
            self._endpoints.blame(MASTER, error.code)

    def _ending(self, placed: _Placed, checksums: bytes) -> Any:
        return pool_pb2.PutEndRequest(
            keys=self._keys[placed.rows].tobytes(),
            token=placed.token.tobytes(),
            checksum=checksums,
            part=self._part,
            client=self._client,
        )


class _Placed:
    """Answer of PutStart: where each row goes."""

    __slots__ = ("offset", "rows", "segment", "segments", "status", "token")

    def __init__(
        self,
        *,
        rows: NDArray[np.intp],
        status: NDArray[np.int16],
        token: NDArray[np.uint64],
        segment: NDArray[np.uint64],
        offset: NDArray[np.uint64],
        segments: Mapping[int, SegmentInfo],
    ) -> None:
        self.rows = rows
        self.status = status
        self.token = token
        self.segment = segment
        self.offset = offset
        self.segments = segments

    def only(self, mask: NDArray[np.bool_]) -> _Placed:
        """Some of the rows."""
        return self if mask.all() else self.at(mask)

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> _Placed:
        """Some of the rows, by mask or by position."""
        return _Placed(
            rows=self.rows[chosen],
            status=self.status[chosen],
            token=self.token[chosen],
            segment=self.segment[chosen],
            offset=self.offset[chosen],
            segments=self.segments,
        )

    def numbers(self) -> list[int]:
        """Ids of all segments in order, 0 for a replica without a place."""
        return sorted(set(self.segment.ravel().tolist()))

    def named(self) -> NDArray[np.bool_]:
        """Rows with a place that we know how to reach."""
        if all(number in self.segments for number in self.numbers()):
            return np.ones(len(self.rows), bool)
        known = np.array([*self.segments, 0], np.uint64)
        all_known = np.all(np.isin(self.segment, known), axis=1)
        named: NDArray[np.bool_] = all_known & (self.segment[:, 0] != 0)
        return named


class _Sums:
    """Checksums of what is written, taken while the bytes are on their way."""

    def __init__(
        self,
        views: Sequence[memoryview],
        part: int,
        rows: NDArray[np.intp] | None = None,
    ) -> None:
        self._views = views
        self._part = part
        self._rows = range(len(views)) if rows is None else rows.tolist()
        self._sums = np.zeros(len(views), np.uint64)
        self._done = 0

    def some(self) -> bool:
        """A few more; False when that was all."""
        end = min(self._done + _SUMS_AT_ONCE, len(self._rows))
        for row in self._rows[self._done : end]:
            self._sums[row] = checksum_of(self._views[row], self._part)
        self._done = end
        return end < len(self._rows)

    def all(self) -> NDArray[np.uint64]:
        """The whole column."""
        while self.some():
            pass
        return self._sums


class _Watch:
    """Follows a write: what fails on a segment excludes it from the second try."""

    def __init__(self, endpoints: Endpoints, exclude: set[int], sums: _Sums) -> None:
        self._endpoints = endpoints
        self._exclude = exclude
        self._sums = sums

    def landed(self, op: Op, rows: Sequence[int]) -> None:
        """Nothing lands in a write."""

    def arrived(self, op: Op, rows: Sequence[int]) -> Mapping[int, int]:
        """Acknowledged rows are good."""
        return {}

    def idle(self) -> bool:
        """Takes some checksums."""
        return self._sums.some()

    def failed(self, op: Op, codes: Mapping[int, int]) -> Sequence[Op]:
        """No other place is known before the master gives one."""
        for code in set(codes.values()):
            self.blame(op, code)
        return ()

    def blame(self, op: Op, code: int) -> None:
        """Names the store and avoids its segment."""
        if code != Code.SEGMENT_NOT_FOUND:
            self._endpoints.blame(op.segment.name, code)
        self._exclude.add(op.segment.id)

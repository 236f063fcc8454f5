"""One batched get: lookup, parallel transfer, one alternative replica, verification."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from refimpl.client.plan import ReadPlan
from refimpl.client.results import MASTER, Endpoints, GetResult, filled
from refimpl.core.codes import Code
from refimpl.core.hashing import checksum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from refimpl.client.results import Lookup
    from refimpl.client.rpc import MasterRpc
    from refimpl.client.settings import ClientSettings
    from refimpl.failpoints import Failpoints
    from refimpl.transfer.cancel import Cancel
    from refimpl.transfer.engine import TransferEngine
    from refimpl.transfer.operation import Op


class Get:
    """The state of one get; it watches its own transfer.

    Checksums are taken of rows while others arrive, and compared when a request is
    complete: a replica that sent wrong bytes is an error like any other, and the next
    replica is asked. A caller that looked the batch up lately hands in what it found.
    """

    def __init__(
        self,
        *,
        rpc: MasterRpc,
        engine: TransferEngine,
        settings: ClientSettings,
        failpoints: Failpoints,
        clock: Callable[[], float],
        host_id: str,
        keys: bytes,
        views: Sequence[memoryview],
        deadline: float,
        avoid: Collection[str],
        cancel: Cancel | None,
        found: Lookup | None = None,
    ) -> None:
        self._rpc = rpc
        self._engine = engine
        self._settings = settings
        self._failpoints = failpoints
        self._clock = clock
        self._host_id = host_id
        self._keys = keys
        self._views = list(views)
        self._deadline = deadline
        self._avoid = avoid
        self._cancel = cancel
        self._found = found
        self._checks = not failpoints.enabled("defect.checksum_not_checked")
        self._endpoints = Endpoints()
        self._codes = filled(len(views), Code.INTERNAL_ERROR)
        self._sums = np.zeros(len(views), np.uint64)
        self._holder: dict[int, str] = {}
        self._heard: dict[str, float] = {}
        self._retried: set[int] = set()
        self._lookup_s = 0.0
        self._transfer_s = 0.0
        self._plan: ReadPlan | None = None
        self._started_at = clock()

    def run(self) -> GetResult:
        """Everything, within the deadline."""
        everything = np.arange(len(self._views))
        self._attempt(everything)
        # A store that was restarted is another store: its old locations are void, and
        # the master may know better by now. Once (Mooncake#3737).
        stale = np.flatnonzero(self._codes == Code.SEGMENT_NOT_FOUND)
        if len(stale):
            self._refresh(stale)
        return GetResult(
            codes=self._codes,
            endpoints=self._endpoints.found,
            lookup_s=self._lookup_s,
            transfer_s=self._transfer_s,
            asked=tuple(name for name in self._endpoints.found if name != MASTER),
            heard_s=self._heard,
        )

    def _attempt(self, rows: NDArray[np.intp]) -> None:
        """Looks rows up and reads what is there."""
        self._retried.clear()
        started = self._clock()
        lookup = self._look_up(rows)
        located = self._clock()
        self._lookup_s += located - started
        self._codes[rows] = lookup.status[rows]
        if lookup.code != Code.OK:
            if not self._was_cancelled:
                self._endpoints.blame(MASTER, lookup.code)
            return
        found = rows[lookup.status[rows] == Code.OK]
        self._codes[found] = self._fitting(lookup, found)
        found = found[self._codes[found] == Code.OK]
        if len(found):
            self._transfer(lookup, found)
        self._transfer_s += self._clock() - located

    def _refresh(self, rows: NDArray[np.intp]) -> None:
        """Asks again for rows whose store is another one now.

        When the master still points there it has not noticed: the bytes are gone, and
        that is a timely answer of a healthy store, no fault.
        """
        self._attempt(rows)
        still = rows[self._codes[rows] == Code.SEGMENT_NOT_FOUND]
        self._codes[still] = Code.REPLICA_IS_GONE

    def _look_up(self, rows: NDArray[np.intp]) -> Lookup:
        """A lookup of these rows only, in columns of the whole batch."""
        if self._found is not None:
            found, self._found = self._found, None
            return found
        if len(rows) == len(self._views):
            return self._rpc.lookup(self._keys, self._deadline, cancel=self._cancel)
        keys = np.frombuffer(self._keys, np.uint64).reshape(-1, 4)[rows].tobytes()
        part = self._rpc.lookup(keys, self._deadline, cancel=self._cancel)
        return _spread(part, rows, len(self._views))

    def _fitting(self, lookup: Lookup, rows: NDArray[np.intp]) -> NDArray[np.int16]:
        """Cuts buffers to the objects; one that is too small is BUFFER_OVERFLOW."""
        codes = filled(len(rows), Code.OK)
        sizes = lookup.size[rows].tolist()
        for i, (row, size) in enumerate(zip(rows.tolist(), sizes, strict=True)):
            view = self._views[row]
            if len(view) < size:
                codes[i] = Code.BUFFER_OVERFLOW
            elif len(view) > size:
                self._views[row] = view[:size]
        return codes

    def _transfer(self, lookup: Lookup, rows: NDArray[np.intp]) -> None:
        now = self._clock()
        self._plan = ReadPlan(
            lookup,
            self._views,
            rails=self._engine.rails,
            host_id=self._host_id,
            avoid=self._avoid,
            now=now,
        )
        silence_s = min(self._settings.replica_stall_s, (self._deadline - now) / 2)
        ops, codes = self._plan.first(rows, silence_s)
        code = self._failpoints.hit("client.before_transfer")
        if code is not None and code < 0:
            self._codes[rows] = code
            return
        for op in ops:
            self._ask(op)
        moved = self._engine.read(ops, self._deadline, self._cancel, watch=self)
        for row in rows.tolist():
            self._codes[row] = codes[row] if row in codes else moved[row]
        self._blame_unfinished(rows)
        self._verify_lease(lookup, rows)

    def _verify_lease(self, lookup: Lookup, rows: NDArray[np.intp]) -> None:
        """The one check that every path passes: late bytes may be somebody else's."""
        if self._clock() <= lookup.lease_until:
            return
        if self._failpoints.enabled("defect.lease_not_checked"):
            return
        late = rows[self._codes[rows] == Code.OK]
        self._codes[late] = Code.LEASE_EXPIRED

    # Watching the transfer.

    def landed(self, op: Op, rows: Sequence[int]) -> None:
        """Takes checksums while the bytes are warm and others arrive."""
        self._heard[op.segment.name] = self._clock() - self._started_at
        if not self._checks:
            return
        assert self._plan is not None
        parts, views, sums = self._plan.lookup.parts, self._views, self._sums
        for row in rows:
            sums[row] = object_checksum(views[row], int(parts[row]))

    def arrived(self, op: Op, rows: Sequence[int]) -> Mapping[int, int]:
        """Compares checksums."""
        if not self._checks:
            return {}
        assert self._plan is not None
        index = np.array(rows)
        wrong = self._sums[index] != self._plan.lookup.checksum[index]
        if not wrong.any():
            return {}
        return dict.fromkeys(index[wrong].tolist(), int(Code.CHECKSUM_MISMATCH))

    def idle(self) -> bool:
        """Nothing: checksums are taken as rows land."""
        return False

    def failed(self, op: Op, codes: Mapping[int, int]) -> Sequence[Op]:
        """Names the store and offers the next replica, once a key."""
        for code in set(codes.values()) - {Code.SEGMENT_NOT_FOUND}:
            self._endpoints.blame(op.segment.name, code)
        rows = [row for row in codes if row not in self._retried]
        self._retried.update(rows)
        assert self._plan is not None
        more = self._plan.other(rows, op.segment.id)
        for other in more:
            self._ask(other)
        return more

    def _ask(self, op: Op) -> None:
        self._endpoints.asked(op.segment.name)
        self._holder.update(dict.fromkeys(op.rows.tolist(), op.segment.name))

    def _blame_unfinished(self, rows: NDArray[np.intp]) -> None:
        """Names stores whose rows were missing when the call ended.

        A caller that changed its mind early is no fault of a store that was at work;
        one that had not sent a byte for a rail's patience is named all the same.
        """
        missing = rows[self._codes[rows] == Code.RPC_TIMEOUT].tolist()
        names = {self._holder[row] for row in missing if row in self._holder}
        if self._was_cancelled:
            patience = self._settings.transfer.rail_stall_s
            long = self._clock() - self._started_at >= patience
            names = {n for n in names if long and n not in self._heard}
        for name in names:
            self._endpoints.blame(name, Code.RPC_TIMEOUT)

    @property
    def _was_cancelled(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()


def object_checksum(view: memoryview, parts: int) -> int:
    """XOR of the checksums of the parts of a whole object."""
    if parts <= 1:
        return checksum_of(view)
    step = len(view) // parts
    total = 0
    for part in range(parts):
        total ^= checksum_of(view[part * step : (part + 1) * step], part)
    return total


def _spread(part: Lookup, rows: NDArray[np.intp], count: int) -> Lookup:
    """Columns of some rows in columns of all; the others are not to be looked at."""

    def wide(column: NDArray[np.generic]) -> NDArray[np.generic]:
        out = np.zeros((count, *column.shape[1:]), column.dtype)
        out[rows] = column
        return out

    names = ("status", "segment", "offset", "size", "checksum", "parts")
    columns = {name: wide(getattr(part, name)) for name in names}
    return dataclasses.replace(part, **columns)  # type: ignore[arg-type]

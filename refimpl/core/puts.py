"""Writing objects: start, end, revoke, in batches.

Each start of a key gets a token of its own, and only that token ends or revokes it: a
late PutEnd of an earlier attempt has no effect (Mooncake#3030). Ranks that write one
object together join its put and share the token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from refimpl.core.codes import Code
from refimpl.core.index import mixed
from refimpl.core.objects import (
    COMPLETE,
    PIN_HARD,
    PIN_NONE,
    PIN_SOFT,
    PROCESSING,
    REPLICAS_MAX,
    ObjectTable,
    Slots,
)
from refimpl.core.placement import Batch, Placement
from refimpl.core.pool_answers import Codes, Started, Words

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from refimpl.core.discards import Discards
    from refimpl.core.reclaim import Reclaim
    from refimpl.core.segments import SegmentTable

PARTS_MAX: Final = 64
"""Ranks that may write one object together."""
_PINS: Final = {"": PIN_NONE, "soft": PIN_SOFT, "hard": PIN_HARD}

Rows = NDArray[np.intp]
"""Rows of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRequest:
    """A batch of objects to start. `keys` are (n, 4) words."""

    keys: Words
    sizes: NDArray[np.uint32]
    client: int
    host_id: str
    replicas: int
    parts: int
    exclude: Collection[int]
    pin: str
    prefer: Sequence[int] = ()
    names: Sequence[str] = ()
    """None, or one a key."""

    def codes(self) -> Codes:
        """OK, or INVALID_PARAMS where the request makes no sense."""
        status = np.zeros(len(self.keys), dtype=np.int16)
        replicas_ok = 1 <= self.replicas <= REPLICAS_MAX
        if not (replicas_ok and 1 <= self.parts <= PARTS_MAX and self.pin in _PINS):
            status[:] = Code.INVALID_PARAMS
            return status
        bad = (self.sizes == 0) | (self.sizes % np.uint32(self.parts) != 0)
        status[bad] = Code.INVALID_PARAMS
        return status


class Puts:
    """The write path of the pool.

    Args:
        objects, segments, discards: the pool's state.
        reclaim: takes what is dropped.
        placement: finds room.
        discard_s: after it a put under way may be taken over.
        first_token: random, so that a token of an earlier master fits no put of this.
    """

    def __init__(
        self,
        objects: ObjectTable,
        segments: SegmentTable,
        discards: Discards,
        reclaim: Reclaim,
        placement: Placement,
        *,
        discard_s: float,
        first_token: int,
    ) -> None:
        self._objects = objects
        self._segments = segments
        self._discards = discards
        self._reclaim = reclaim
        self._placement = placement
        self._discard_s = discard_s
        self._next_token = first_token
        self.wants_eviction = False
        """Objects were refused that would fit if others went; the pool resets it."""
        self.refused = 0
        """Objects that found no room."""
        self.partial = 0
        """Objects that got fewer replicas than they asked for."""

    def start(self, request: PutRequest, now: float) -> Started:
        """See `Pool.put_start`."""
        status = request.codes()
        answer = _Starting(status, max(1, min(request.replicas, REPLICAS_MAX)))
        good = np.flatnonzero(status == Code.OK)
        first, later = _first_of_each(request.keys, good)
        absent = self._settle_existing(request, first, now, answer)
        self._start_absent(request, self._bounded(absent, answer), now, answer)
        for row, of in later:
            same_size = request.sizes[row] == request.sizes[of]
            answer.repeat(row, of, join=request.parts > 1 and bool(same_size))
        return answer.started()

    def end(
        self,
        keys: Words,
        tokens: Words,
        checksums: Words,
        now: float,
        *,
        client: int,
        part: int,
        any_token: bool = False,
    ) -> Codes:
        """See `Pool.put_end`."""
        table = self._objects
        slots, status = self._owned(keys, tokens, client, any_token)
        wrong = (table.parts.take(slots) <= part) | (part < 0)
        status[(status == Code.OK) & wrong] = Code.INVALID_PARAMS
        gone = (status == Code.OK) & ~self._alive(slots)
        status[gone] = Code.REPLICA_IS_GONE
        self._reclaim.drop_now(np.unique(slots[gone]))
        under_way = (status == Code.OK) & (table.state.take(slots) == PROCESSING)
        self._end_part(slots, checksums, np.flatnonzero(under_way), part, now)
        return status

    def revoke(
        self, keys: Words, tokens: Words, *, client: int, any_token: bool = False
    ) -> Codes:
        """See `Pool.put_revoke`."""
        table = self._objects
        slots, status = self._owned(keys, tokens, client, any_token)
        complete = table.state.take(slots) == COMPLETE
        status[(status == Code.OK) & complete] = Code.INVALID_WRITE
        chosen = only_first(slots, status)
        shared = table.parts.take(chosen) > 1
        self._reclaim.discard(chosen[shared])
        self._reclaim.drop_now(chosen[~shared])
        return status

    def _settle_existing(
        self,
        request: PutRequest,
        rows: Rows,
        now: float,
        answer: _Starting,
    ) -> Rows:
        """Answers rows whose key exists; returns the rows that may start."""
        table, parts = self._objects, request.parts
        slots = table.index.find(request.keys[rows]).astype(np.intp)
        found = slots >= 0
        if not found.any():
            return rows
        old, at = slots[found], rows[found]
        alive = self._alive(old)
        processing = table.state.take(old) == PROCESSING
        deadline = table.put_start.take(old) + self._discard_s
        overdue = processing & (deadline < now)
        self._reclaim.drop_now(old[~alive])
        self._reclaim.discard(old[alive & overdue])
        kept = alive & ~overdue
        joins = kept & processing & (parts > 1) & (table.parts.take(old) == parts)
        joins &= table.size[old] == request.sizes[at]
        answer.status[at[kept]] = Code.OBJECT_ALREADY_EXISTS
        self._answer_place(answer, at[joins], old[joins])
        return np.concatenate([rows[~found], at[~kept]])

    def _bounded(self, rows: Rows, answer: _Starting) -> Rows:
        """Refuses what the table has no slot for; buffers held back count as well."""
        table = self._objects
        room = max(0, table.capacity - table.count - self._discards.buffers)
        if len(rows) <= room:
            return rows
        rows = np.sort(rows)
        self._refuse(answer, rows[room:])
        self.wants_eviction = True
        return rows[:room]

    def _start_absent(
        self, request: PutRequest, rows: Rows, now: float, answer: _Starting
    ) -> None:
        if not len(rows):
            return
        batch = Batch(
            keys=request.keys[rows],
            sizes=request.sizes[rows],
            host_id=request.host_id,
            replicas=request.replicas,
            exclude=request.exclude,
            prefer=request.prefer,
        )
        placed = self._placement.place(batch, now)
        got = placed.row[:, 0] != 0
        self._refuse(answer, rows[~got])
        self.wants_eviction |= self._placement.could_hold(
            batch.sizes[~got], request.exclude
        )
        self.partial += int(np.count_nonzero(got & ~placed.row.all(axis=1)))
        slots = self._objects.claim(batch.keys[got])
        self._write(slots, request, now)
        self._objects.size[slots] = batch.sizes[got]
        self._objects.offset[slots, : request.replicas] = placed.offset[got]
        self._objects.segment[slots, : request.replicas] = placed.row[got]
        if request.names:
            named = [request.names[row] for row in rows[got].tolist()]
            self._objects.names.keep(slots, named)
        self._answer_place(answer, rows[got], slots)

    def _write(self, slots: Slots, request: PutRequest, now: float) -> None:
        """Fills the columns of new objects with what is equal for the whole batch."""
        table = self._objects
        table.state[slots] = PROCESSING
        table.checksum[slots] = 0
        table.parts[slots] = request.parts
        table.part_mask[slots] = 0
        table.token[slots] = self._tokens(len(slots))
        table.writer[slots] = request.client
        table.put_start[slots] = now
        table.lease[slots] = 0.0
        table.pin[slots] = _PINS[request.pin]
        self._reclaim.put_started(now)

    def _refuse(self, answer: _Starting, rows: Rows) -> None:
        answer.status[rows] = Code.NO_AVAILABLE_HANDLE
        self.refused += len(rows)

    def _tokens(self, count: int) -> Words:
        first = self._next_token
        self._next_token += count
        return np.arange(first, first + count, dtype=np.uint64)

    def _alive(self, slots: Slots) -> NDArray[np.bool_]:
        """Whether any replica of these objects can still be written and read."""
        segment_ids = self._segments.ids.take(self._objects.segment[slots])
        alive: NDArray[np.bool_] = np.bitwise_or.reduce(segment_ids, axis=1) != 0
        return alive

    def _answer_place(self, answer: _Starting, rows: Rows, slots: Slots) -> None:
        table, replicas = self._objects, answer.segment.shape[1]
        answer.status[rows] = Code.OK
        answer.token[rows] = table.token.take(slots)
        answer.segment[rows] = self._segments.ids.take(table.segment[slots, :replicas])
        answer.offset[rows] = table.offset[slots, :replicas]

    def _owned(
        self, keys: Words, tokens: Words, client: int, any_token: bool
    ) -> tuple[Slots, Codes]:
        """Slots and codes of puts that this client may end or revoke.

        Ranks that write one object together share its token, so for them the token
        alone is proof.
        """
        table = self._objects
        slots = table.index.find(keys).astype(np.intp)
        status = np.zeros(len(slots), dtype=np.int16)
        if not any_token:
            status[table.token.take(slots) != tokens] = Code.INVALID_WRITE
            foreign = table.writer.take(slots) != np.uint64(client)
            status[foreign & (table.parts.take(slots) <= 1)] = Code.ILLEGAL_CLIENT
        status[slots < 0] = Code.OBJECT_NOT_FOUND
        return slots, status

    def _end_part(
        self,
        slots: Slots,
        checksums: Words,
        rows: Rows,
        part: int,
        now: float,
    ) -> None:
        if not rows.size:
            return
        table, bit = self._objects, np.uint64(1 << part)
        rows = rows[(table.part_mask.take(slots[rows]) & bit) == 0]
        slots, position = np.unique(slots[rows], return_index=True)
        table.checksum[slots] ^= checksums[rows[position]]
        table.part_mask[slots] |= bit
        missing = _mask_of(table.parts.take(slots)) & ~table.part_mask.take(slots)
        done = slots[missing == 0]
        table.state[done] = COMPLETE
        table.lease[done] = now
        table.complete += len(done)


class _Starting:
    """The answer of a `put_start` while it is made."""

    def __init__(self, status: Codes, replicas: int) -> None:
        n = len(status)
        self.status = status
        self.token = np.zeros(n, dtype=np.uint64)
        self.segment = np.zeros((n, replicas), dtype=np.uint64)
        self.offset = np.zeros((n, replicas), dtype=np.uint64)

    def repeat(self, row: int, of: int, *, join: bool) -> None:
        """Answers the second row of one key as a call after the first one would."""
        if self.status[of] == Code.OK and not join:
            self.status[row] = Code.OBJECT_ALREADY_EXISTS
            return
        for column in (self.status, self.token, self.segment, self.offset):
            column[row] = column[of]

    def started(self) -> Started:
        return Started(
            status=self.status,
            token=self.token,
            segment=self.segment,
            offset=self.offset,
        )


def _mask_of(parts: NDArray[np.uint8]) -> Words:
    """Bit mask with one bit for each part, 1 to 64 of them."""
    return np.uint64(2**64 - 1) >> (np.uint64(PARTS_MAX) - parts.astype(np.uint64))


def _first_of_each(keys: Words, rows: Rows) -> tuple[Rows, list[tuple[int, int]]]:
    """Rows of distinct keys, and (row, row of its first occurrence) of the others."""
    words = mixed(keys[rows])
    words.sort()
    if not (words[1:] == words[:-1]).any():
        return rows, []
    first: dict[bytes, int] = {}
    later = []
    for row in rows.tolist():
        of = first.setdefault(keys[row].tobytes(), row)
        if of != row:
            later.append((row, of))
    return np.array(sorted(first.values()), dtype=np.intp), later


def only_first(slots: Slots, status: Codes) -> Slots:
    """Slots of the OK rows; the second row of a key finds it gone already."""
    rows = np.flatnonzero(status == Code.OK)
    chosen, position = np.unique(slots[rows], return_index=True)
    status[np.delete(rows, position)] = Code.OBJECT_NOT_FOUND
    return chosen

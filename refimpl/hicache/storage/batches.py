"""Rows of one call to Mooncake: cut by store and lane, carried, and what came of them.

Bytes go from stores into the memory of lanes and from there, by the caller's own
thread, into its buffers, and the other way; never directly. Behind the bytes of every
object stands a guard of them and of its name: a store that came back with other memory
answers good codes for bytes that are not the object's, and Mooncake checks none.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Protocol

import numpy as np

from refimpl.core.codes import Code, Outcome, outcome_of
from refimpl.core.hashing import checksum_of_pieces
from refimpl.hicache.storage.base import StorageResult
from refimpl.hicache.storage.calls import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from refimpl.hicache.storage.lanes import Job, Lane
    from refimpl.native.client import Native


GUARD_BYTES = 8


def guard_of(name: str, data: memoryview) -> bytes:
    """What must stand behind the bytes of the object of that name."""
    words = checksum_of_pieces([name.encode(), data])
    return words.to_bytes(GUARD_BYTES, "little")


class Owner(Protocol):
    """What a batch asks of the backend that it belongs to."""

    @property
    def lane_bytes(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    def segment_of(self, endpoint: str) -> str: ...
    def note_served(self, endpoint: str, name: str, size: int) -> None: ...


class Batch:
    """Rows of one call, cut into tasks by endpoint and lane, and what came of them."""

    def __init__(
        self,
        owner: Owner,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        began: float,
    ) -> None:
        self.names = names
        self.codes: NDArray[np.int16] = np.full(len(names), Code.RPC_FAIL, np.int16)
        self._owner = owner
        self._buffers = buffers
        self._began = began
        self._endpoints: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._settled = np.zeros(len(names), np.bool_)

    def tasks(
        self, client: Native, endpoint: str, rows: Sequence[int]
    ) -> list[Task[Sequence[int]]]:
        """Tasks for the rows of one endpoint, each no larger than a lane."""
        most = self._owner.lane_bytes
        tasks: list[Task[Sequence[int]]] = []
        chosen: list[int] = []
        used = 0
        for row in rows:
            size = len(self._buffers[row]) + GUARD_BYTES
            if self._settled[row]:
                continue
            if size > most:
                self._settle(row, Code.BUFFER_OVERFLOW)
                continue
            if used + size > most:
                tasks.append(self._task(client, endpoint, chosen))
                chosen, used = [], 0
            chosen.append(row)
            used += size
        if chosen:
            tasks.append(self._task(client, endpoint, chosen))
        return tasks

    def result(self, codes: NDArray[np.int16]) -> StorageResult:
        """Codes with the part of each store in them; who has no name is not blamed."""
        endpoints = {name: code for name, code in self._endpoints.items() if name}
        return StorageResult(
            codes=codes,
            endpoints=endpoints,
            asked=tuple(endpoints),
            heard_s={name: at for name, at in self._heard.items() if name},
        )

    def _task(
        self, client: Native, endpoint: str, rows: list[int]
    ) -> Task[Sequence[int]]:
        raise NotImplementedError

    def _settle(self, row: int, code: int) -> None:
        self.codes[row] = code
        self._settled[row] = True

    def _answered(self, endpoint: str, rows: Sequence[int], code: int) -> None:
        """One code for all rows of a task that has no better answer."""
        for row in rows:
            self._settle(row, code)
        self._blame(endpoint, [code])

    def _blame(self, endpoint: str, codes: Sequence[int]) -> None:
        faults = [c for c in codes if outcome_of(c) is Outcome.FAULT]
        worst = min(faults, default=0)
        self._endpoints[endpoint] = min(self._endpoints.get(endpoint, 0), worst)

    def _came(self, endpoint: str, job: Job[Sequence[int]]) -> None:
        at_s = job.ended - self._began
        self._heard[endpoint] = max(self._heard.get(endpoint, 0.0), at_s)

    def _slices(self, lane: Lane, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Start and size in a lane's memory of every row of a task, with its guard."""
        sizes = [len(self._buffers[row]) + GUARD_BYTES for row in rows]
        starts = itertools.accumulate(sizes, initial=0)
        return list(zip(starts, sizes, strict=False))


class Read(Batch):
    """From stores into lanes, and from lanes into the caller's buffers."""

    def skip(self, where: Sequence[str], avoid: frozenset[str]) -> None:
        """Rows on avoided stores are not asked for."""
        for row, endpoint in enumerate(where):
            if endpoint in avoid:
                self._settle(row, Code.REPLICA_NOT_FOUND)

    def _task(
        self, client: Native, endpoint: str, rows: list[int]
    ) -> Task[Sequence[int]]:
        names = [self.names[row] for row in rows]

        def work(lane: Lane) -> Sequence[int]:
            cut = self._slices(lane, rows)
            addresses = [lane.address + start for start, _ in cut]
            return client.read(names, addresses, [size for _, size in cut])

        def take(job: Job[Sequence[int]]) -> None:
            found = job.result or ()
            if len(found) != len(rows):
                self._answered(endpoint, rows, Code.INTERNAL_ERROR)
                return
            self._came(endpoint, job)
            self._copy(endpoint, job.lane, rows, found)

        def fail(code: int) -> None:
            self._answered(endpoint, rows, code)

        return Task(endpoint=endpoint, work=work, take=take, fail=fail)

    def _copy(
        self, endpoint: str, lane: Lane, rows: Sequence[int], found: Sequence[int]
    ) -> None:
        codes = []
        for row, (start, size), got in zip(
            rows, self._slices(lane, rows), found, strict=True
        ):
            code = int(got) if got < 0 else Code.OK
            if code == Code.OK and got != size:
                code = Code.TRANSFER_FAIL
            if code == Code.OK:
                code = self._give(row, lane.memory[start : start + size].data)
            if code == Code.OK:
                data = len(self._buffers[row])
                self._owner.note_served(endpoint, self.names[row], data)
            self._settle(row, code)
            codes.append(code)
        self._blame(endpoint, codes)

    def _give(self, row: int, found: memoryview) -> int:
        """Copies to the caller and looks at the copy: nothing can change that now."""
        buffer = self._buffers[row]
        buffer[:] = found[:-GUARD_BYTES]
        same = guard_of(self.names[row], buffer) == found[-GUARD_BYTES:]
        return Code.OK if same else Code.CHECKSUM_MISMATCH


class Write(Batch):
    """From the caller's buffers into lanes, and from lanes to stores."""

    def only_missing(self) -> None:
        """After `exist`: what is there already, or cannot be told, is not written."""
        for row, code in enumerate(self.codes.tolist()):
            if code == Code.OK:
                self._settle(row, Code.OBJECT_ALREADY_EXISTS)
            elif code != Code.OBJECT_NOT_FOUND:
                self._settle(row, code)
            else:  # to be written: no answer to that is a fault, and no miss
                self.codes[row] = Code.RPC_FAIL

    def _task(
        self, client: Native, endpoint: str, rows: list[int]
    ) -> Task[Sequence[int]]:
        names = [self.names[row] for row in rows]
        segment = self._owner.segment_of(endpoint)
        replicas = self._owner.replicas

        def fill(lane: Lane) -> None:
            for row, (start, size) in zip(rows, self._slices(lane, rows), strict=True):
                data = self._buffers[row]
                guard = guard_of(self.names[row], data)
                at = start + size - GUARD_BYTES
                lane.memory[start:at] = np.frombuffer(data, np.uint8)
                lane.memory[at : start + size] = np.frombuffer(guard, np.uint8)

        def work(lane: Lane) -> Sequence[int]:
            cut = self._slices(lane, rows)
            addresses = [lane.address + start for start, _ in cut]
            sizes = [size for _, size in cut]
            return client.write(
                names, addresses, sizes, replicas=replicas, segment=segment
            )

        def take(job: Job[Sequence[int]]) -> None:
            found = job.result or ()
            if len(found) != len(rows):
                self._answered(endpoint, rows, Code.INTERNAL_ERROR)
                return
            self._came(endpoint, job)
            for row, code in zip(rows, found, strict=True):
                self._settle(row, int(code))
            self._blame(endpoint, [int(code) for code in found])

        def fail(code: int) -> None:
            self._answered(endpoint, rows, code)

        return Task(endpoint=endpoint, work=work, take=take, fail=fail, fill=fill)

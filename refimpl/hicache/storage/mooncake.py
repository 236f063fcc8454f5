"""Mooncake as a HiCache backend, with deadlines that its own client does not keep.

Native calls run in lanes (`lanes.py`): bounded threads with staging memory of their
own, so that a call that hangs for a minute costs the request its deadline and no page,
and its late bytes land nowhere. A batch is cut by store, since Mooncake answers a batch
when its slowest key does: healthy keys of a mixed batch are used, and the store that
hangs is known by name.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from refimpl.core.codes import Code, Outcome, outcome_of
from refimpl.hicache.request import split_keys
from refimpl.hicache.storage.base import StorageResult
from refimpl.hicache.storage.batches import Read, Write
from refimpl.hicache.storage.calls import Task, run_tasks
from refimpl.hicache.storage.lanes import Lane, Lanes
from refimpl.hicache.storage.segments import Segments, fetch_from
from refimpl.native.client import NotConnected, code_of_exist

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from refimpl.hicache.storage.lanes import Job
    from refimpl.native.client import Native, Opener
    from refimpl.transfer.cancel import Cancel

_LOG = logging.getLogger(__name__)
MASTER = "master"
"""What calls that only ask the master count as; no store."""
_ANYWHERE = ""
_CLOSE_S = 2.0
_DOUBLINGS = 5
"""Of the pause between tries, where what cannot be opened is broken, not away."""
_NOT_PLACED = Code.NO_AVAILABLE_HANDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeSettings:
    """Sizes are bytes, durations seconds of the machine: none is scaled.

    `admin` is HOST:PORT of the master's admin HTTP; without it Mooncake chooses the
    place of every put, and a put that hangs names nobody. The largest object is
    `lane_bytes` less its guard of 8 bytes (`batches.py`).
    """

    admin: str = ""
    lanes: int = 16
    lane_bytes: int = 4 << 20
    replicas: int = 1
    ranks: int = 1
    host: str = ""
    canary_bytes: int = 4096
    retry_s: float = 0.5
    """Pause between two tries to reach the master for the first time."""


def object_name(key: bytes, part: int = 0, parts: int = 1) -> str:
    """The name in Mooncake of one key, or of one rank's part of it."""
    return key.hex() if parts == 1 else f"{key.hex()}/{part}.{parts}"


class MooncakeStorage:
    """Thread-safe. Serves faults until the master was reached for the first time.

    Args:
        opener: opens the native client; blocks, raises `NotConnected`.
        settings: see there.
        clock: monotonic seconds.
        segments: what knows the segments; by default asked of `settings.admin`.
    """

    def __init__(
        self,
        opener: Opener,
        settings: MooncakeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        segments: Segments | None = None,
    ) -> None:
        self.settings = settings = settings or MooncakeSettings()
        self._clock = clock
        self._opener = opener
        self._lanes = Lanes(settings.lanes, settings.lane_bytes, clock, self._make_way)
        if segments is None and settings.admin:
            segments = Segments(fetch_from(settings.admin), clock=clock)
        self._segments = segments
        self._client: Native | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seen: dict[str, tuple[str, int]] = {}
        self._nonce = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._connector = threading.Thread(
            target=self._connect, name="mooncake-connect", daemon=True
        )
        self._connector.start()

    # --- the backend ---

    def exists(self, keys: bytes, *, timeout_s: float) -> NDArray[np.int16]:
        """Codes. As upstream's it grants leases (Mooncake#2187), and calls objects of
        a dead store "there" until the master has noticed."""
        until = self._clock() + timeout_s
        names = self._names(keys)
        codes = np.full(len(names), Code.RPC_FAIL, np.int16)
        self._ask_master(names, codes, until, lambda client: client.exist(names))
        return self._whole(codes)

    def get(
        self,
        keys: bytes,
        buffers: Sequence[memoryview],
        *,
        timeout_s: float,
        avoid: frozenset[str] = frozenset(),
        cancel: Cancel | None = None,
    ) -> StorageResult:
        """One read a store, all at one time; the buffers get what came in time."""
        began = self._clock()
        read = Read(self, self._names(keys), self._parts_of(buffers), began)
        until = began + timeout_s
        if (client := self._client) is not None:
            where = self._places(client, read.names, until, cancel)
            if isinstance(where, int):
                read.codes[:] = where
            else:
                read.skip(where, avoid)
                tasks = [
                    t for e, rows in _by(where) for t in read.tasks(client, e, rows)
                ]
                self._run(tasks, until, cancel)
        self._count("get", read.codes)
        return read.result(self._whole(read.codes))

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
        """One write a store; a part of an object is an object of its own."""
        del object_bytes
        until = self._clock() + timeout_s
        names = [object_name(key, part, parts) for key in split_keys(keys)]
        write = Write(self, names, list(buffers), self._clock())
        if (client := self._client) is not None:
            self._ask_master(names, write.codes, until, lambda c: c.exist(names))
            write.only_missing()
            where = self._targets(names, avoid)
            tasks = [t for e, rows in _by(where) for t in write.tasks(client, e, rows)]
            self._run(tasks, until, None)
        self._count("put", write.codes)
        return write.result(write.codes)

    def canary(self, *, timeout_s: float, avoid: frozenset[str]) -> StorageResult:
        """Writes, reads back, compares and removes an object nobody else knows."""
        number = next(self._numbers)
        known = self._known()
        if known is None:
            return self._canary(_ANYWHERE, number, timeout_s)
        left = sorted(known.keys() - avoid)
        if not left:
            return StorageResult(codes=np.full(1, _NOT_PLACED, np.int16))
        return self._canary(left[number % len(left)], number, timeout_s)

    def probe(self, endpoint: str, *, timeout_s: float) -> int:
        """A canary on one store; a read of what was there where no place is known."""
        known = self._known()
        if known is None:
            return self._reread(endpoint, timeout_s)
        if endpoint not in known:
            return int(Code.SEGMENT_NOT_FOUND)
        result = self._canary(endpoint, next(self._numbers), timeout_s)
        return int(result.codes[0])

    def stats(self) -> dict[str, Any]:
        """Counters, lanes and segments, JSON-able."""
        known = self._known()
        with self._lock:
            counts = dict(sorted(self._counts.items()))
        return {
            "counts": counts,
            "connected": self._client is not None,
            "lanes": self._lanes.state(),
            "segments": None if known is None else dict(known),
        }

    def close(self) -> None:
        """Ends the client, with the calls that hang in it, and the threads."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            client, self._client = self._client, None
        if self._segments is not None:
            self._segments.close()
        if client is not None:
            client.close()
        self._connector.join(_CLOSE_S)
        self._lanes.close(_CLOSE_S)

    # --- the client ---

    def _connect(self) -> None:
        """Whenever there is no client: the engine serves without it meanwhile."""
        told, broken = "", 0
        while not self._closed.is_set():
            try:
                code = self._opened()
            except NotConnected as error:
                code = error.code
            except Exception as error:  # else the engine would be without L3 for ever
                code = int(Code.INTERNAL_ERROR)
                if str(error) != told and not self._closed.is_set():
                    told = str(error)
                    _LOG.exception("Mooncake's client could not be opened")
            with self._lock:
                self._client = None
                if not self._closed.is_set():
                    self._counts[f"connect_{code}"] += 1
            broken = broken + 1 if code == Code.INTERNAL_ERROR else 0
            self._closed.wait(self.settings.retry_s * 2 ** min(broken, _DOUBLINGS))

    def _opened(self) -> int:
        """Opens a client and stays until it is gone; the code why it is not there."""
        client = self._opener()
        try:
            code = client.register(self._lanes.memory)
            if not code and self._takes(client):
                client.wait()
                code = int(Code.RPC_FAIL)
        finally:
            client.close()
        return code

    def _takes(self, client: Native) -> bool:
        """Whether it is ours to close from now on."""
        with self._lock:
            if not self._closed.is_set():
                self._client = client
            return not self._closed.is_set()

    def _make_way(self, thread: int) -> None:
        client = self._client
        if client is not None:
            client.make_way(thread)

    # --- for batches ---

    @property
    def lane_bytes(self) -> int:
        """What one task can carry."""
        return self.settings.lane_bytes

    @property
    def replicas(self) -> int:
        """Copies of every object written."""
        return self.settings.replicas

    # --- calls ---

    def _run(
        self, tasks: Sequence[Task[Any]], until: float, cancel: Cancel | None
    ) -> None:
        run_tasks(self._lanes, tasks, until=until, clock=self._clock, cancel=cancel)

    def _ask_master(
        self,
        names: Sequence[str],
        codes: NDArray[np.int16],
        until: float,
        ask: Callable[[Native], Sequence[int]],
    ) -> None:
        """Writes what the master says of each name, or why it does not, to `codes`."""
        client = self._client
        if client is None or not names:
            return

        def take(job: Job[Sequence[int]]) -> None:
            found = job.result or ()
            if len(found) == len(names):
                codes[:] = [code_of_exist(one) for one in found]
            else:
                codes[:] = Code.INTERNAL_ERROR

        def fail(code: int) -> None:
            codes[:] = code

        task = Task(
            endpoint=MASTER, work=lambda _lane: ask(client), take=take, fail=fail
        )
        self._run([task], until, None)

    def _places(
        self,
        client: Native,
        names: Sequence[str],
        until: float,
        cancel: Cancel | None,
    ) -> list[str] | int:
        """Where each name is read from, or the code why the master did not say."""
        found: list[str] = []
        codes: list[int] = []

        def take(job: Job[Sequence[str]]) -> None:
            found.extend(job.result or ())

        task = Task(
            endpoint=MASTER,
            work=lambda _lane: client.places(names),
            take=take,
            fail=codes.append,
        )
        self._run([task], until, cancel)
        if codes:
            return codes[0]
        return found if len(found) == len(names) else int(Code.INTERNAL_ERROR)

    def _known(self) -> Mapping[str, str] | None:
        return self._segments.known() if self._segments is not None else None

    def segment_of(self, endpoint: str) -> str:
        """The segment's name, for a put that shall go there."""
        return (self._known() or {}).get(endpoint, "")

    def _targets(self, names: Sequence[str], avoid: frozenset[str]) -> list[str]:
        """The endpoint for each put: this host's segments first, else spread by name.

        Nowhere to go but avoided stores: the master chooses.
        """
        left = sorted((self._known() or {}).keys() - avoid)
        if not left:
            return [_ANYWHERE] * len(names)
        near = [e for e in left if e.rpartition(":")[0] == self.settings.host]
        return [_rendezvous(name, near or left) for name in names]

    def _canary(self, endpoint: str, number: int, timeout_s: float) -> StorageResult:
        told: list[int] = []
        client = self._client
        if client is not None:
            name = f"hicache-canary/{self._nonce}/{number}"
            segment = self.segment_of(endpoint)

            def take(job: Job[int]) -> None:
                told.append(Code.INTERNAL_ERROR if job.result is None else job.result)

            def fail(code: int) -> None:
                told.append(code)

            task = Task(
                endpoint=endpoint,
                work=lambda lane: self._there_and_back(client, lane, name, segment),
                take=take,
                fail=fail,
            )
            self._run([task], self._clock() + timeout_s, None)
        # Where nobody answered there is no client: that tells nothing of the store.
        code = told[0] if told else int(Code.RPC_FAIL)
        codes = np.full(1, code, np.int16)
        self._count("canary", codes)
        asked = (endpoint,) if endpoint and told else ()
        fault = outcome_of(code) is Outcome.FAULT
        blamed = dict.fromkeys(asked, code if fault else 0)
        return StorageResult(codes=codes, endpoints=blamed, asked=asked)

    def _there_and_back(
        self, client: Native, lane: Lane, name: str, segment: str
    ) -> int:
        """In a lane: put, get, compare, remove; stops when nobody waits any more."""
        size = min(self.settings.canary_bytes, self.settings.lane_bytes // 2)
        wrote, read = lane.memory[:size], lane.memory[size : 2 * size]
        seed = blake2b(name.encode(), digest_size=32).digest()
        wrote[:] = np.frombuffer((seed * (size // 32 + 1))[:size], np.uint8)
        read[:] = 0
        code = client.write(
            [name], [lane.address], [size], replicas=1, segment=segment
        )[0]
        if code or lane.abandoned:
            return int(code)
        got = client.read([name], [lane.address + size], [size])[0]
        if not lane.abandoned:
            client.remove(name)
        if got < 0:
            # Written well a moment ago and gone: this is no healthy answer.
            miss = outcome_of(got) is Outcome.MISS
            return int(Code.TRANSFER_FAIL) if miss else int(got)
        same = got == size and np.array_equal(wrote, read)
        return int(Code.OK if same else Code.CHECKSUM_MISMATCH)

    def _reread(self, endpoint: str, timeout_s: float) -> int:
        """Reads again what this endpoint served last; it may be gone with the store."""
        with self._lock:
            name, size = self._seen.get(endpoint, ("", 0))
        client = self._client
        if not name or client is None:
            return int(Code.SEGMENT_NOT_FOUND if client else Code.RPC_FAIL)
        until = self._clock() + timeout_s
        where = self._places(client, [name], until, None)
        if isinstance(where, int):
            return where
        if where != [endpoint]:
            return int(Code.SEGMENT_NOT_FOUND)
        buffer = memoryview(bytearray(size))
        read = Read(self, [name], [buffer], self._clock())
        self._run(read.tasks(client, endpoint, [0]), until, None)
        return int(read.codes[0])

    # --- names, parts, counts ---

    def _names(self, keys: bytes) -> list[str]:
        ranks = self.settings.ranks
        return [
            object_name(key, part, ranks)
            for key in split_keys(keys)
            for part in range(ranks)
        ]

    def _parts_of(self, buffers: Sequence[memoryview]) -> list[memoryview]:
        """Every buffer cut into as many parts as ranks wrote it in."""
        ranks = self.settings.ranks
        sizes = [len(buffer) // ranks for buffer in buffers]
        return [
            buffer[part * size : (part + 1) * size]
            for buffer, size in zip(buffers, sizes, strict=True)
            for part in range(ranks)
        ]

    def _whole(self, codes: NDArray[np.int16]) -> NDArray[np.int16]:
        """A code per object: that of its worst part, a fault before a miss."""
        if self.settings.ranks == 1:
            return codes
        lowest: NDArray[np.int16] = codes.reshape(-1, self.settings.ranks).min(axis=1)
        return lowest

    def _count(self, call: str, codes: NDArray[np.int16]) -> None:
        values, counts = np.unique(codes, return_counts=True)
        with self._lock:
            self._counts[f"{call}_calls"] += 1
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                self._counts[f"{call}_keys_{value}"] += count

    def note_served(self, endpoint: str, name: str, size: int) -> None:
        """What an endpoint can be asked for again, to see whether it is well."""
        with self._lock:
            if endpoint in self._seen or len(self._seen) < self.settings.lanes * 64:
                self._seen[endpoint] = (name, size)


def _by(where: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Rows by endpoint, in the order of their first rows."""
    found: dict[str, list[int]] = {}
    for row, endpoint in enumerate(where):
        found.setdefault(endpoint, []).append(row)
    return list(found.items())


def _rendezvous(name: str, endpoints: Sequence[str]) -> str:
    """The endpoint that wins for this name: the loss of one moves only its own."""
    return max(
        endpoints,
        key=lambda e: blake2b(f"{name}@{e}".encode(), digest_size=8).digest(),
    )

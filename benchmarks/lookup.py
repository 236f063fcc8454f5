"""How fast the master locates keys, beside what gRPC itself can do in the same run.

`python -m benchmarks.lookup [--json] [--quick]` starts real master processes on
loopback and asks them as one client process would. Every rate stands beside a limit
taken in the same run: an echo of equal request and response sizes, served by the same
process, in alternating rounds. The best round of each stands for it, as in `timeit`:
other work on the machine only ever makes rounds slower. The medians stand beside.

| row | what is measured |
|---|---|
| located keys/s | whole gRPC calls, 32-byte keys, all found, answer decoded |
| p99 while evicting | paced lookups with a writer at the watermark / without |
| removal | one UnmountSegment call of a store that holds 200,000 objects |
| heartbeat p99 | answers on the heartbeat port while two threads look up |
| bytes a key | growth of the resident set for a million objects / a million |

Exit code: 0 when every target is met, 1 when one is missed, 3 when one could not be
judged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np

from refimpl.master.heartbeat import MAGIC, REPLY
from refimpl.master.heartbeat import REQUEST as BEAT
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import GRPC_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

KEY_BYTES: Final = 32
OBJECT_BYTES: Final = 64 << 10
STORES: Final = 8
TABLE: Final = 200_000
MILLION: Final = 1_000_000
BATCHES: Final = (1024, 8192)
_FILL_BATCH: Final = 8192
_ECHO: Final = "/moonquake.benchmarks.Echo/Echo"
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured number beside its limit and its target."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    """What the same run says is possible, or what the value is compared with."""
    limit_name: str = ""
    target: float | None = None
    at_most: bool = False
    """The target is an upper bound."""
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Value over limit."""
        return self.value / self.limit if self.limit else None

    @property
    def met(self) -> bool | None:
        """None without a target, or when the value could not be measured."""
        if self.target is None or self.value != self.value:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


class MasterUnderTest:
    """A master process with the echo beside its service, and a client of it."""

    def __init__(self, *, max_objects: int) -> None:
        command = [sys.executable, __file__, "--serve", str(max_objects)]
        path = os.pathsep.join([str(Path(__file__).parents[1]), *_inherited_path()])
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        ready = self._line()
        self.pid = self._process.pid
        doors = json.loads(ready[ready.index("{") :])
        self.heartbeat: str = doors["heartbeat"]
        self._channel = grpc.insecure_channel(
            doors["listen"], options=list(GRPC_OPTIONS)
        )
        self.stub = pool_pb2_grpc.MasterStub(self._channel)  # type: ignore[no-untyped-call]
        self.echo: Any = self._channel.unary_unary(_ECHO)
        self._mounted = 0

    def __enter__(self) -> MasterUnderTest:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._process.terminate()
        self._process.wait(timeout=10)
        if self._process.stdout:
            self._process.stdout.close()

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if " ready " not in line:
            self._process.wait(timeout=10)
            raise SystemExit(f"the master did not start: {line!r}")
        return line

    def mount(self, size: int) -> int:
        """Mounts one more store of `size` bytes; returns its segment id."""
        self._mounted += 1
        number = self._mounted
        segment = pool_pb2.Segment(
            id=number,
            name=f"store-{number}",
            host_id=f"host-{number}",
            size=size,
            rails=[
                pool_pb2.Rail(name=f"rail-{r}", address=f"127.0.0.{number}:{7000 + r}")
                for r in range(2)
            ],
            numa_node=-1,
        )
        request = pool_pb2.MountRequest(segment=segment, client=number)
        status = self.stub.MountSegment(request, timeout=_TIMEOUT_S)
        if status.code:
            raise SystemExit(f"mount: {status.detail}")
        return number

    def put(self, keys: NDArray[np.uint64]) -> int:
        """Writes objects (no bytes move); returns how many found a place."""
        packed, count = keys.tobytes(), len(keys)
        started = self.stub.PutStart(
            pool_pb2.PutStartRequest(
                keys=packed,
                sizes=np.full(count, OBJECT_BYTES, "<u4").tobytes(),
                client=1,
            ),
            timeout=_TIMEOUT_S,
        )
        self.stub.PutEnd(
            pool_pb2.PutEndRequest(
                keys=packed,
                token=started.token,
                checksum=bytes(8 * count),
                client=1,
            ),
            timeout=_TIMEOUT_S,
        )
        statuses: NDArray[np.int16] = np.frombuffer(started.status, "<i2")
        return int(np.count_nonzero(statuses == 0))

    def fill(self, keys: NDArray[np.uint64]) -> None:
        """Writes all `keys`; every one must find a place."""
        for at in range(0, len(keys), _FILL_BATCH):
            batch = keys[at : at + _FILL_BATCH]
            placed = self.put(batch)
            if placed != len(batch):
                raise SystemExit(f"only {placed} of {len(batch)} objects had a place")

    def resident_bytes(self) -> int:
        """Memory of the process that is not shared with files."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        raise SystemExit("no RssAnon in /proc")

    def objects(self) -> int:
        """Objects that hold memory, as a sum over stores."""
        segments = self.stub.ListSegments(
            pool_pb2.ListSegmentsRequest(), timeout=_TIMEOUT_S
        ).segments
        return sum(s.allocated for s in segments) // OBJECT_BYTES


def _inherited_path() -> list[str]:
    return [p for p in [os.environ.get("PYTHONPATH", "")] if p]


def random_keys(count: int, seed: int) -> NDArray[np.uint64]:
    """Distinct 32-byte keys."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 2**63, size=(count, 4), dtype=np.uint64)


def measure_rates(seconds: float) -> Iterator[Row]:
    """Located keys/s for each batch size, one and two client threads."""
    with MasterUnderTest(max_objects=2 * TABLE) as master:
        for _ in range(STORES):
            master.mount(2 * TABLE * OBJECT_BYTES // STORES)
        keys = random_keys(TABLE, seed=1)
        master.fill(keys)
        for batch in BATCHES:
            for threads in (1, 2):
                yield _rate(master, keys, batch, threads, seconds)
        yield _heartbeats(master, keys, seconds)


def _rate(
    master: MasterUnderTest,
    keys: NDArray[np.uint64],
    batch: int,
    threads: int,
    seconds: float,
) -> Row:
    """Alternating rounds of lookups and echoes."""
    starts = range(0, len(keys) - batch + 1, batch)
    requests = [
        pool_pb2.LookupRequest(keys=keys[at : at + batch].tobytes()) for at in starts
    ]
    answer = master.stub.Lookup(requests[0], timeout=_TIMEOUT_S)
    size, answered = requests[0].ByteSize(), answer.ByteSize()
    ping = answered.to_bytes(4, "little") + bytes(size - 4)

    def lookup(turn: int) -> None:
        found = master.stub.Lookup(requests[turn % len(requests)], timeout=_TIMEOUT_S)
        columns = _decode(found)
        if np.count_nonzero(columns["status"]):
            raise SystemExit("a lookup missed a key that is there")

    def echo(_turn: int) -> None:
        if len(master.echo(ping, timeout=_TIMEOUT_S)) != answered:
            raise SystemExit("the echo came back short")

    found, echoed = [], []
    for _ in range(_ROUNDS):
        found.append(batch * _calls_per_s(lookup, threads, seconds / _ROUNDS))
        echoed.append(batch * _calls_per_s(echo, threads, seconds / _ROUNDS))
    pipelined = f", {threads} threads (pipelined)" if threads > 1 else ""
    return Row(
        name=f"located keys/s, {batch} a batch{pipelined}",
        value=max(found),
        unit="keys/s",
        limit=max(echoed),
        limit_name="gRPC echo of equal size",
        target={1024: 1.3e6, 8192: 2.6e6}[batch] if threads == 1 else None,
        notes={
            "median": statistics.median(found),
            "limit_median": statistics.median(echoed),
        },
    )


_ROUNDS: Final = 9


def _decode(found: pool_pb2.LookupResponse) -> dict[str, NDArray[Any]]:
    """What a client does before it can read: columns as arrays, without a copy."""
    return {
        "status": np.frombuffer(found.status, "<i2"),
        "segment": np.frombuffer(found.segment, "<u8"),
        "offset": np.frombuffer(found.offset, "<u8"),
        "size": np.frombuffer(found.size, "<u4"),
        "checksum": np.frombuffer(found.checksum, "<u8"),
        "parts": np.frombuffer(found.parts, "u1"),
    }


def _calls_per_s(call: Callable[[int], None], threads: int, seconds: float) -> float:
    """Calls of all threads together in a second."""
    counts = [0] * threads
    began = time.perf_counter()
    ends = began + seconds

    def run(thread: int) -> None:
        turn = thread
        while time.perf_counter() < ends:
            call(turn)
            turn += threads
            counts[thread] += 1

    workers = [threading.Thread(target=run, args=(t,)) for t in range(1, threads)]
    for worker in workers:
        worker.start()
    run(0)
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


def _heartbeats(
    master: MasterUnderTest, keys: NDArray[np.uint64], seconds: float
) -> Row:
    """Answers on the heartbeat port while both threads keep the master busy."""
    request = pool_pb2.LookupRequest(keys=keys[: BATCHES[-1]].tobytes())
    took: list[float] = []
    load = threading.Thread(
        target=_calls_per_s,
        args=(lambda _: master.stub.Lookup(request, timeout=_TIMEOUT_S), 2, seconds),
    )
    host, port = master.heartbeat.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as door:
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        load.start()
        while load.is_alive():
            began = time.perf_counter()
            door.sendall(BEAT.pack(MAGIC, 1, len(took)))
            door.recv(REPLY.size)
            took.append(time.perf_counter() - began)
            time.sleep(0.005)
        load.join()
    return Row(
        name="heartbeat answer p99 under full lookup load",
        value=float(np.quantile(took, 0.99)) * 1e3,
        unit="ms",
        target=100.0,
        at_most=True,
        notes={"p50_ms": statistics.median(took) * 1e3, "max_ms": max(took) * 1e3},
    )


def measure_eviction(seconds: float) -> Iterator[Row]:
    """p99 of paced lookups: idle, beside a writer, and beside it at the watermark.

    The second phase tells what the writer itself costs the readers; the third adds
    eviction, which then runs all the time because as much is evicted as is written.
    """
    with MasterUnderTest(max_objects=2 * TABLE) as master:
        for _ in range(STORES):
            master.mount(int(TABLE * OBJECT_BYTES / 0.9 / STORES) >> 16 << 16)
        keys, roomy = random_keys(TABLE, seed=2), TABLE // 2
        master.fill(keys[:roomy])
        hot = [
            pool_pb2.LookupRequest(keys=keys[at : at + 1024].tobytes())
            for at in range(0, 16 * 1024, 1024)
        ]
        _paced(master, hot, 0.5)
        idle = _paced(master, hot, seconds)
        with _Writer(master, seed=3) as below:
            writing = _paced(master, hot, seconds)
        master.fill(keys[roomy : roomy + TABLE - master.objects()])
        with _Writer(master, seed=4) as above:
            evicting = _paced(master, hot, seconds)
    yield _eviction_row(idle, writing, evicting, below.evicted, above.evicted)


def _eviction_row(
    idle: list[float],
    writing: list[float],
    evicting: list[float],
    evicted_below: int,
    evicted_above: int,
) -> Row:
    """Not judged when eviction ran where it should not, or not where it should."""
    p99 = {
        name: float(np.quantile(times, 0.99))
        for name, times in (("idle", idle), ("write", writing), ("evict", evicting))
    }
    judged = evicted_below == 0 and evicted_above > 0
    return Row(
        name="lookup p99 while evicting / idle",
        value=p99["evict"] / p99["idle"] if judged else float("nan"),
        unit="x",
        target=2.0,
        at_most=True,
        notes={
            **{f"{name}_p99_ms": value * 1e3 for name, value in p99.items()},
            "idle_p50_ms": statistics.median(idle) * 1e3,
            "evict_p50_ms": statistics.median(evicting) * 1e3,
            "evicting_to_writing": p99["evict"] / p99["write"],
            "evicted": evicted_above,
            "samples": len(evicting),
        },
    )


class _Writer:
    """Writes new objects in small paced batches, from a thread of its own."""

    batch: Final = 256
    period_s: Final = 0.02

    def __init__(self, master: MasterUnderTest, seed: int) -> None:
        self._master = master
        self._keys = random_keys(100 * 1024, seed=seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._placed = 0
        self._before = 0
        self.evicted = 0

    def __enter__(self) -> _Writer:
        self._before = self._master.objects()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.evicted = self._placed + self._before - self._master.objects()

    def _run(self) -> None:
        for at in range(0, len(self._keys), self.batch):
            if self._stop.wait(self.period_s):
                return
            self._placed += self._master.put(self._keys[at : at + self.batch])


def _paced(master: MasterUnderTest, requests: list[Any], seconds: float) -> list[float]:
    """Seconds of each lookup, one started every 3 ms (latency, not throughput)."""
    took = []
    began = time.perf_counter()
    for turn in range(int(seconds / _PACE_S)):
        until = began + turn * _PACE_S
        time.sleep(max(0.0, until - time.perf_counter()))
        sent = time.perf_counter()
        master.stub.Lookup(requests[turn % len(requests)], timeout=_TIMEOUT_S)
        took.append(time.perf_counter() - sent)
    return took


_PACE_S: Final = 0.003


def measure_removal(repeats: int) -> Iterator[Row]:
    """One UnmountSegment of a store with 200,000 objects, several times."""
    with MasterUnderTest(max_objects=(repeats + 1) * TABLE) as master:
        took, after = [], []
        for turn in range(repeats):
            segment = master.mount(2 * TABLE * OBJECT_BYTES)
            keys = random_keys(TABLE, seed=10 + turn)
            master.fill(keys)
            probe = pool_pb2.LookupRequest(keys=keys[:1024].tobytes(), no_lease=True)
            request = pool_pb2.UnmountRequest(id=segment, client=segment)
            began = time.perf_counter()
            status = master.stub.UnmountSegment(request, timeout=_TIMEOUT_S)
            took.append(time.perf_counter() - began)
            found = master.stub.Lookup(probe, timeout=_TIMEOUT_S)
            if status.code or np.any(np.frombuffer(found.status, "<i2") == 0):
                raise SystemExit("a removed store was named")
            after += _paced(master, [probe], 0.5)
        echo = _echo_s(master)
    yield Row(
        name=f"removal of a store with {TABLE} objects",
        value=max(took) * 1e3,
        unit="ms",
        limit=echo * 1e3,
        limit_name="gRPC echo of an empty call",
        target=5.0,
        at_most=True,
        notes={
            "median_ms": statistics.median(took) * 1e3,
            "lookup_max_ms_during_clean_up": max(after) * 1e3,
        },
    )


def _echo_s(master: MasterUnderTest) -> float:
    took = []
    for _ in range(100):
        began = time.perf_counter()
        master.echo(bytes(4), timeout=_TIMEOUT_S)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def measure_memory() -> Iterator[Row]:
    """Resident bytes a key: the growth from an empty table to a million objects."""
    with MasterUnderTest(max_objects=MILLION + 2 * _FILL_BATCH) as master:
        for _ in range(STORES):
            master.mount(2 * MILLION * OBJECT_BYTES // STORES)
        master.fill(random_keys(_FILL_BATCH, seed=4))
        before = master.resident_bytes()
        began = time.perf_counter()
        master.fill(random_keys(MILLION, seed=5))
        took = time.perf_counter() - began
        yield Row(
            name="resident bytes a key at a million",
            value=(master.resident_bytes() - before) / MILLION,
            unit="bytes",
            target=200.0,
            at_most=True,
            notes={"put_start_and_end_keys_per_s": MILLION / took},
        )


def serve(max_objects: int) -> int:
    """The child: a master as it is, with the echo added to its gRPC server."""
    from refimpl.master import MasterSettings
    from refimpl.master.process import run

    def add_echo(server: grpc.Server) -> None:
        cached: dict[bytes, bytes] = {}

        def echo(request: bytes, _context: grpc.ServicerContext) -> bytes:
            head = request[:4]
            if head not in cached:
                cached[head] = bytes(int.from_bytes(head, "little"))
            return cached[head]

        service, method = _ECHO.strip("/").split("/")
        handler: Any = grpc.unary_unary_rpc_method_handler(echo)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )

    settings = MasterSettings(
        listen="127.0.0.1:0",
        heartbeat_listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0",
        allocation_strategy="random",
        max_objects=max_objects,
        client_ttl_s=36_000.0,  # the stores here are names without a process
    )
    return run(settings, extend=add_echo)


def render(rows: list[Row]) -> str:
    """The rows as plain text."""
    lines = []
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        if row.target is not None and row.met is None:
            verdict = "INCONCLUSIVE"
        sign = "<=" if row.at_most else ">="
        target = f"target {sign} {_number(row.target)}" if row.target else ""
        limit = (
            f"limit {_number(row.limit)} ({row.limit_name}), ratio {row.ratio:.2f}"
            if row.limit
            else ""
        )
        notes = ", ".join(f"{k} {_number(v)}" for k, v in row.notes.items())
        lines.append(f"{row.name:48} {_number(row.value):>10} {row.unit:7} {verdict}")
        lines += [f"    {text}" for text in (target, limit, notes) if text]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1e6:.2f} M" if abs(value) >= 1e5 else f"{value:.4g}"


def main(argv: list[str] | None = None) -> int:
    """Runs every measurement and says which targets are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="shorter rounds")
    parser.add_argument("--only", default="", help="rates|eviction|removal|memory")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve is not None:
        return serve(args.serve)
    seconds = 1.4 if args.quick else 4.2
    measurements: dict[str, Callable[[], Iterator[Row]]] = {
        "rates": lambda: measure_rates(seconds),
        "eviction": lambda: measure_eviction(seconds),
        "removal": lambda: measure_removal(3),
        "memory": measure_memory,
    }
    chosen = [args.only] if args.only else list(measurements)
    rows = []
    for name in chosen:
        for row in measurements[name]():
            rows.append(row)
            if not args.json:
                print(render([row]), flush=True)
    if args.json:
        print(json.dumps([_as_json(row) for row in rows], indent=2))
    return exit_code(rows)


def _as_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "ratio": row.ratio, "met": row.met}


def exit_code(rows: list[Row]) -> int:
    judged = [row.met for row in rows if row.target is not None]
    if False in judged:
        return 1
    return 3 if None in judged else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

"""How fast pages move, beside what a plain TCP stream does in the same run.

`python -m benchmarks.transfer [--json] [--quick]` starts a real master and a store with
two rails on loopback, and reads and writes batches of 64 pages of 64 KiB from this
process. The limit is a stream from a process of its own, `sendall` there, `recv_into`
here, over the same amount of memory. Rounds alternate, and the best round of each row
stands for it, as in `timeit`: other work on the machine only ever makes rounds slower.
The medians stand beside.

| row | what is measured |
|---|---|
| read, N rails | transfer engine alone, places known, bytes not looked at |
| get | the whole client: lookup, transfer, checksums, lease |
| write, 2 rails | transfer engine alone, into places that exist |
| put | the whole client: PutStart, checksums, transfer, PutEnd |
| put, 2 at a time | the same calls from two threads of one client |
| put, 16 MiB | the same with four times the pages in a call |

A put is two calls to the master around the transfer, and they cost nearly the same for
64 keys as for 256. On two cores the three processes spend about as much processor time
on them as on 64 pages, so several puts at a time gain little, and overlapping the calls
with the bytes of one put would gain no more. So the target of puts is judged at 256
pages, where the calls weigh less; the rows of 64 pages stand beside it without one.

Exit code: 0 when every target is met, 1 when one is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from refimpl.client import PoolClient
from refimpl.core.hashing import object_key
from refimpl.transfer.engine import TransferEngine
from refimpl.transfer.operation import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from refimpl.client import Lookup

PAGES: Final = 64
PAGE_BYTES: Final = 64 << 10
BATCH_BYTES: Final = PAGES * PAGE_BYTES
BATCHES: Final = 8
"""Different batches read in turn: 32 MiB, beyond the caches near the cores."""
_LARGE: Final = 4
_STORE_BYTES: Final = 512 << 20
_ANY: Final = "127.0.0.1:0"
_TIMEOUT_S: Final = 10.0
_READ_TARGET: Final = 0.8
_PUT_TARGET: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rate: the best round, the median round, and the limit's best round."""

    name: str
    gb_per_s: float
    median_gb_per_s: float
    ratio: float
    median_ratio: float
    target: float | None = None

    @property
    def is_met(self) -> bool:
        """True without a target."""
        return self.target is None or self.ratio >= self.target


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args(arguments)
    rounds, batches = (20, 8) if options.quick else (80, 8)
    with contextlib.ExitStack() as stack:
        rows = _measure(stack, rounds, batches)
    if options.json:
        print(json.dumps({"batch_bytes": BATCH_BYTES, "rows": [*map(asdict, rows)]}))
    else:
        _print(rows)
    return 0 if all(row.is_met for row in rows) else 1


def _measure(stack: contextlib.ExitStack, rounds: int, batches: int) -> list[Row]:
    bench = _Bench(stack)
    work: dict[str, Callable[[int], None]] = {
        "plain stream": stack.enter_context(_plain_stream()),
        "read, 1 rail": bench.read_one_rail,
        "read, 2 rails": bench.read_two_rails,
        "get": bench.get,
        "write, 2 rails": bench.write_two_rails,
        "put": bench.put,
        "put, 2 at a time": bench.put_two_at_a_time,
        "put, 16 MiB": bench.put_large,
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, run in work.items():
            bench.prepare(name, batches)
            began = time.perf_counter()
            run(batches)
            elapsed = time.perf_counter() - began
            if number:  # the first round warms up
                times[name].append(batches * BATCH_BYTES / elapsed / 1e9)
    limit, middle = max(times["plain stream"]), statistics.median(times["plain stream"])
    targets = {"read, 2 rails": _READ_TARGET, "put, 16 MiB": _PUT_TARGET}
    return [
        Row(
            name=name,
            gb_per_s=max(found),
            median_gb_per_s=statistics.median(found),
            ratio=max(found) / limit,
            median_ratio=statistics.median(found) / middle,
            target=targets.get(name),
        )
        for name, found in times.items()
    ]


class _Bench:
    """A pool of one store, filled, and the things that are done to it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        master = stack.enter_context(
            _role("master", "--listen", _ANY, "--heartbeat-listen", _ANY)
        )
        stack.enter_context(
            _role(
                "store",
                *("--master", master["listen"], "--heartbeat", master["heartbeat"]),
                *("--rail", "a=127.0.0.1:0", "--rail", "b=127.0.0.1:0"),
                *("--size", str(_STORE_BYTES), "--grace-s", "0"),
            )
        )
        self._client = PoolClient(master["listen"])
        stack.callback(self._client.close)
        self._engine = TransferEngine()
        stack.callback(self._engine.close)
        rng = np.random.default_rng(0)
        self._pages = rng.integers(0, 256, (PAGES, PAGE_BYTES), np.uint8)
        self._out = np.zeros_like(self._pages)
        self._views = [memoryview(row) for row in self._out]
        self._keys = [_names(f"read-{i}") for i in range(BATCHES)]
        for keys in self._keys:
            codes = self._client.put(keys, self._pages, timeout_s=_TIMEOUT_S).codes
            assert not codes.any(), codes
        self._found = [self._look_up(keys) for keys in self._keys]
        self._threads = stack.enter_context(ThreadPoolExecutor(2))
        self._puts = 0
        self._fresh: list[bytes] = []
        self._written: list[bytes] = []

    def prepare(self, name: str, batches: int) -> None:
        """Makes room and names for a round of puts, outside the measured time."""
        if name.startswith("put"):
            for _ in range(batches):
                self._puts += 1
                self._fresh.append(_names(f"put-{self._puts}"))
            for keys in self._written:
                self._client.remove(keys, timeout_s=_TIMEOUT_S, force=True)
            self._written.clear()

    def read_one_rail(self, batches: int) -> None:
        """The engine alone over one connection."""
        self._read(batches, 1)

    def read_two_rails(self, batches: int) -> None:
        """The engine alone over both rails."""
        self._read(batches, 2)

    def get(self, batches: int) -> None:
        """The whole client."""
        for turn in range(batches):
            keys = self._keys[turn % BATCHES]
            codes = self._client.get(keys, self._views, timeout_s=_TIMEOUT_S).codes
            assert not codes.any(), codes

    def put(self, batches: int) -> None:
        """The whole client."""
        self._put(batches, 1)

    def put_two_at_a_time(self, batches: int) -> None:
        """The whole client, as a write-back with two tasks."""
        list(self._threads.map(lambda _: self._put(1, 1), range(batches)))

    def put_large(self, batches: int) -> None:
        """The whole client, as many bytes in a quarter of the calls."""
        self._put(batches, _LARGE)

    def write_two_rails(self, batches: int) -> None:
        """The engine alone, the same bytes over those that are there."""
        for turn in range(batches):
            op = self._op(turn, 2, [memoryview(row) for row in self._pages])
            codes = self._engine.write([op], time.monotonic() + _TIMEOUT_S)
            assert not any(codes), codes

    def _put(self, batches: int, times: int) -> None:
        rows = [memoryview(row) for row in self._pages] * times
        for _ in range(batches // times):
            keys = b"".join(self._fresh.pop() for _ in range(times))
            codes = self._client.put(keys, rows, timeout_s=_TIMEOUT_S).codes
            assert not codes.any(), codes
            self._written.append(keys)

    def _read(self, batches: int, rails: int) -> None:
        for turn in range(batches):
            op = self._op(turn, rails, self._views)
            codes = self._engine.read([op], time.monotonic() + _TIMEOUT_S)
            assert not any(codes), codes

    def _op(self, turn: int, rails: int, views: list[memoryview]) -> Op:
        found = self._found[turn % BATCHES]
        (info,) = found.segments.values()
        return Op(
            segment=dataclasses.replace(info, rails=info.rails[:rails]),
            rows=np.arange(PAGES),
            offsets=found.offset[:, 0],
            buffers=views,
        )

    def _look_up(self, keys: bytes) -> Lookup:
        return self._client.lookup(keys, timeout_s=_TIMEOUT_S)


def _names(prefix: str) -> bytes:
    return b"".join(object_key(f"{prefix}-{i}") for i in range(PAGES))


@contextlib.contextmanager
def _role(*command: str) -> Iterator[dict[str, Any]]:
    """A role process; answers its ready line."""
    words = [sys.executable, "-m", "refimpl", command[0], "--admin-listen", _ANY]
    with _started([*words, *command[1:]]) as line:
        yield json.loads(line[line.index("{") :])


_SENDER: Final = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sock, _ = listener.accept()
batch, count = int(sys.argv[1]), int(sys.argv[2])
memory = memoryview(bytearray(range(256)) * (batch * count // 256))
while asked := sock.recv(8):
    for turn in range(int.from_bytes(asked, "little")):
        at = turn % count * batch
        sock.sendall(memory[at : at + batch])
"""


@contextlib.contextmanager
def _plain_stream() -> Iterator[Callable[[int], None]]:
    """The limit: what is sent by another process is received into one buffer."""
    words = [sys.executable, "-c", _SENDER, str(BATCH_BYTES), str(BATCHES)]
    out = memoryview(bytearray(BATCH_BYTES))
    with (
        _started(words) as line,
        socket.create_connection(("127.0.0.1", int(line))) as sock,
    ):

        def receive(batches: int) -> None:
            sock.sendall(batches.to_bytes(8, "little"))
            left, at = batches * BATCH_BYTES, 0
            while left:
                got = sock.recv_into(out[at:])
                left -= got
                at = (at + got) % BATCH_BYTES

        yield receive


@contextlib.contextmanager
def _started(words: list[str]) -> Iterator[str]:
    """A process that says one line when it is ready; it ends with the block."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{words[-1]} did not start, exit {process.wait()}")
        yield line
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


def _print(rows: list[Row]) -> None:
    print(f"batches of {PAGES} x {PAGE_BYTES >> 10} KiB, one store, loopback")
    print(f"{'':17}{'best GB/s':>10}{'ratio':>8}{'median':>10}{'ratio':>8}  target")
    for row in rows:
        target = "" if row.target is None else f">= {row.target:.0%}"
        verdict = "" if row.target is None else " met" if row.is_met else " MISSED"
        print(
            f"{row.name:17}{row.gb_per_s:10.2f}{row.ratio:8.0%}"
            f"{row.median_gb_per_s:10.2f}{row.median_ratio:8.0%}  {target}{verdict}"
        )


if __name__ == "__main__":
    raise SystemExit(main())

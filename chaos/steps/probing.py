"""Steps with the probe's own keys: many at once, timed, and where they land."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from chaos.errors import HarnessError
from chaos.steps import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.systems.base import KvProbe

    Owners = list[tuple[str, ...]]

T = TypeVar("T")

BATCH = 500
ROWS_KEPT = 100_000
BATCH_BYTES = 8 << 20
_END_S = 10.0
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Bytes read in a time, and how many keys of all batches were not good."""

    bytes_per_s: float
    failed: int


def in_batches(
    names: Sequence[str], ask: Callable[[Sequence[str]], list[T]], batch: int = BATCH
) -> list[T]:
    """Asks for many names in parts; the answers are in the order of the names."""
    parts = [names[at : at + batch] for at in range(0, len(names), batch)]
    return [answer for part in parts for answer in ask(part)]


def put_all(
    probe: KvProbe,
    names: Sequence[str],
    size_bytes: int,
    *,
    host: str = "",
    replicas: int = 1,
    timeout_s: float = 5.0,
) -> None:
    """Puts every name, in batches, again where a busy machine let one fail.

    Raises:
        HarnessError: Some name could not be written: nothing could be judged.
    """
    batch = max(1, min(BATCH, BATCH_BYTES // size_bytes))
    lacking = list(names)
    for _ in range(_TRIES):
        in_batches(
            lacking,
            lambda part: probe.write(
                part,
                size_bytes=size_bytes,
                timeout_s=timeout_s,
                replicas=replicas,
                host=host,
            ),
            batch,
        )
        owners = in_batches(lacking, probe.owners)
        lacking = [n for n, one in zip(lacking, owners, strict=True) if not one]
        if not lacking:
            return
    message = f"{len(lacking)} of {len(names)} objects were not written"
    raise HarnessError(message)


def write_from(
    probe: KvProbe, host: str, count: int, size_bytes: int, *, name: str = "put"
) -> Owners:
    """Puts as a writer on `host` and answers where each object is, () for nowhere."""
    names = [f"{name}-{host}-{number}" for number in range(count)]
    batch = max(1, min(BATCH, BATCH_BYTES // size_bytes))

    def write(part: Sequence[str]) -> Owners:
        probe.write(part, size_bytes=size_bytes, host=host, timeout_s=5.0)
        return probe.owners(part)

    return in_batches(names, write, batch)


def timed_read(
    probe: KvProbe, names: Sequence[str], *, timeout_s: float
) -> tuple[list[int], float]:
    """One batched read: its codes (wrong bytes are an error) and how long it took."""
    begin_s = time.monotonic()
    codes, wrong = probe.read(names, timeout_s=timeout_s)
    took_s = time.monotonic() - begin_s
    if wrong:
        message = f"{wrong} values are wrong"
        raise HarnessError(message)
    return codes, took_s


def read_rate(
    probe: KvProbe, names: Sequence[str], size_bytes: int, *, batches: int
) -> Rate:
    """Reads the names again and again and takes the time."""
    begin_s, failed = time.monotonic(), 0
    for _ in range(batches):
        codes, wrong = probe.read(names, size_bytes=size_bytes, timeout_s=5.0)
        failed += wrong + sum(code != 0 for code in codes)
    took_s = time.monotonic() - begin_s
    total = batches * len(names) * size_bytes
    return Rate(bytes_per_s=total / took_s, failed=failed)


class LookupLog:
    """Looks names up all the time while its block runs: (start, stores named)."""

    def __init__(self, probe: KvProbe, names: Sequence[str]) -> None:
        self.rows: list[tuple[float, tuple[str, ...]]] = []
        self._probe = probe
        self._names = names
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._body, name="lookups", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(_END_S)

    def wait_more(self, count: int) -> None:
        """Waits for so many more lookups."""
        wanted = len(self.rows) + count
        wait_for(lambda: len(self.rows) >= wanted, f"{count} lookups")

    def _body(self) -> None:
        while not self._ended.wait(0.001) and len(self.rows) < ROWS_KEPT:
            begin_s = time.monotonic()
            owners = self._probe.owners(self._names)
            named = {store for one in owners for store in one}
            self.rows.append((begin_s, tuple(sorted(named))))

"""Laws of single keys: who may read, write and end what, told by the pool's codes.

Codes are upstream's (Mooncake `types.h`); a system under test answers these numbers.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import TYPE_CHECKING

from chaos.judge.limit import inconclusive, none_of
from chaos.safety.identity import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chaos.judge.verdict import Judgement
    from chaos.systems.base import KvProbe

_POLL_S = 0.02


@unique
class KvCode(IntEnum):
    """The codes that these laws name."""

    OK = 0
    NOT_READY = -703
    NOT_FOUND = -704
    EXISTS = -705
    HAS_LEASE = -706
    LEASE_EXPIRED = -707
    CHECKSUM_MISMATCH = -801


NOT_THERE = (KvCode.NOT_READY, KvCode.NOT_FOUND)


def judge_codes(
    oracle: str, claim: str, codes: Iterable[int], allowed: int | Sequence[int]
) -> Judgement:
    """Every key answers one of the allowed codes: an exact counter."""
    seen = Counter(int(code) for code in codes)
    good = {allowed} if isinstance(allowed, int) else set(allowed)
    other = {code: count for code, count in seen.items() if code not in good}
    wanted = " or ".join(_name(code) for code in sorted(good, reverse=True))
    return none_of(
        oracle,
        f"{claim}: {wanted}",
        sum(other.values()),
        of=seen.total(),
        what="other answers",
        reason=", ".join(f"{count} x {_name(code)}" for code, count in other.items()),
    )


def judge_no_wrong_bytes(wrong: int, reads: int) -> Judgement:
    """O1 on direct reads."""
    claim = "no read returns wrong bytes"
    return none_of("O1", claim, wrong, of=reads, what="wrong reads")


def judge_refused_before(
    oracle: str, code: int, *, asked_after_s: float, limit_s: float
) -> Judgement:
    """A second writer is refused before the discard time of the first.

    When this machine was too slow to ask in time nothing can be told.
    """
    claim = "a second writer is refused before the discard time"
    if asked_after_s >= limit_s:
        reason = f"asked only after {asked_after_s:.3f} s of {limit_s:g} s"
        return inconclusive(oracle, claim, reason, kind="counter")
    return judge_codes(oracle, claim, [code], KvCode.EXISTS)


def start_when_allowed(
    probe: KvProbe, name: str, *, size_bytes: int, timeout_s: float
) -> tuple[int, int]:
    """Announces a write again and again until the pool takes it: (code, token)."""
    answer = (int(KvCode.EXISTS), 0)

    def taken() -> bool:
        nonlocal answer
        answer = probe.start_write(name, size_bytes=size_bytes)
        return answer[0] == KvCode.OK

    wait_until(taken, timeout_s=timeout_s, poll_s=_POLL_S)
    return answer


@dataclass(slots=True)
class Race:
    """What came of many writers of one key: their codes, and all reads meanwhile."""

    name: str
    codes: list[int] = field(default_factory=list)
    read_codes: list[int] = field(default_factory=list)
    torn: int = 0

    @property
    def winners(self) -> list[int]:
        """The writers that were told so; more than one is against the law."""
        return [i for i, code in enumerate(self.codes) if code == KvCode.OK]


def read_back(reader: KvProbe, held: Race, *, size_bytes: int) -> tuple[int, int]:
    """The code of a read after a race, and 1 where it gave no value of a winner."""
    code, wrong = int(KvCode.NOT_FOUND), 0
    for winner in held.winners:
        codes, wrong = reader.read([held.name], size_bytes=size_bytes, variant=winner)
        code = codes[0]
        if not wrong:
            break
    return code, wrong


def race(
    writer: KvProbe, reader: KvProbe, name: str, *, writers: int, size_bytes: int
) -> Race:
    """Has `writers` put different values of one key at once while another reads it."""

    def put(variant: int) -> int:
        return writer.write([name], size_bytes=size_bytes, variant=variant)[0]

    writer.exists([name])  # connected before the start
    found = Race(name=name)
    with ThreadPoolExecutor(writers, thread_name_prefix="writer") as pool:
        futures = [pool.submit(put, variant) for variant in range(writers)]
        while not all(future.done() for future in futures):
            codes, torn = reader.read([name], size_bytes=size_bytes, variant=None)
            found.read_codes += codes
            found.torn += torn
        found.codes = [future.result() for future in futures]
    return found


def write_parts(
    probes: Sequence[KvProbe],
    names: Sequence[str],
    order: Sequence[int],
    *,
    size_bytes: int,
) -> list[int]:
    """Ranks write their parts of the same values at once, started in this order.

    `probes[rank]` is the client of a rank; ranks that `order` leaves out never write.
    """

    def put(rank: int) -> list[int]:
        return probes[rank].write_part(names, rank, len(probes), size_bytes=size_bytes)

    with ThreadPoolExecutor(len(order), thread_name_prefix="rank") as pool:
        return [code for codes in pool.map(put, order) for code in codes]


def seconds_until(
    state: Callable[[], bool],
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """How long a state takes to come; infinite when it does not within the limit."""
    begin = clock()
    come = wait_until(state, timeout_s=limit_s, poll_s=_POLL_S)
    return clock() - begin if come else float("inf")


def seconds_until_written(
    probe: KvProbe, names: Sequence[str], size_bytes: int, limit_s: float
) -> float:
    """How long a writer tries until all of its keys are in the pool.

    Keys whose time comes earlier are written earlier, and then are there.
    """

    def written() -> bool:
        probe.write(names, size_bytes=size_bytes)
        return not any(probe.exists(names))

    return seconds_until(written, limit_s)


def _name(code: int) -> str:
    known = KvCode(code).name.lower() if code in set(KvCode) else ""
    return f"{code} {known}".strip()


def seconds_until_removed(
    probe: KvProbe, names: Sequence[str], limit_s: float
) -> float:
    """How long keys refuse to be removed because somebody reads them."""

    def removed() -> bool:
        codes = probe.remove(names)
        return all(code in (KvCode.OK, KvCode.NOT_FOUND) for code in codes)

    return seconds_until(removed, limit_s)


@dataclass(slots=True)
class LookupTimes:
    """Seconds of single lookups while the pool only fills, and while it evicts."""

    idle_s: list[float] = field(default_factory=list)
    evicting_s: list[float] = field(default_factory=list)
    evicted: int = 0


def lookups_beside_writes(
    probe: KvProbe,
    evicted: Callable[[], int],
    *,
    hot: Sequence[str],
    batches: Sequence[Sequence[str]],
    size_bytes: int,
    rounds: int,
    lookups: int = 6,
) -> LookupTimes:
    """Writes batch after batch, and after each looks the same hot keys up, timed.

    The load is the same all the time; in every round the pool first fills and then
    evicts, so that a busy moment of the machine meets both. The hot keys are read once
    a batch: they are the last that eviction may take. `evicted` counts keys.
    """
    found, begin = LookupTimes(), evicted()
    probe.write(hot, size_bytes=size_bytes)
    for _ in range(rounds):
        before, into = evicted(), found.idle_s
        for names in batches:
            probe.write(names, size_bytes=size_bytes)
            probe.read(hot, size_bytes=size_bytes)
            if into is found.idle_s and evicted() > before:
                into = found.evicting_s
            into += [_timed(lambda: probe.exists(hot)) for _ in range(lookups)]
        for names in batches:
            probe.remove(names)
    found.evicted = evicted() - begin
    return found


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin

"""A pool under a fault, used by its own client: one stream of calls each.

Every stream has a client of its own, so that a call that hangs, and is given up with
its client, takes no other one with it.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chaos.conformance.properties import BACK_WITHIN_S, Arm
from chaos.conformance.stage import (
    STORES,
    Stage,
    held_of,
    longest,
    seconds,
    untold,
    why_untold,
)
from chaos.errors import HarnessError
from chaos.load.noise import NoiseProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.conformance.measured import Measured
    from chaos.faults.base import Receipt
    from chaos.systems.base import KvProbe

_NAMES: Final = 48
_PAUSE_S: Final = 0.05
_KEPT: Final = 10_000
_PREPARE_S: Final = 10.0
_AFTER: Final = 6
_GIVEN_UP: Final = -9000
"""This and lower codes are the harness's own: no answer came in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a stream, with a code a key.

    `cpu_s` is what its process spent meanwhile, where that is told: waiting may cost.
    """

    begin_s: float
    took_s: float
    codes: tuple[int, ...]
    wrong: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Names by where they are: `bad` on the victim, the others not."""

    victim: str
    bad: str
    healthy: tuple[str, ...]

    @property
    def mixed(self) -> tuple[str, ...]:
        """The sick key in the middle, as in any batch."""
        return (self.healthy[0], self.bad, *self.healthy[1:])


class Stream:
    """The same call again and again in a thread, until it is told to stop."""

    def __init__(
        self,
        name: str,
        probe: KvProbe,
        call: Callable[[KvProbe], tuple[Sequence[int], int]],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.probe = probe
        self.calls: list[Call] = []
        self._call = call
        self._clock = clock
        self._stop = threading.Event()
        self._broke: Exception | None = None
        self._thread = threading.Thread(target=self._body, name=f"stream-{name}")
        self._thread.daemon = True

    def start(self) -> None:
        """Calls from now on."""
        self._thread.start()

    def stop(self) -> None:
        """No new call; what is under way may end."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Waits for the last call.

        Raises:
            HarnessError: It did not end, although it has a deadline, or ended early.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            message = f"the stream {self.name} did not end"
            raise HarnessError(message)
        if self._broke is not None:
            message = f"the stream {self.name} broke: {self._broke!r}"
            raise HarnessError(message) from self._broke

    def within(self, receipt: Receipt) -> list[Call]:
        """The calls that began while the fault was there."""
        begin_s = receipt.injected_at_s or 0.0
        end_s = receipt.reverting_at_s or float("inf")
        return [call for call in self.calls if begin_s <= call.begin_s < end_s]

    def _body(self) -> None:
        try:
            self._calls_until_told()
        except Exception as error:  # raised where the stream is joined
            self._broke = error

    def _calls_until_told(self) -> None:
        while not self._stop.is_set() and len(self.calls) < _KEPT:
            begin_s = self._clock()
            try:
                codes, wrong = self._call(self.probe)
            except HarnessError:
                codes, wrong = (_GIVEN_UP,), 0
            self.calls.append(
                Call(
                    begin_s=begin_s,
                    took_s=self._clock() - begin_s,
                    codes=tuple(codes),
                    wrong=wrong,
                    cpu_s=_cpu_s(self.probe),
                )
            )
            self._stop.wait(_PAUSE_S)


@dataclass(slots=True, kw_only=True)
class _Streams:
    bad: Stream
    mixed: Stream
    put: Stream
    probes: list[KvProbe] = field(default_factory=list)

    def __iter__(self) -> itertools.chain[Stream]:
        return itertools.chain((self.bad, self.mixed, self.put))


def measure_bare(stage: Stage) -> list[Measured]:
    """Streams under the fault, and after it.

    Raises:
        HarnessError: The keys could not be put where they are needed.
    """
    keys = _placed(stage)
    streams = _streams(stage, keys)
    try:
        with NoiseProbe(clock=stage.clock) as noise:
            receipt = _under_fault(stage, keys, streams)
            allowance_s = min(noise.worst_s(), stage.cluster.limits.poll_s)
        back_s = _back(stage, streams.mixed.probe)
    finally:
        for stream in streams:
            stream.stop()
        for probe in streams.probes:
            probe.close()
    limits = stage.cluster.limits
    tokens = STORES * limits.page_tokens
    bound_s = limits.deadline_s(tokens) + limits.poll_s + allowance_s
    rows = [_stall(stage, streams, receipt, bound_s)]
    if not stage.fault.of_master:
        rows.append(_healthy(stage, keys, streams.mixed, receipt, bound_s))
    rows.append(_came_back(stage, back_s))
    return untold(rows, receipt)


def _placed(stage: Stage) -> Keys:
    """Writes names anywhere; picks a victim, a name on it, and names that are not."""
    probe = stage.cluster.kv()
    try:
        names = [f"bare-{stage.fault.name}-{number}" for number in range(_NAMES)]
        codes = probe.write(names, replicas=stage.fault.replicas, timeout_s=_PREPARE_S)
        owners = probe.owners(names, timeout_s=_PREPARE_S)
    finally:
        probe.close()
    where = {
        name: owner
        for name, code, owner in zip(names, codes, owners, strict=True)
        if not code and owner
    }
    for victim in stage.cluster.stores:
        bad = [name for name, owner in where.items() if owner[0] == victim]
        good = [name for name, owner in where.items() if victim not in owner]
        if bad and len(good) >= STORES - 1:
            return Keys(victim=victim, bad=bad[0], healthy=tuple(good[: STORES - 1]))
    message = f"no store has a key of its own: {sorted(set(codes))}"
    raise HarnessError(message)


def _streams(stage: Stage, keys: Keys) -> _Streams:
    """Three clients that have joined and read once."""
    probes = [stage.cluster.kv() for _ in range(3)]
    for probe in probes:
        probe.exists([keys.bad], timeout_s=_PREPARE_S)
    numbers = itertools.count()
    patience_s = stage.patience_s

    def bad(probe: KvProbe) -> tuple[Sequence[int], int]:
        return probe.read([keys.bad], timeout_s=patience_s)

    def mixed(probe: KvProbe) -> tuple[Sequence[int], int]:
        return probe.read(keys.mixed, timeout_s=patience_s)

    def put(probe: KvProbe) -> tuple[Sequence[int], int]:
        name = f"bare-put-{stage.fault.name}-{next(numbers)}"
        return probe.write([name], timeout_s=patience_s), 0

    made = zip(("bad", "mixed", "put"), probes, (bad, mixed, put), strict=True)
    one, two, three = (Stream(*each, stage.clock) for each in made)
    return _Streams(bad=one, mixed=two, put=three, probes=probes)


def _under_fault(stage: Stage, keys: Keys, streams: _Streams) -> Receipt:
    """The window; afterwards every stream has ended."""
    injection = stage.injection(keys.victim)
    for stream in streams:
        stream.start()
    stage.wait(10 * _PAUSE_S)
    with injection as receipt:
        stage.wait(stage.window_s)
    for stream in streams:
        stream.stop()
    for stream in streams:
        stream.join(stage.patience_s + _PREPARE_S)
    return receipt


def _back(stage: Stage, probe: KvProbe) -> float:
    """Seconds until new keys are written and read, twice; NaN for not so soon."""
    healed_s, good_s, streak = stage.clock(), float("nan"), 0
    for attempt in itertools.count():
        begin_s = stage.clock()
        if begin_s - healed_s > 1.5 * BACK_WITHIN_S:
            return float("nan")
        names = [f"after-{stage.fault.name}-{attempt}-{n}" for n in range(_AFTER)]
        if _writes_and_reads(probe, names):
            good_s = good_s if streak else stage.clock() - healed_s
            streak += 1
            if streak == 2:
                return good_s
        else:
            streak, good_s = 0, float("nan")
        stage.wait(_PAUSE_S)
    raise AssertionError


def _writes_and_reads(probe: KvProbe, names: list[str]) -> bool:
    try:
        written = probe.write(names, timeout_s=BACK_WITHIN_S)
        codes, wrong = probe.read(names, timeout_s=BACK_WITHIN_S)
    except HarnessError:
        return False
    return not (any(written) or any(code < 0 for code in codes) or wrong)


def _stall(
    stage: Stage, streams: _Streams, receipt: Receipt, bound_s: float
) -> Measured:
    asked = [*streams.bad.within(receipt), *streams.mixed.within(receipt)]
    reads = [call for call in asked if _told(call, bound_s)]
    puts = streams.put.within(receipt)
    over = [call for call in reads if call.took_s > bound_s]
    stall_s = longest([call.took_s for call in reads])
    given_up = any(code <= _GIVEN_UP for call in reads for code in call.codes)
    held = held_of(len(reads), len(over))
    return stage.measured(
        Arm.BARE,
        "stall-bounded",
        held=held,
        observed=f"{'over ' * given_up}{seconds(stall_s)}",
        limit=seconds(bound_s),
        samples=len(reads),
        reason=why_untold(held, len(reads)),
        numbers={
            "stall_s": stall_s,
            "bound_s": bound_s,
            "over": float(len(over)),
            "untold": float(len(asked) - len(reads)),
            "wrong": float(sum(call.wrong for call in reads)),
            "cpu_per_waited_s": _cpu_per_s(reads),
            "put_stall_s": longest([call.took_s for call in puts]),
            "puts_failed": float(sum(any(call.codes) for call in puts)),
            "puts": float(len(puts)),
        },
    )


def _healthy(
    stage: Stage, keys: Keys, mixed: Stream, receipt: Receipt, bound_s: float
) -> Measured:
    calls = [call for call in mixed.within(receipt) if _told(call, bound_s)]
    at = [n for n, name in enumerate(keys.mixed) if name != keys.bad]
    lost = [c for c in calls if c.wrong or any(_bad(c, n) for n in at)]
    wrong = sum(call.wrong for call in calls)
    late = [c for c in calls if c not in lost and c.took_s > bound_s]
    held = held_of(len(calls), len(lost) + len(late))
    return stage.measured(
        Arm.BARE,
        "healthy-keys-used",
        held=held,
        observed=f"of {len(calls)} mixed reads {len(lost)} lost healthy keys, "
        f"{len(late)} came late{_longest(calls)}{_wrong(wrong)}",
        limit=seconds(bound_s),
        samples=len(calls),
        reason=why_untold(held, len(calls)),
        numbers={
            "lost": float(len(lost)),
            "late": float(len(late)),
            "wrong": float(wrong),
        },
    )


def _cpu_s(probe: KvProbe) -> float:
    """What the latest call of a probe cost, of probes that tell."""
    return float(getattr(getattr(probe, "last", None), "cpu_s", 0.0))


def _cpu_per_s(calls: Sequence[Call]) -> float:
    """Processor seconds in a second of waiting; above 0.5 somebody spins."""
    waited_s = sum(call.took_s for call in calls)
    return sum(call.cpu_s for call in calls) / waited_s if waited_s else 0.0


def _longest(calls: Sequence[Call]) -> str:
    """The codes of the call that took longest, by key."""
    if not calls:
        return ""
    one = max(calls, key=lambda call: call.took_s)
    return f", the longest answered {list(one.codes)} after {seconds(one.took_s)}"


def _wrong(count: int) -> str:
    """Good codes with bytes that were not the key's: worse than any error."""
    return f", {count} good reads gave wrong bytes" if count else ""


def _told(call: Call, bound_s: float) -> bool:
    """Whether a read tells something of the system.

    One that broke in the harness, or found no client to ask, is no quick answer; one
    that was waited for beyond the bound is a stall, whoever gave it up.
    """
    given_up = any(code <= _GIVEN_UP for code in call.codes)
    return call.took_s > bound_s or not given_up


def _bad(call: Call, key: int) -> bool:
    return key >= len(call.codes) or call.codes[key] < 0


def _came_back(stage: Stage, back_s: float) -> Measured:
    never = back_s != back_s
    return stage.measured(
        Arm.BARE,
        "back-after-heal",
        held=not never and back_s <= BACK_WITHIN_S,
        observed=f"not in {1.5 * BACK_WITHIN_S:g} s" if never else seconds(back_s),
        limit=seconds(BACK_WITHIN_S),
        samples=1,
        numbers={} if never else {"back_s": back_s},
    )

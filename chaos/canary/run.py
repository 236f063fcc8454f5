"""The measurement: two arms, one trace, turn by turn.

    warm-up        both arms replay the same requests, nothing is recorded
    first half     blocks of the trace, ABBA
    plays, drills  chosen scenarios and drills in both arms, the first arm swapped
    second half    the rest of the blocks: what a bad day has left behind
    last look      laws, breakers; then the directories are complete

The arms never run at once: two clusters on one machine would judge each other's load.
Whatever ends the run, faults are undone first; then directories say that they are not
complete, and why; clusters are stopped by who started them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from chaos.canary.cluster_arm import RESIDUAL, ClusterArm
from chaos.canary.drills import DRILLS, DrillSite, run_drill
from chaos.canary.schedule import ARMS, BASELINE, members_of, turns_of
from chaos.errors import ChaosError, UsageError
from chaos.load.replay import OpenLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.canary.arms import Arm
    from chaos.canary.play import Piece, Player
    from chaos.canary.recorder import Recorder, Row
    from chaos.canary.schedule import Block, Turn
    from chaos.load.sample import LoadRun
    from chaos.systems.base import Request

MAX_IN_FLIGHT = 64
LOOK_UPS = 20
"""Lookups that are timed one by one after each turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured. Blocks are numbered through; the first half goes first."""

    warm: tuple[Block, ...]
    first: tuple[Block, ...]
    second: tuple[Block, ...] = ()
    pieces: tuple[Piece, ...] = ()
    drills: bool = False
    roam: float = 0.5
    seed: int = 0
    timeout_s: float = 30.0
    look_ups: int = LOOK_UPS

    @property
    def requests(self) -> tuple[Request, ...]:
        blocks = (*self.warm, *self.first, *self.second)
        return tuple(each.request for block in blocks for each in block.requests)


@dataclass(slots=True)
class _Progress:
    """How far it is, and how long the rest takes at this pace."""

    total_s: float
    say: Callable[[str], object]
    clock: Callable[[], float]
    begin_s: float = 0.0
    done_s: float = 0.0

    def step(self, what: str, planned_s: float) -> None:
        """Tells what begins now."""
        spent_s = self.clock() - self.begin_s
        pace = spent_s / self.done_s if self.done_s else 1.0
        left_s = max(0.0, self.total_s - self.done_s) * max(pace, 0.1)
        self.say(f"{what}; {spent_s:.0f} s, about {left_s:.0f} s to go")
        self.done_s += planned_s


class StoppedEarly(Exception):
    """A look before the planned end has shown harm; the rest need not be measured."""


class CanaryRun:
    """One measurement of two arms that are started already.

    Args:
        arms: by label.
        recorders: by label.
        plan: what to measure.
        player: plays scenarios and builds injectors; None where nothing is broken.
        say: takes progress lines.
        look: asked when both arms have had the same; true ends the run: harm is shown.
    """

    def __init__(
        self,
        arms: Mapping[str, Arm],
        recorders: Mapping[str, Recorder],
        plan: Plan,
        *,
        player: Player | None = None,
        say: Callable[[str], object] = lambda _line: None,
        look: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        begin_s: float | None = None,
    ) -> None:
        self._look = look
        self._arms, self._recorders, self._plan = arms, recorders, plan
        self._player = player
        self._clock = clock
        self._begin_s = clock() if begin_s is None else begin_s
        self._turn = 0
        self._routes = _routes(arms, plan)
        self._progress = _Progress(
            _planned_s(plan, arms[BASELINE].time_scale), say, clock
        )

    def run(self) -> None:
        """Measures everything; both directories are complete when it returns.

        Raises:
            StoppedEarly: `look` has seen enough; the directories are not complete.
            ChaosError: An arm or the harness broke; the directories say so.
            BaseException: It was interrupted; the directories say so.
        """
        try:
            self._measure()
        except BaseException as error:
            for label, recorder in self._recorders.items():
                if isinstance(error, ChaosError):  # what was counted until then counts
                    recorder.checkpoint(self._arms[label].counters())
                recorder.broken(_told(error))
            raise
        for label in ARMS:
            self._recorders[label].complete()

    # -- inside ----------------------------------------------------------------------

    def _measure(self) -> None:
        plan, progress = self._plan, self._progress
        progress.begin_s = self._clock()
        for label in ARMS:
            self._blaming(label, lambda arm: arm.expect(plan.requests))
        for turn in self._turns(plan.warm):
            self._replay(turn, record=False)
        self._measure_blocks(plan.first)
        self._break_both()
        self._measure_blocks(plan.second)
        for label in ARMS:
            self._blaming(label, lambda arm: arm.finish())
            self._recorders[label].count(self._arms[label].counters())

    def _measure_blocks(self, blocks: Sequence[Block]) -> None:
        """ABBA; a look whenever both arms have replayed the same."""
        for block in blocks:
            for turn in self._turns([block]):
                self._replay(turn, record=True)
            self._maybe_enough()

    def _maybe_enough(self) -> None:
        for label in ARMS:
            self._recorders[label].checkpoint(self._arms[label].counters())
        if self._look():
            raise StoppedEarly

    def _turns(self, blocks: Sequence[Block]) -> tuple[Turn, ...]:
        turns = turns_of(blocks, first=self._turn)
        self._turn += len(turns)
        return turns

    def _replay(self, turn: Turn, *, record: bool) -> None:
        """One arm replays one block, and is idle again afterwards."""
        block = turn.block
        kind = "block" if record else "warm-up"
        what = f"turn {turn.number + 1}: {turn.arm}, {kind} {block.number}"
        self._progress.step(f"{what}, {len(block.requests)} requests", block.lasts_s)
        self._blaming(turn.arm, lambda arm: self._replay_on(arm, turn, record))

    def _replay_on(self, arm: Arm, turn: Turn, record: bool) -> None:
        requests = [each.request for each in turn.block.requests]
        before = arm.calls() if record else None
        began_s = self._clock() - self._begin_s
        run = self._loop(arm, requests).run()
        arm.settle()
        after = arm.calls() if record else None
        if record:
            looked_up = self._look_up(arm, requests)
            rpcs = _share(before, after, len(requests))
            self._record(arm, turn, run, began_s, rpcs, looked_up)

    def _loop(self, arm: Arm, requests: list[Request]) -> OpenLoop:
        members, routes = arm.members, self._routes
        return OpenLoop(
            arm.send,
            requests,
            route=lambda request: members[routes[request.request_id]],
            max_in_flight=MAX_IN_FLIGHT,
            timeout_s=self._plan.timeout_s,
            abort=arm.abort,
        )

    def _look_up(self, arm: Arm, requests: list[Request]) -> float | None:
        """The median of lookups that are timed one by one, in the quiet after a turn.

        One sample a turn: what was timed within a few milliseconds met one moment of
        the machine, and would be taken for many.
        """
        asked = requests[: self._plan.look_ups]
        found = [arm.look_up(request) for request in asked]
        known = [seconds for seconds in found if seconds is not None]
        return median(known) if known else None

    def _record(
        self,
        arm: Arm,
        turn: Turn,
        run: LoadRun,
        began_s: float,
        rpcs: float | None,
        looked_up: float | None,
    ) -> None:
        """Rows in the order of the trace.

        Calls to the control plane are known for the whole turn only: one row of it
        carries their number a request, so that nobody takes it for many samples. It
        carries the turn's lookup as well.
        """
        once = {"lookup_ms": _in_ms(looked_up), "rpcs": rpcs}
        samples = {sample.request.request_id: sample for sample in run.samples}
        for at, numbered in enumerate(turn.block.requests):
            sample = samples[numbered.request.request_id]
            at_s = began_s + numbered.request.at_s
            row = arm.row(numbered, sample, turn=turn.number, at_s=at_s)
            self._recorders[turn.arm].row(_with(row, once if at == 0 else {}))

    # -- chaos -----------------------------------------------------------------------

    def _break_both(self) -> None:
        """Scenarios and drills; who goes first is swapped from one to the next."""
        for at, piece in enumerate(self._plan.pieces):
            for label in ARMS if at % 2 == 0 else ARMS[::-1]:
                self._play(piece, label)
            self._maybe_enough()
        if self._plan.drills:
            for at, name in enumerate(DRILLS):
                for label in ARMS if at % 2 == 0 else ARMS[::-1]:
                    self._progress.step(f"drill {name} on the {label}", 2.0)
                    self._blaming(label, partial(self._drill, name))

    def _play(self, piece: Piece, label: str) -> None:
        planned_s = piece.schedule.load_s * self._arms[label].time_scale
        self._progress.step(f"playing {piece.name} on the {label}", planned_s)
        turn, self._turn = self._turn, self._turn + 1
        recorder = self._recorders[label]

        def play(arm: Arm) -> None:
            assert self._player is not None
            self._player.play(piece, _cluster_arm(arm), recorder, turn=turn)

        self._blaming(label, play)

    def _drill(self, name: str, arm: Arm) -> None:
        """One drill on one arm; one that cannot be done is told, and counts nothing."""
        assert self._player is not None
        mine = _cluster_arm(arm)
        injector = self._player.injector(mine)
        site = DrillSite(cluster=mine.cluster, inject=injector, round=self._plan.seed)
        try:
            drilled = run_drill(name, site)
        finally:
            mine.add({RESIDUAL: len(injector.residual)})
        mine.add(drilled.counters)
        if drilled.why_not:
            self._progress.say(f"no {name} on the {arm.label}: {drilled.why_not}")

    def _blaming(self, label: str, act: Callable[[Arm], object]) -> None:
        """Does something with an arm; what breaks says which arm it was."""
        try:
            act(self._arms[label])
        except ChaosError as error:
            error.add_note(f"on the {label}")
            raise


def warm_up(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The first block once more under other request ids, so that caches are as warm
    in one arm as in the other before anything counts."""
    if not blocks:
        return ()
    first = blocks[0]
    return (
        replace(
            first,
            requests=tuple(
                replace(
                    each,
                    request=replace(
                        each.request, request_id=f"warm-{each.request.request_id}"
                    ),
                )
                for each in first.requests
            ),
        ),
    )


def same_members(arms: Mapping[str, Arm]) -> int:
    """How many members each arm has.

    Raises:
        UsageError: One has more than the other.
    """
    counts = {label: len(arm.members) for label, arm in arms.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{label} {count}" for label, count in counts.items())
        problem = f"arms must have the same number of members: {told}"
        raise UsageError(problem, "a load that is spread otherwise compares nothing")
    return counts[BASELINE]


def _routes(arms: Mapping[str, Arm], plan: Plan) -> dict[str, int]:
    members = same_members(arms)
    return members_of(plan.requests, members, roam=plan.roam, seed=plan.seed)


def _planned_s(plan: Plan, scale: float) -> float:
    blocks = (*plan.warm, *plan.first, *plan.second)
    plays_s = scale * sum(piece.schedule.load_s for piece in plan.pieces)
    return 2 * (sum(block.lasts_s for block in blocks) + plays_s) + 6.0


def _share(before: int | None, after: int | None, requests: int) -> float | None:
    """Calls a request in a turn; None when nobody counted, or the count went back."""
    if before is None or after is None or after < before or not requests:
        return None
    return (after - before) / requests


def _in_ms(seconds: float | None) -> float | None:
    """Milliseconds: its name tells that no request of the load has it as its time."""
    return None if seconds is None else seconds * 1000


def _with(row: Row, more: Mapping[str, float | None]) -> Row:
    known = {name: value for name, value in more.items() if value is not None}
    return replace(row, metrics={**row.metrics, **known})


def _cluster_arm(arm: Arm) -> ClusterArm:
    if not isinstance(arm, ClusterArm):
        problem = f"the {arm.label} is run by somebody else: no chaos is played there"
        raise UsageError(problem, "leave --scenario and --drills out")
    return arm


def _told(error: BaseException) -> str:
    """An error in one line for `meta.json`, with the arm that it happened on."""
    notes = getattr(error, "__notes__", [])
    first = (str(error).strip().splitlines() or [""])[0][:300]
    where = f" {notes[0]}" if notes else ""
    return f"{type(error).__name__}: {first}{where}"

"""The engine that plays a scenario, through the same injector that the suites use.

One thread walks the schedule, one step at a time and in its order: what is to be undone
is undone before anything begins, so a fault is over before the next one starts. Between
steps it looks at the lever and at the abort conditions, ten times a second; whichever
trips, faults are undone first, newest first, and everything else comes after. Whatever
ends the walk, nothing stays broken.

Nothing here knows the target: a schedule and a seed give the same faults on all.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from chaos.errors import FaultNotInjected, NotHere, ResidualFault, UsageError
from chaos.judge.verdict import Verdict
from chaos.load.generate import GeneratorSettings, generate
from chaos.scenario.kinds import STARTS_A_ROLE, Effect, kinds
from chaos.scenario.pulse import Pulse, PulseCount
from chaos.scenario.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.driver import LoadDriver, Running
    from chaos.faults.injector import Injection, Injector
    from chaos.judge.verdict import Judgement
    from chaos.load.sample import LoadRun
    from chaos.safety.abort import Condition, Reading
    from chaos.safety.halt import LeverPoll, Pulled
    from chaos.scenario.schedule import PlannedFault, Schedule
    from chaos.scenario.schema import Scenario
    from chaos.steady import SteadyState
    from chaos.systems.base import Cluster, Request

LOOK_S = 0.1
POLL_S = 0.02
MAX_REQUESTS = 200_000
START_S = 1.5
"""Real seconds that a role takes to start, whatever the factor on times."""
_DRAIN_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a scenario is played on; in a suite these are the fixtures."""

    cluster: Cluster
    inject: Injector
    load: LoadDriver
    steady: SteadyState


@dataclass(slots=True, kw_only=True)
class Played:
    """Everything that was seen; nothing is judged yet."""

    scenario: Scenario
    schedule: Schedule
    scale: float
    before: Judgement | None = None
    after: Judgement | None = None
    run: LoadRun | None = None
    local_only: LoadRun | None = None
    expected: Mapping[str, str] = field(default_factory=dict)
    watch: Watch | None = None
    pulse: PulseCount = field(default_factory=PulseCount)
    tripped: Reading | None = None
    broken_limits: dict[Condition, Reading] = field(default_factory=dict)
    known: set[Condition] = field(default_factory=set)
    halted: Pulled | None = None
    not_injected: list[str] = field(default_factory=list)
    not_here: list[NotHere] = field(default_factory=list)
    residual: list[str] = field(default_factory=list)
    first_fault_s: float = math.inf
    last_undone_s: float = -math.inf
    spent_s: float = 0.0
    """How long injecting and undoing took; the schedule stood still meanwhile."""

    @property
    def stopped_early(self) -> bool:
        """It did not come to its end, so what was not seen is not known."""
        return bool(
            self.tripped
            or self.halted
            or self.not_injected
            or self.not_here
            or self.residual
        )

    @property
    def abort_conditions(self) -> list[Condition]:
        return [spec.condition(self.scale) for spec in self.scenario.abort]

    @property
    def limits_during(self) -> list[Condition]:
        return [
            spec.condition(self.scale) for spec in self.scenario.steady_state.during
        ]

    @property
    def recovery_slo_s(self) -> float:
        return self.scenario.steady_state.recovery_slo * self.scale


def play(
    scenario: Scenario,
    schedule: Schedule,
    stage: Stage,
    *,
    lever: LeverPoll,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Played:
    """Plays a scenario once and returns what was seen, with nothing left broken.

    Args:
        scenario: as loaded.
        schedule: its faults in the system's own seconds; scaled here.
        stage: a running, empty cluster and what acts on it.
        lever: asked all the time; pulled, everything is undone and the play ends.
        clock: seconds, monotonic, the clock of the load.
        wait: sleeps.

    Raises:
        UsageError: The scenario is longer than anybody would play.
    """
    return _Player(scenario, schedule, stage, lever, clock, wait).play()


def requests_of(scenario: Scenario, schedule: Schedule, scale: float) -> list[Request]:
    """The trace of a scenario, from the same seed as its faults.

    It lasts longer by what starting processes takes, so that the load outlives the
    last fault.

    Raises:
        UsageError: It would have too many requests.
    """
    load = scenario.load
    starts = sum(fault.kind in STARTS_A_ROLE for fault in schedule.faults)
    load_s = schedule.load_s + starts * START_S / scale
    count = max(1, math.ceil(load_s * load.rate_per_s))
    if count > MAX_REQUESTS:
        problem = f"{scenario.name}: the load would be {count} requests"
        raise UsageError(problem, f"at most {MAX_REQUESTS}: shorten it or lower rate")
    settings = GeneratorSettings(
        requests=count,
        rate_per_s=load.rate_per_s / scale,
        sessions=load.sessions,
        system_prompts=load.system_prompts,
        system_blocks=load.system_blocks,
        turn_median=load.turn_median,
        max_input_tokens=load.max_input_tokens,
        request_prefix="s",
    )
    return generate(settings, random.Random(f"{schedule.seed}:{scenario.name}:load"))


def routes_of(
    scenario: Scenario,
    schedule: Schedule,
    requests: Sequence[Request],
    engines: Sequence[str],
) -> dict[str, str]:
    """The engine of every request: its session's, or any one if it roams."""
    dice = random.Random(f"{schedule.seed}:{scenario.name}:route")
    home = {
        session: dice.choice(engines)
        for session in dict.fromkeys(request.session for request in requests)
    }
    roam = scenario.load.roam
    return {
        request.request_id: dice.choice(engines)
        if dice.random() < roam
        else home[request.session]
        for request in requests
    }


class _Player:
    """One play: the faults that are in place, and when the next thing is due."""

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        stage: Stage,
        lever: LeverPoll,
        clock: Callable[[], float],
        wait: Callable[[float], None],
    ) -> None:
        scale = stage.cluster.spec.time_scale
        self.seen = Played(
            scenario=scenario, schedule=schedule.scaled(scale), scale=scale
        )
        self._requests = requests_of(scenario, schedule, scale)
        engines = stage.cluster.engines
        routes = routes_of(scenario, schedule, self._requests, engines)
        self._route = lambda request: routes[request.request_id]
        self._stage = stage
        self._lever = lever
        self._clock = clock
        self._wait = wait
        self._active: dict[int, tuple[PlannedFault, Injection]] = {}
        self._waiting = list(self.seen.schedule.faults)
        self._looked_s = -math.inf
        self._effects = {name: kind.effect for name, kind in kinds().items()}

    def play(self) -> Played:
        """Steady, then broken under load, then steady again."""
        seen, stage, scenario = self.seen, self._stage, self.seen.scenario
        seen.halted = self._lever()
        if seen.halted:
            return seen
        patience_s = scenario.steady_state.before * seen.scale
        seen.before = stage.steady(patience_s, "steady state before anything is broken")
        if seen.before.verdict is not Verdict.PASS:
            return seen  # nothing was done, so there is nothing to undo
        if "O5" in scenario.judge:
            seen.local_only = self._without_cache()
        self._under_load()
        words = "recovered: steady state after the last fault was undone"
        seen.after = stage.steady(seen.recovery_slo_s, words)
        return seen

    def _without_cache(self) -> LoadRun:
        """The arm that O5 compares with: the same trace, every engine on its own."""
        cluster = self._stage.cluster
        for engine in cluster.engines:
            cluster.local_only(engine, True)
        try:
            return self._stage.load(self._requests, arm="local_only", route=self._route)
        finally:
            for engine in cluster.engines:
                cluster.local_only(engine, False)
                cluster.flush_local(engine)

    def _under_load(self) -> None:
        seen, stage, load = self.seen, self._stage, self.seen.scenario.load
        seen.expected = stage.load.expected(self._requests)
        watch = seen.watch = Watch(stage.cluster, seen.expected)
        pulse = Pulse(
            stage.cluster,
            every_s=load.pulse * seen.scale,
            stores=self._stores_in_order(),
            window=watch.window,
            name=f"{seen.schedule.seed}-{stage.inject.clock():.6f}",
        )
        seen.pulse = pulse.count
        with (
            pulse,
            stage.load.running(
                self._requests,
                arm="fault",
                route=self._route,
                timeout_s=load.timeout * seen.scale,
                on_sample=watch.sample,
                on_send=watch.sent,
            ) as running,
        ):
            self._walk_safely(running)
        seen.run = running.run

    def _walk_safely(self, running: Running) -> None:
        """Walks the schedule; whatever ends the walk, faults are undone first."""
        try:
            self._walk(running)
        except BaseException as error:
            try:
                self._undo_all()
            except Exception as second:
                error.add_note(f"and then: {second}")
            raise
        self._undo_all()
        if self.seen.stopped_early:
            running.stop()

    def _walk(self, running: Running) -> None:
        """Until everything is over and undone, or something stops it early.

        The schedule's clock stands still while a step is under way (a process that
        starts takes its time, whatever the scale): order and gaps stay as written.
        """
        begin_s = self._clock()
        while not self.seen.stopped_early:
            at_s = self._clock() - begin_s - self.seen.spent_s
            step = self._next(at_s)
            if step is not None:
                self._timed(step)
            self._look(force=step is not None)
            idle = not (self._active or self._waiting)
            if idle and (running.done or at_s >= self._latest_s()):
                return
            if step is None:
                self._wait(self._pause_s(at_s))

    def _next(self, at_s: float) -> Callable[[], None] | None:
        """The earliest step that is due: an end goes before a beginning."""
        ends = [
            (fault.end_s, -fault.number, partial(self._undo, fault, injection))
            for fault, injection in self._active.values()
        ]
        end_s, _, undo = min(ends, key=itemgetter(0, 1), default=(math.inf, 0, None))
        begin_s = self._waiting[0].at_s if self._waiting else math.inf
        if min(end_s, begin_s) > at_s:
            return None
        return undo if end_s <= begin_s else self._begin_first

    def _timed(self, step: Callable[[], None]) -> None:
        begin_s = self._clock()
        try:
            step()
        finally:
            self.seen.spent_s += self._clock() - begin_s

    def _latest_s(self) -> float:
        """When the last requests have had their timeout, and some."""
        timeout_s = self.seen.scenario.load.timeout * self.seen.scale
        return self.seen.schedule.load_s + timeout_s + _DRAIN_MARGIN_S

    def _pause_s(self, at_s: float) -> float:
        """Until the next thing is due, but a short while at most."""
        due = [fault.at_s for fault in self._waiting[:1]]
        due += [fault.end_s for fault, _ in self._active.values()]
        return min(max(min(due, default=math.inf) - at_s, 0.0), POLL_S)

    # -- faults --------------------------------------------------------------------

    def _begin_first(self) -> None:
        self._begin(self._waiting.pop(0))

    def _begin(self, fault: PlannedFault) -> None:
        """Injects one fault; one that cannot be injected ends the play, unproved."""
        seen, inject = self.seen, self._stage.inject
        assert seen.watch is not None
        try:
            build = getattr(inject, fault.kind)
            injection: Injection = build(fault.target, **fault.parameters)
            seen.watch.begins(fault, self._clock())
            self._active[fault.number] = (fault, injection)
            seen.first_fault_s = min(seen.first_fault_s, self._clock())
            injection.start()
        except NotHere as error:
            seen.not_here.append(error)
            self._gave_up(fault)
        except (FaultNotInjected, UsageError) as error:
            seen.not_injected.append(f"{fault.name}: {error}")
            self._gave_up(fault)

    def _gave_up(self, fault: PlannedFault) -> None:
        """Half of it may be there, and was undone by the injection itself."""
        entry = self._active.pop(fault.number, None)
        if entry is not None:
            self._ended(*entry)

    def _undo(self, fault: PlannedFault, injection: Injection) -> None:
        """Undoes one fault; when that is interrupted it stays active, to be retried."""
        with contextlib.suppress(ResidualFault):  # told once, by `_ended`
            injection.stop()
        self._active.pop(fault.number, None)
        self._ended(fault, injection)

    def _ended(self, fault: PlannedFault, injection: Injection) -> None:
        seen = self.seen
        assert seen.watch is not None
        seen.watch.ends(fault, self._clock())
        seen.last_undone_s = self._clock()
        left = injection.receipt.residual
        if left:
            seen.residual.append(f"{fault.name}: {left}")

    def _undo_all(self) -> None:
        """Everything that is still in place, newest first, whatever fails.

        Raises:
            ExceptionGroup: What went wrong while undoing, beside residual faults.
        """
        errors: list[Exception] = []
        for fault, injection in reversed(list(self._active.values())):
            try:
                self._undo(fault, injection)
            except Exception as error:
                errors.append(error)
        if errors:
            message = f"{len(errors)} faults could not be undone orderly"
            raise ExceptionGroup(message, errors)

    # -- looking -------------------------------------------------------------------

    def _look(self, *, force: bool = False) -> None:
        """The lever, then the conditions, while a fault is active."""
        now_s = self._clock()
        if not force and now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        seen = self.seen
        seen.halted = seen.halted or self._lever()
        if not self._breaking() or seen.watch is None or seen.halted:
            return
        for reading in seen.watch.look(seen.abort_conditions, now_s):
            self._note(reading)
            if reading.tripped and seen.tripped is None:
                seen.tripped = reading
        for reading in seen.watch.look(seen.limits_during, now_s):
            self._note(reading)
            if reading.tripped:
                seen.broken_limits.setdefault(reading.condition, reading)

    def _note(self, reading: Reading) -> None:
        if reading.known:
            self.seen.known.add(reading.condition)

    def _breaking(self) -> bool:
        """Whether something is really broken now; a tap only counts."""
        return any(
            self._effects[fault.kind] is not Effect.NONE
            for fault, _ in self._active.values()
        )

    def _stores_in_order(self) -> tuple[str, ...]:
        """The stores that faults are on come first."""
        targets = [fault.target for fault in self.seen.schedule.faults]
        stores: Sequence[str] = self._stage.cluster.stores
        return tuple(
            sorted(stores, key=lambda store: not any(store in t for t in targets))
        )

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.errors import FaultNotInjected, HarnessError, NotHere, UsageError
from chaos.judge.verdict import Verdict
from chaos.safety.halt import Pulled
from chaos.scenario.load import parse_scenario
from chaos.scenario.player import requests_of, routes_of
from chaos.scenario.schedule import schedule_of

TWO = """
name: two
timeline:
  - {fault: kill, target: store-1, at: 10s, for: 10s}
  - {fault: latency, target: store-2, latency_ms: 100, at: 15s, for: 20s}
abort: [{wrong_bytes: 0}]
load: {rate_per_s: 1, pulse: 0, after: 10s}
judge: [O1]
"""
WATCHED = """
name: watched
timeline:
  - {fault: kill, target: store-1, at: 20s, for: 30s}
abort:
  - {error_rate: 10%, window: 10s, samples: 5}
load: {rate_per_s: 2, pulse: 0, after: 10s}
steady_state: {during: [{error_rate: 0%, window: 10s, samples: 5}]}
judge: [O1]
"""
PULLED = Pulled(reason="an outage", by="op", at="now", where="here")


def test_faults_begin_and_end_when_the_file_says(theatre) -> None:
    played = theatre.play(TWO)

    assert theatre.log == [
        (10.0, "+kill store-1"),
        (15.0, "+latency store-2"),
        (20.0, "-kill store-1"),
        (35.0, "-latency store-2"),
    ]
    assert not played.stopped_early


def test_parameters_reach_the_fault(theatre) -> None:
    theatre.play(TWO)

    assert theatre.inject.built[1] == ("latency", "store-2", {"latency_ms": 100})


def test_times_shrink_with_the_time_scale(theatre) -> None:
    theatre.cluster.spec = replace(theatre.cluster.spec, time_scale=0.1)

    theatre.play(TWO)

    assert theatre.log[0] == (1.0, "+kill store-1")
    assert theatre.log[-1] == (3.5, "-latency store-2")
    assert theatre.inject.built[1][2] == {"latency_ms": 10}


def test_what_ends_is_undone_before_what_begins_at_the_same_instant(theatre) -> None:
    theatre.play(TWO.replace("at: 15s", "at: 20s"))

    assert theatre.log[1:3] == [(20.0, "-kill store-1"), (20.0, "+latency store-2")]


def test_order_and_gaps_hold_when_a_step_takes_long(theatre) -> None:
    """A process that starts for 30 s must not make later faults meet each other."""
    theatre.inject.settings["kill"] = {"takes_s": 30.0}

    played = theatre.play(TWO)

    assert theatre.log == [
        (10.0, "+kill store-1"),
        (45.0, "+latency store-2"),
        (50.0, "-kill store-1"),
        (65.0, "-latency store-2"),
    ]
    assert played.spent_s == pytest.approx(30.0)


def test_faults_that_end_together_are_undone_newest_first(theatre) -> None:
    theatre.play(
        """
        name: together
        timeline:
          - together:
              - {fault: latency, target: store-2, latency_ms: 1}
              - {fault: pause, target: store-2, delay: 2s}
            at: 10s
            for: 10s
        abort: [{wrong_bytes: 0}]
        load: {pulse: 0, after: 5s}
        """
    )

    assert theatre.log == [
        (10.0, "+latency store-2"),
        (12.0, "+pause store-2"),
        (20.0, "-pause store-2"),
        (20.0, "-latency store-2"),
    ]


def test_the_load_goes_on_after_the_last_fault(theatre) -> None:
    played = theatre.play()

    last = max(sample.intended_s for sample in played.run.samples)
    assert last > played.last_undone_s + 5


def test_nothing_is_broken_when_the_system_is_not_steady_before(theatre) -> None:
    """K2: undo only what was applied."""
    theatre.steady.verdicts = [Verdict.FAIL]

    played = theatre.play()

    assert theatre.log == []
    assert played.run is None
    assert len(theatre.steady.asked) == 1


def test_steady_state_is_asked_for_again_after_everything_is_undone(theatre) -> None:
    played = theatre.play()

    assert [within for within, _ in theatre.steady.asked] == [100.0, 100.0]
    assert played.after is not None


def test_an_abort_condition_has_faults_undone_at_once(theatre) -> None:
    theatre.load.answer = lambda sample: failed(sample, 25.0)

    played = theatre.play(WATCHED)

    assert played.tripped is not None
    (begin, _), (end, what) = theatre.log
    assert what == "-kill store-1"
    assert begin == 20.0
    assert 25.0 < end < 28.0, "long before the 50 s of the file"
    assert theatre.load.running_now.stopped_at_s >= end, "reverted first, then stopped"
    assert played.after is not None


def test_errors_before_any_fault_do_not_trip(theatre) -> None:
    theatre.load.answer = lambda sample: failed(sample, 0.0, 8.0)

    played = theatre.play(WATCHED)

    assert played.tripped is None


def test_a_limit_during_the_fault_is_noted_and_nothing_is_cut_short(theatre) -> None:
    one = []

    def first_after(sample):
        if sample.intended_s < 25.0 or one:
            return sample
        one.append(sample)
        return failed(sample, 0.0)

    theatre.load.answer = first_after

    played = theatre.play(WATCHED)

    assert played.tripped is None
    assert len(played.broken_limits) == 1
    assert theatre.log[-1] == (50.0, "-kill store-1")


def test_wrong_bytes_trip_at_once(theatre) -> None:
    def wrong(sample):
        answer = replace(sample.answer, output_hash="wrong")
        return replace(sample, answer=answer) if sample.intended_s > 12 else sample

    theatre.load.answer = wrong

    played = theatre.play()

    assert played.tripped.condition.measure.value == "wrong_bytes"
    assert theatre.log[-1][0] < 15.0


def test_a_role_that_no_fault_is_on_and_that_dies_trips(theatre) -> None:
    theatre.clock.at(22.0, lambda: theatre.cluster.dead.update({"store-1", "engine-1"}))

    played = theatre.play(
        WATCHED.replace(
            "{error_rate: 10%, window: 10s, samples: 5}\nload",
            "{role_not_healthy: 3s}\nload",
        )
    )

    assert played.tripped is not None
    assert played.tripped.detail == "engine-1", "store-1 is under the fault itself"


def test_a_pulled_lever_undoes_everything_within_about_a_second(theatre) -> None:
    theatre.clock.at(21.0, lambda: setattr(theatre.lever, "pulled", PULLED))

    played = theatre.play(WATCHED)

    assert played.halted == PULLED
    assert theatre.log[-1][1] == "-kill store-1"
    assert theatre.log[-1][0] <= 22.2


def test_a_pulled_lever_lets_nothing_begin(theatre) -> None:
    theatre.lever.pulled = PULLED

    played = theatre.play()

    assert played.halted == PULLED
    assert theatre.log == []
    assert theatre.steady.asked == []


def test_a_fault_that_is_not_there_ends_the_play_and_the_others_are_undone(
    theatre,
) -> None:
    error = FaultNotInjected(fault="latency", target="store-2", reason="500")
    theatre.inject.settings["latency"] = {"error": error}

    played = theatre.play(TWO)

    assert [*played.not_injected] == [
        "latency(store-2, latency_ms=100): latency was not injected on store-2: 500"
    ]
    assert theatre.names == [
        "+kill store-1",
        "+latency store-2",
        "-latency store-2",
        "-kill store-1",
    ]


def test_what_a_target_cannot_do_is_told_apart(theatre) -> None:
    error = NotHere(capability="netem", target="netns", reason="no module")
    theatre.inject.settings["latency"] = {"error": error}

    played = theatre.play(TWO)

    assert played.not_here == [error]
    assert played.not_injected == []
    assert theatre.names[-1] == "-kill store-1"


def test_an_undo_that_fails_is_residual_and_the_rest_is_undone(theatre) -> None:
    """K2: bad undo."""
    theatre.inject.settings["kill"] = {"residual": "still dead"}

    played = theatre.play(TWO)

    assert played.residual == ["kill(store-1): still dead"]
    assert theatre.names[-1] == "-latency store-2"
    assert theatre.inject.residual[0].residual == "still dead"


@pytest.mark.parametrize("error", [HarnessError("broke"), KeyboardInterrupt()])
def test_whatever_ends_the_walk_everything_is_undone_in_reverse(theatre, error) -> None:
    """K1: exception and interrupt."""

    def strike():
        raise error

    theatre.clock.at(17.0, strike)

    with pytest.raises(type(error)):
        theatre.play(TWO)

    assert theatre.names[2:] == ["-latency store-2", "-kill store-1"]


def test_an_interrupt_while_undoing_is_no_reason_to_leave_it_in(theatre) -> None:
    """Signals come whenever they like: the fault is undone on the second go."""
    seen = []

    def once(fault):
        if not seen:
            seen.append(fault)
            raise KeyboardInterrupt

    theatre.inject.settings["kill"] = {}
    make = theatre.inject._make

    def fragile(kind, target, parameters):
        injection = make(kind, target, parameters)
        revert = injection.fault.revert
        injection.fault.revert = lambda: (once(injection.fault), revert())
        return injection

    theatre.inject._make = fragile

    with pytest.raises(KeyboardInterrupt):
        theatre.play()

    assert theatre.names == ["+kill store-1", "-kill store-1"]
    assert not theatre.inject.residual


def test_a_tap_alone_breaks_nothing_so_nothing_trips(theatre) -> None:
    theatre.load.answer = lambda sample: failed(sample, 0.0)

    played = theatre.play(WATCHED.replace("kill", "tap"))

    assert played.tripped is None


def test_the_arm_of_o5_is_played_first_without_a_cache(theatre) -> None:
    played = theatre.play(TWO.replace("judge: [O1]", "judge: [O5]"))

    assert theatre.load.log == ["local_only"]
    assert played.local_only is not None
    assert theatre.cluster.alone[:2] == [("engine-0", True), ("engine-1", True)]
    assert theatre.cluster.alone[-2:] == [("engine-0", False), ("engine-1", False)]


def test_one_seed_is_one_trace_and_another_is_another() -> None:
    scenario = parse_scenario(TWO)
    one, two = schedule_of(scenario, seed=1), schedule_of(scenario, seed=2)

    assert requests_of(scenario, one, 0.1) == requests_of(scenario, one, 0.1)
    assert requests_of(scenario, one, 0.1) != requests_of(scenario, two, 0.1)


def test_half_of_the_requests_roam_and_find_their_prefix_in_the_pool_only() -> None:
    engines = ("engine-0", "engine-1", "engine-2", "engine-3")
    scenario = parse_scenario(TWO.replace("rate_per_s: 1", "rate_per_s: 20"))
    schedule = schedule_of(scenario)
    requests = requests_of(scenario, schedule, 1.0)

    routes = routes_of(scenario, schedule, requests, engines)
    affine = parse_scenario(TWO.replace("pulse: 0", "pulse: 0, roam: 0"))
    still = routes_of(affine, schedule, requests, engines)

    assert routes == routes_of(scenario, schedule, requests, engines)
    assert set(routes.values()) == set(engines)
    homes = {(request.session, still[request.request_id]) for request in requests}
    assert len(homes) == len({request.session for request in requests})
    moved = sum(routes[r.request_id] != still[r.request_id] for r in requests)
    assert 0.3 < moved / len(requests) < 0.45


def test_a_load_that_nobody_would_wait_for_is_refused() -> None:
    scenario = parse_scenario(TWO.replace("rate_per_s: 1", "rate_per_s: 9999"))

    with pytest.raises(UsageError, match="at most 200000"):
        requests_of(scenario, schedule_of(scenario), 1.0)


def failed(sample, begin_s, end_s=float("inf")):
    if not begin_s <= sample.intended_s < end_s:
        return sample
    return replace(sample, answer=replace(sample.answer, ok=False, error="down"))

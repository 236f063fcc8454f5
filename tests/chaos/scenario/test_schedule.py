from __future__ import annotations

import pytest

from chaos.scenario.load import parse_scenario
from chaos.scenario.schedule import scaled_parameters, schedule_of, windows

HEAD = "name: x\nabort: [{wrong_bytes: 0}]\nload: {after: 7s}\ntimeline:\n"


def schedule(step, seed=None, host_of=None):
    scenario = parse_scenario(HEAD + step)
    return schedule_of(scenario, seed=seed, host_of=host_of)


def seen(step):
    scenario = parse_scenario(HEAD + step)
    return windows(schedule_of(scenario), scenario)


RANDOM = """
- fault: latency
  target: {any: store}
  latency_ms: {between: [10, 500]}
  at: {between: [1s, 9s]}
  for: {one_of: [1s, 2s, 3s]}
  every: 10s
  times: 5
"""


def test_one_seed_is_one_schedule_and_another_is_another() -> None:
    assert schedule(RANDOM, seed=4) == schedule(RANDOM, seed=4)
    assert schedule(RANDOM, seed=4) != schedule(RANDOM, seed=5)


def test_the_file_has_a_seed_of_its_own() -> None:
    assert schedule(RANDOM) == schedule(RANDOM, seed=1)


def test_every_repetition_draws_anew_on_a_beat() -> None:
    faults = schedule(RANDOM, seed=4).faults

    assert len(faults) == 5
    beats = [fault.at_s - faults[0].at_s for fault in faults]
    assert beats == pytest.approx([0, 10, 20, 30, 40])
    assert len({fault.parameters["latency_ms"] for fault in faults}) > 1
    assert all(10 <= fault.parameters["latency_ms"] <= 500 for fault in faults)
    assert all(isinstance(fault.parameters["latency_ms"], int) for fault in faults)
    assert {fault.for_s for fault in faults} <= {1.0, 2.0, 3.0}


def test_each_takes_every_role_in_its_turn() -> None:
    faults = schedule("- {fault: restart, target: {each: store}, at: 5, every: 10}")

    assert [(f.target, f.at_s, f.for_s) for f in faults.faults] == [
        ("store-0", 5.0, 0.0),
        ("store-1", 15.0, 0.0),
        ("store-2", 25.0, 0.0),
        ("store-3", 35.0, 0.0),
    ]


def test_faults_together_share_a_group_and_may_be_delayed() -> None:
    first, second = schedule(
        "- {together: [{fault: kill, target: store-1, delay: 2s},"
        " {fault: pause, target: store-2}], at: 5, for: 10}"
    ).faults

    assert (first.kind, first.at_s, first.end_s) == ("pause", 5.0, 15.0)
    assert (second.kind, second.at_s, second.end_s) == ("kill", 7.0, 15.0)
    assert first.group == second.group != ""


def test_one_of_several_is_drawn() -> None:
    step = (
        "- {one_of: [{fault: kill, target: store-1}, {fault: pause, target: store-1}],"
        " at: 5, for: 10}"
    )
    kinds = {schedule(step, seed=seed).faults[0].kind for seed in range(20)}

    assert kinds == {"kill", "pause"}
    assert all(not fault.group for fault in schedule(step).faults)


def test_any_store_is_one_that_is_not_broken_already() -> None:
    step = (
        "- {fault: kill, target: store-1, at: 5, for: 10}\n"
        "- {fault: kill, target: {any: store}, at: 6, for: 3}"
    )
    drawn = {schedule(step, seed=seed).faults[1].target for seed in range(40)}

    assert drawn == {"store-0", "store-2", "store-3"}


def test_any_store_is_on_a_host_that_is_not_broken_already() -> None:
    step = (
        "- {fault: kill, target: store-1, at: 5, for: 10}\n"
        "- {fault: kill, target: {any: store}, at: 6, for: 3}"
    )
    hosts = {"store-0": "a", "store-1": "a", "store-2": "b", "store-3": "b"}
    drawn = {
        schedule(step, seed=seed, host_of=hosts.__getitem__).faults[1].target
        for seed in range(40)
    }

    assert drawn == {"store-2", "store-3"}


def test_when_all_are_broken_one_of_them_is_drawn_and_left_to_the_guard() -> None:
    step = (
        "- {fault: kill, target: store-1, at: 5, for: 10}\n"
        "- {fault: kill, target: {one_of: [store-1, store-1]}, at: 6, for: 3}"
    )

    assert schedule(step).faults[1].target == "store-1"


def test_the_load_ends_a_while_after_the_last_fault() -> None:
    found = schedule("- {fault: kill, target: store-1, at: 5, for: 10}")

    assert (found.ends_s, found.load_s) == (15.0, 22.0)


def test_scaling_keeps_proportions() -> None:
    found = schedule(
        "- {fault: bandwidth, target: store-1, kb_per_s: 50, at: 5, for: 10}"
    ).scaled(0.1)

    (fault,) = found.faults
    assert (fault.at_s, fault.for_s) == (0.5, 1.0)
    assert fault.parameters == {"kb_per_s": 500}
    assert found.load_s == pytest.approx(2.2)


def test_a_parameter_of_time_never_shrinks_to_nothing() -> None:
    given = {
        "latency_ms": 4,
        "jitter_ms": 0,
        "down_s": 0.5,
        "step_s": -2,
        "percent": 5,
        "rail": "rail0",
        "orderly": True,
    }

    assert scaled_parameters(given, 0.1) == {
        "latency_ms": 1,
        "jitter_ms": 0,
        "down_s": pytest.approx(0.05),
        "step_s": -1,
        "percent": 5,
        "rail": "rail0",
        "orderly": True,
    }


def test_from_reaches_the_builder_under_its_own_name() -> None:
    found = schedule(
        "- {fault: partition, target: store-1, from: engine-0, at: 1, for: 2}"
    )

    assert found.faults[0].parameters == {"from_": "engine-0"}


def test_a_killed_role_is_down_and_a_slow_one_is_not() -> None:
    killed, slow = seen(
        "- {fault: kill, target: store-1, at: 5, for: 10}\n"
        "- {fault: latency, target: store-2, latency_ms: 5, at: 6, for: 3}"
    )

    assert killed.down == {"store-1"}
    assert slow.roles == {"store-2"}
    assert slow.down == frozenset()


def test_one_rail_is_not_down_all_rails_are() -> None:
    (one,) = seen("- {fault: nic_down, target: store-1, at: 5, for: 10}")
    both = seen(
        "- {together: [{fault: nic_down, target: store-1, rail: rail0},"
        " {fault: nic_down, target: store-1, rail: rail1}], at: 5, for: 10}"
    )

    assert one.down == frozenset()
    assert [window.down for window in both] == [{"store-1"}, {"store-1"}]


def test_a_link_between_two_roles_takes_neither_down() -> None:
    (link,) = seen("- {fault: blackhole, target: master.rpc@engine-0, at: 5, for: 10}")

    assert link.roles == {"master", "engine-0"}
    assert link.down == frozenset()


def test_a_tap_is_on_nobody() -> None:
    (tap,) = seen("- {fault: tap, target: store-1, at: 5, for: 10}")

    assert tap.roles == frozenset()

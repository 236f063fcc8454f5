from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chaos.scenario.check import problems_of, role_names
from chaos.scenario.generate import (
    LOCAL_KINDS,
    Space,
    as_yaml,
    clashes,
    playable,
    random_document,
    random_scenario,
)
from chaos.scenario.load import parse_scenario
from chaos.scenario.plan import planned_cluster, too_much
from chaos.scenario.schedule import schedule_of

SPACE = Space(kinds=LOCAL_KINDS)


def document(seed):
    return random_document(random.Random(seed), SPACE, seed)


def test_one_seed_is_one_scenario_and_another_is_another() -> None:
    assert document(3) == document(3)
    assert document(3) != document(4)


@pytest.mark.parametrize("seed", range(30))
def test_every_scenario_would_be_let_in(seed) -> None:
    scenario = parse_scenario(as_yaml(document(seed)))
    cluster = planned_cluster(scenario)
    schedule = schedule_of(scenario, host_of=cluster.host_of)

    assert problems_of(scenario) == []
    assert too_much(scenario, schedule, cluster) == []
    assert clashes(schedule, role_names(scenario.cluster)) == []


def test_what_is_written_to_a_file_is_the_same_scenario() -> None:
    for seed in range(20):
        again = parse_scenario(as_yaml(document(seed)))

        assert again == random_scenario(random.Random(seed), SPACE, seed)


def test_all_kinds_and_shapes_come_up() -> None:
    documents = [document(seed) for seed in range(80)]
    steps = [step for one in documents for step in one["timeline"]]
    faults = [f for s in steps for f in s.get("together", s.get("one_of", [s]))]

    assert {fault["fault"] for fault in faults} == set(LOCAL_KINDS)
    assert any("together" in step for step in steps)
    assert any("one_of" in step for step in steps)
    assert any("every" in step for step in steps)
    assert {len(one["timeline"]) for one in documents} == {1, 2, 3, 4}


def test_a_kind_that_is_not_offered_never_comes_up() -> None:
    space = replace(SPACE, kinds={"pause": 1})
    kinds = {
        fault.kind
        for seed in range(20)
        for fault in schedule_of(
            random_scenario(random.Random(seed), space, seed)
        ).faults
    }

    assert kinds <= {"pause", "latency"}  # the latter when nothing else is let in


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            {"fault": "kill", "target": "store-1"},
            {"fault": "pause", "target": "store-1"},
        ),
        (
            {"fault": "pause", "target": "store-1"},
            {
                "fault": "failpoint",
                "target": "store-1",
                "name": "store.read",
                "spec": "on",
            },
        ),
        (
            {"fault": "restart", "target": "store-1"},
            {"fault": "pause", "target": "master"},
        ),
        (
            {"fault": "kill", "target": "store-1"},
            {"fault": "partition", "target": "store-1"},
        ),
    ],
)
def test_faults_that_cannot_be_together_are_not(first, second) -> None:
    one = {**document(1), "limits": {"max_nodes_down": 9, "allow_quorum_loss": True}}
    step = {"together": [first, second], "at": 5, "for": 5}

    assert not playable({**one, "timeline": [step]})
    assert playable({**one, "timeline": [{**first, "at": 5, **lasts(first)}]})


def lasts(fault):
    return {} if fault["fault"] == "restart" else {"for": 5}

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaos.errors import UsageError
from chaos.scenario.load import parse_scenario
from chaos.scenario.plan import plan_scenario, planned_cluster, refuse_too_much
from chaos.scenario.schedule import schedule_of
from chaos.targets.place import Place

ROOT = Path(__file__).parents[3]
TEXT = """
name: two rails
timeline:
  - together:
      - {fault: nic_down, target: store-1, rail: rail0}
      - {fault: kill, target: store-1, delay: 2s}
    at: 10s
    for: 10s
abort: [{error_rate: 5%}]
"""


def plan(text=TEXT, **given):
    scenario = parse_scenario(text)
    return plan_scenario(scenario, planned_cluster(scenario), **given)


def test_a_plan_has_times_steps_and_conditions_in_real_seconds() -> None:
    found = plan()

    assert [(step.at_s, step.for_s) for step in found.steps] == [
        (pytest.approx(1.0), pytest.approx(1.0)),
        (pytest.approx(1.2), pytest.approx(0.8)),
    ]
    assert found.runs
    text = "\n".join(found.lines())
    assert "abort when error_rate above 5.0 %" in text
    assert "add timeout {'timeout': 0} to the upstream of store-1.rail0" in text
    assert "SIGKILL to store-1" in text


def test_the_abort_that_nobody_wants_is_told_with_its_reason() -> None:
    text = TEXT.replace(
        "abort: [{error_rate: 5%}]", "abort: none\nabort_reason: a laptop"
    )

    assert "abort when never: a laptop" in plan(text).lines()


def test_a_plan_on_namespaces_has_commands_of_their_tools() -> None:
    scenario = parse_scenario(TEXT)
    cluster = planned_cluster(scenario, place=Place(kind="netns"))

    text = "\n".join(plan_scenario(scenario, cluster).lines())

    assert "ip link set" in text
    assert "CANNOT" not in text


def test_the_seed_decides_what_is_planned() -> None:
    text = TEXT.replace("target: store-1, rail: rail0", "target: {any: store}")
    names = {plan(text, seed=seed).steps[0].name for seed in range(20)}

    assert len(names) > 1


def test_what_is_too_much_is_refused_with_the_seed() -> None:
    scenario = parse_scenario(
        TEXT.replace("store-1", "master", 2).replace(
            "nic_down, target: master, rail: rail0", "pause, target: store-1"
        )
    )
    cluster = planned_cluster(scenario)

    with pytest.raises(UsageError, match=r"f\.yaml: seed 9: .*hosts are down"):
        refuse_too_much("f.yaml", scenario, schedule_of(scenario, seed=9), cluster)


def test_the_example_of_the_manual_can_be_played() -> None:
    manual = (ROOT / "docs/writing-a-scenario.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", manual, re.DOTALL)
    scenario = parse_scenario(example)

    for seed in range(10):
        found = plan_scenario(scenario, planned_cluster(scenario), seed=seed)
        assert found.runs, found.lines()


@pytest.mark.parametrize("path", sorted((ROOT / "suites/scenarios").glob("*.yaml")))
def test_the_files_of_the_suites_would_start(path) -> None:
    scenario = parse_scenario(path.read_text(), str(path))

    assert plan_scenario(scenario, planned_cluster(scenario)).runs

from __future__ import annotations

from pathlib import Path

import chaos.faults as build
from chaos.scenario.kinds import INSTANT, RAIL_DOWN, STARTS_A_ROLE, Effect, kinds


def test_every_fault_of_the_house_can_stand_in_a_scenario() -> None:
    assert set(kinds()) == set(build.__all__) - {"links_of"}


def test_parameters_are_those_of_the_builders() -> None:
    found = kinds()["latency"].parameters

    assert {name: one.required for name, one in found.items()} == {
        "latency_ms": True,
        "jitter_ms": False,
    }


def test_a_parameter_has_the_name_that_people_write() -> None:
    assert kinds()["partition"].parameters["from"].argument == "from_"


def test_a_truth_value_is_no_number_and_a_number_no_truth_value() -> None:
    orderly = kinds()["restart"].parameters["orderly"]
    latency = kinds()["latency"].parameters["latency_ms"]

    assert orderly.accepts(True)
    assert not orderly.accepts(1)
    assert latency.accepts(1)
    assert not latency.accepts(True)


def test_the_manual_has_every_kind_its_parameters_and_whether_it_takes_down() -> None:
    manual = (Path(__file__).parents[3] / "docs/writing-a-scenario.md").read_text()
    table = manual.partition("## Kinds")[2].partition("Links are")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]

    for name, kind in kinds().items():
        (row,) = [line for line in rows if f"`{name}`" in line.split("|")[1]]
        assert all(f"`{parameter}`" in row for parameter in kind.parameters), row
        assert (row.split("|")[4].strip() == "yes") == (kind.effect is Effect.DOWN)


def test_what_the_sets_name_exists() -> None:
    assert set(kinds()) >= INSTANT | RAIL_DOWN | STARTS_A_ROLE


def test_what_ends_a_process_takes_it_down() -> None:
    found = kinds()

    assert {found[name].effect for name in ("kill", "pause", "restart")} == {
        Effect.DOWN
    }
    assert found["tap"].effect is Effect.NONE

from __future__ import annotations

import pytest

from chaos.scenario.check import roles_in, roles_of
from chaos.scenario.errors import ScenarioError
from chaos.scenario.load import parse_scenario
from chaos.scenario.schema import Shape

HEAD = "name: x\nabort: [{wrong_bytes: 0}]\ntimeline:\n"


def told(step: str) -> str:
    with pytest.raises(ScenarioError) as refused:
        parse_scenario(HEAD + step)
    return "\n".join(refused.value.lines)


def good(step: str):
    return parse_scenario(HEAD + step).timeline[0]


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("- {at: 1, for: 2}", "does not say what is broken"),
        ("- {fault: kill, at: 1, for: 2}", "has a fault without a target"),
        (
            "- {fault: kill, target: store-1, together:"
            " [{fault: kill, target: store-2}], at: 1, for: 2}",
            "does not say what is broken",
        ),
        (
            "- {together: [{fault: kill, target: store-2}], rail: r, at: 1, for: 2}",
            "belongs to no fault",
        ),
        (
            "- {fault: restart, target: store-1, at: 1, for: 2}",
            "timeline[0].for: has no meaning here",
        ),
        (
            "- {fault: kill, target: store-1, at: 1, for: 2, every: 3}",
            "repeats without an end or a beat",
        ),
        (
            "- {fault: kill, target: store-1, at: 1, for: 2, times: 3}",
            "repeats without an end or a beat",
        ),
        (
            "- {fault: kill, target: store-1, at: 1, for: 4, every: 3, times: 2}",
            "is shorter than `for` (4 s)",
        ),
        (
            "- {fault: kill, target: store-1, at: 1, for: {between: [1, 4]},"
            " every: 3, times: 2}",
            "is shorter than `for` (4 s)",
        ),
        (
            "- {fault: kill, target: {each: store}, at: 1, for: 2}",
            "repeats without an end or a beat",
        ),
        (
            "- {fault: kill, target: {each: store}, at: 1, for: 2, every: 3, times: 2}",
            "takes every role once",
        ),
        (
            "- {fault: latency, target: store-1, at: 1, for: 2}",
            "latency_ms: is missing",
        ),
        (
            "- {fault: latency, target: store-1, latency_ms: true, at: 1, for: 2}",
            "is no int",
        ),
        (
            "- {fault: latency, target: store-1, latency_ms: {one_of: [1, x]},"
            " at: 1, for: 2}",
            "'x' is no int",
        ),
        (
            "- {together: [{fault: kill, target: store-1, delay: 5}], at: 1, for: 5}",
            "is not shorter than `for` (5 s)",
        ),
        (
            "- {one_of: [{fault: kill, target: store-1, delay: 5}], at: 1, for: 9}",
            "has no meaning here",
        ),
        (
            "- {fault: kill, target: store-1, at: {between: [5, 1]}, for: 9}",
            "the smaller one first",
        ),
        (
            "- {fault: kill, target: store-1, at: {betwen: [1, 5]}, for: 9}",
            "is a choice: {between: [low, high]} or {one_of: [a, b]}",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_reason(step, problem) -> None:
    assert problem in told(step)


@pytest.mark.parametrize(
    "step",
    [
        "- {fault: kill, target: store-1, at: 1, for: 2, every: 2, times: 2}",
        "- {fault: restart, target: {each: store}, at: 1, every: 5}",
        "- {fault: partition, target: store-1, from: engine-0, at: 1, for: 2}",
        "- {fault: latency, target: store-1.rail0, latency_ms: 5, at: 1, for: 2}",
        "- {fault: reset, target: master.rpc@engine-0, at: 1, for: 2}",
        "- {fault: kill, target: {one_of: [store-0, master]}, at: 1, for: 2}",
    ],
)
def test_what_can_be_played_is_let_in(step) -> None:
    assert good(step).faults


def test_the_roles_of_a_link_are_its_two_ends() -> None:
    roles = frozenset({"master", "store-1", "engine-0"})

    assert roles_in("store-1.rail0", roles) == {"store-1"}
    assert roles_in("master.rpc@engine-0", roles) == {"master", "engine-0"}
    assert roles_in("nobody", roles) == frozenset()


def test_roles_are_counted_from_the_shape() -> None:
    assert roles_of(Shape(stores=2, engines=1), "store") == ("store-0", "store-1")
    assert roles_of(Shape(stores=2, engines=1), "master") == ("master",)

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.canary.ladder import state as moves
from chaos.canary.ladder.schema import parse_ladder
from chaos.canary.ladder.state import Do, LadderState, Phase, Step, next_step

LADDER = parse_ladder("""\
schema: canary.ladder/1
name: three
stages:
  - {name: a, gate: [ga], budget: 10s, rollback: [ra]}
  - {name: b, approve: look, apply: [ab], gate: [gb], budget: 10s, rollback: [rb]}
  - {name: c, apply: [ac], gate: [gc], budget: 10s, rollback: [rc]}
""")
NAMES = ("a", "b", "c")


def fresh() -> LadderState:
    return LadderState.fresh(LADDER, digest="d", folder="/")


def after(*moved: str) -> LadderState:
    state = fresh()
    for name in moved:
        state = moves.passed(state, name, now=1.0, told="")
    return state


def test_a_ladder_begins_at_its_first_stage() -> None:
    assert next_step(LADDER, fresh()) == Step(do=Do.APPLY, stage="a")
    assert fresh().outcome == "not begun"
    assert fresh().exit_code == 3


def test_a_stage_that_needs_a_person_waits_for_one() -> None:
    state = after("a")

    assert next_step(LADDER, state) == Step(do=Do.APPROVE, stage="b")
    approved = state.with_stage("b", approved_by="eve")
    assert next_step(LADDER, approved) == Step(do=Do.APPLY, stage="b")


def test_the_top_is_reached_only_when_every_stage_passed() -> None:
    assert after(*NAMES).exit_code == 0
    assert after(*NAMES).outcome == "complete"
    assert {after(*NAMES[:n]).exit_code for n in range(3)} == {3}


def test_a_stage_that_was_being_judged_is_judged_again_not_applied_again() -> None:
    state = after("a", "b").with_stage("c", phase=Phase.GATING)

    assert next_step(LADDER, state) == Step(do=Do.GATE, stage="c")


def test_a_stage_that_was_being_applied_is_applied_again() -> None:
    state = after("a", "b").with_stage("c", phase=Phase.APPLYING)

    assert next_step(LADDER, state) == Step(do=Do.APPLY, stage="c")


def test_a_held_stage_is_judged_again_and_is_no_pass() -> None:
    state = moves.held(after("a", "b"), "c", now=1.0, told="")

    assert next_step(LADDER, state) == Step(do=Do.GATE, stage="c")
    assert state.exit_code == 3


def test_the_way_back_is_every_stage_that_was_begun_the_last_first() -> None:
    state = after("a", "b").with_stage("c", phase=Phase.GATING)
    state = moves.failed(state, "c", now=1.0, told="no", code=1)
    undone = []
    while (step := next_step(LADDER, state)).do is Do.UNDO:
        undone.append(step.stage)
        state = moves.undone(state, step.stage, now=2.0, problem="")

    assert undone == ["c", "b", "a"]
    assert state.outcome == "rolled back"
    assert state.exit_code == 1


def test_a_stage_that_was_not_begun_is_not_undone() -> None:
    state = moves.failed(after("a"), "b", now=1.0, told="no", code=1)

    assert next_step(LADDER, state) == Step(do=Do.UNDO, stage="a")


def test_a_rollback_that_failed_does_not_keep_the_others_from_being_tried() -> None:
    state = moves.failed(after(*NAMES), "c", now=1.0, told="no", code=1)
    state = moves.undone(state, "c", now=1.0, problem="exit 9")

    assert next_step(LADDER, state) == Step(do=Do.UNDO, stage="b")
    for name in ("b", "a"):
        state = moves.undone(state, name, now=1.0, problem="")
    assert (state.outcome, state.exit_code) == ("rollback failed", 5)
    assert next_step(LADDER, state).do is Do.END
    again = moves.retried(state)
    assert next_step(LADDER, again) == Step(do=Do.UNDO, stage="c")


def test_the_first_reason_stays() -> None:
    state = moves.failed(fresh(), "a", now=1.0, told="first", code=130)
    state = moves.failed(state, "a", now=2.0, told="second", code=1)

    assert state.failed == "a: first"
    assert state.exit_code == 130


PHASES = st.lists(st.sampled_from(Phase), min_size=3, max_size=3)


@given(phases=PHASES, failed=st.booleans(), child=st.booleans())
def test_a_state_survives_its_document(phases, failed, child) -> None:
    state = fresh()
    for name, phase in zip(NAMES, phases, strict=True):
        state = state.with_stage(name, phase=phase, began_at=1.5)
    if failed:
        state = moves.failed(state, "a", now=2.0, told="x", code=1)
    if child:
        state = moves.replace(state, child=(7, 9))

    assert LadderState.from_json(json.loads(json.dumps(state.to_json()))) == state


@given(phases=PHASES, failed=st.booleans())
def test_only_a_ladder_with_every_stage_passed_ends_with_0(phases, failed) -> None:
    state = fresh()
    for name, phase in zip(NAMES, phases, strict=True):
        state = state.with_stage(name, phase=phase)
    if failed:
        state = moves.failed(state, "a", now=2.0, told="x", code=1)
    top = set(phases) == {Phase.PASSED} and not failed

    assert (state.exit_code == 0) == top


@given(
    answers=st.lists(
        st.sampled_from(["pass", "fail", "hold", "approve", "undo", "stuck"]),
        max_size=40,
    )
)
def test_whatever_happens_nothing_stays_live_after_a_failure(answers) -> None:
    """Played at random: once it failed, only rollbacks come, until none is left."""
    state = fresh()
    for answer in answers:
        step = next_step(LADDER, state)
        if step.do is Do.END:
            break
        if state.failed:
            assert step.do is Do.UNDO
            problem = "x" if answer == "stuck" else ""
            state = moves.undone(state, step.stage, now=1.0, problem=problem)
        elif step.do is Do.APPROVE:
            state = state.with_stage(step.stage, approved_by="eve")
        elif answer == "hold":
            state = moves.held(state, step.stage, now=1.0, told="")
        elif answer == "pass":
            state = moves.passed(state, step.stage, now=1.0, told="")
        else:
            state = moves.begun(state, step, now=1.0)
            state = moves.failed(state, step.stage, now=1.0, told="x", code=1)
    for _ in range(4):
        if state.failed and next_step(LADDER, state).do is Do.UNDO:
            name = next_step(LADDER, state).stage
            state = moves.undone(state, name, now=1.0, problem="")

    if state.failed:
        live = {r.phase for r in state.stages} - {Phase.NEW, Phase.UNDONE}
        assert live <= {Phase.UNDO_FAILED}
        assert state.exit_code != 0


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other/1"},
        {"stages": [{"name": "a"}]},
        {"stages": None},
        {"child": [1]},
        {"failed_code": "x"},
    ],
)
def test_another_document_is_no_state(change) -> None:
    document = {**fresh().to_json(), **change}

    with pytest.raises((ValueError, KeyError, TypeError, IndexError)):
        LadderState.from_json(document)

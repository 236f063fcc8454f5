"""A schedule inside a suite, on a pool in memory: skips, verdicts, what is cut down."""

from __future__ import annotations

import pytest

from chaos.correctness.schedule import Do, Schedule, Step, load_schedule
from chaos.correctness.suite import Fixtures, play_here
from chaos.errors import NotHere
from chaos.history.history import History
from chaos.judge.verdict import Judgement, Verdict

STEPS = (
    Step(do=Do.PUT, by="c0", keys=("k0", "k1"), value=1),
    Step(do=Do.WAIT, seconds=1.0),
    Step(do=Do.BREAK, fault="restart", target="store-1"),
    Step(do=Do.BREAK, fault="restart", target="holder k0"),
    Step(do=Do.GET, by="c1", keys=("k0", "k1"), path="batched"),
)


@pytest.fixture
def play(make_pool, tmp_path):
    """Plays a schedule on pools with these lies: (judgements, shapes asked for)."""
    asked = []

    def of(schedule, *lies):
        pools = []

        def cluster_of(**shape):
            asked.append(shape)
            pools.append(make_pool(lies=lies))
            return pools[-1]

        class Inject:
            def __getattr__(self, name):
                return getattr(pools[-1], name)

        with History(tmp_path / "history.jsonl") as history:
            fixtures = Fixtures(
                cluster_of=cluster_of,
                inject=Inject(),
                history=history,
                steady=lambda _: Judgement(
                    oracle="steady",
                    claim="",
                    verdict=Verdict.PASS,
                    observed="",
                    threshold="",
                    samples=1,
                ),
                folder=tmp_path,
            )
            return play_here(schedule, fixtures), asked

    return of


def schedule_of(*steps, **more):
    return Schedule(name="by hand", time_scale=0.01, steps=steps, **more)


def test_a_correct_pool_passes_on_one_cluster_of_the_shape(play):
    judged, asked = play(schedule_of(*STEPS, shape={"stores": 2}))
    assert {judgement.verdict for judgement in judged} == {Verdict.PASS}
    assert asked == [{"stores": 2}]


def test_what_is_found_is_cut_down_and_told_with_its_command(play, tmp_path, capsys):
    judged, asked = play(schedule_of(*STEPS), "zeros")
    failed = [one for one in judged if one.verdict is Verdict.FAIL]
    path = tmp_path / "minimal-refimpl-zeros.yaml"
    assert [one.oracle for one in failed] == ["O1"]
    assert f"chaos correctness replay {path}" in failed[0].reason
    small = load_schedule(path)
    assert [step.do for step in small.steps] == [Do.PUT, Do.BREAK]
    assert "minimal for zeros, 2 steps" in capsys.readouterr().out
    assert len(asked) > 2


def test_what_is_known_of_a_system_is_not_cut_down(play):
    judged, asked = play(schedule_of(*STEPS, expects=("zeros",)), "zeros")
    assert {judgement.verdict for judgement in judged} == {Verdict.PASS}
    assert len(asked) == 1


def test_a_way_of_reading_that_is_not_there_is_a_skip(play):
    step = Step(do=Do.GET, by="c0", keys=("k0",), path="session")
    with pytest.raises(NotHere, match="reads by plain, batched"):
        play(schedule_of(step))


def test_a_fault_that_is_not_here_is_a_skip(play):
    step = Step(do=Do.BREAK, fault="partition", target="store-0", name="f1")
    with pytest.raises(NotHere, match="no network"):
        play(schedule_of(step))

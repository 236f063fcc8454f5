"""The soak and the command on a pool in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

import pytest

import chaos.correctness.bench as bench_module
from chaos.cli import main
from chaos.correctness.bench import Bench, Outcome, spec_of
from chaos.correctness.checker import check
from chaos.correctness.laws import REFIMPL
from chaos.correctness.player import Stage, play
from chaos.correctness.schedule import Do, Schedule, Step, as_yaml, load_schedule
from chaos.correctness.soak import Soak, drawn
from chaos.correctness.spaces import modes_of
from chaos.errors import HarnessError, UsageError
from chaos.history.history import History

MODES = modes_of("refimpl")
IN_MEMORY = [
    dataclasses.replace(
        mode,
        space=dataclasses.replace(
            mode.space, phrases={"kill": 1, "restart": 2, "fill": 1}, fill_count=3
        ),
    )
    for mode in MODES
]


class PoolBench(Bench):
    """A bench whose clusters are pools in memory; `breaks` raises in these plays."""

    pools = None
    lies = ()
    breaks = ()
    settles = True

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.plays = itertools.count(1)
        self.renewed = 0

    def play(self, schedule):
        number = next(self.plays)
        if number in self.breaks:
            raise HarnessError("the harness broke")
        pool = self.pools(lies=self.lies)
        path = self._folder / f"history-{number}.jsonl"
        with History(path, clock=pool.clock) as history:
            stage = Stage(
                cluster=pool,
                inject=pool,
                history=history,
                settled=lambda _: self.settles,
                clock=pool.clock,
                wait=pool.wait,
            )
            played = play(schedule, stage)
        found = check(played.operations, played.windows, REFIMPL)
        return Outcome(played=played, findings=tuple(found), history=path)

    def renew(self):
        self.renewed += 1


@pytest.fixture
def bench_of(tmp_path, make_pool, monkeypatch):
    monkeypatch.setattr(PoolBench, "pools", staticmethod(make_pool))
    with contextlib.ExitStack() as stack:

        def make(**attributes):
            for name, value in attributes.items():
                monkeypatch.setattr(PoolBench, name, value)
            bench = PoolBench("refimpl", tmp_path / "results")
            stack.callback(bench.close)
            return bench

        yield make


def soak_of(bench, tmp_path, said, ticks=6, modes=IN_MEMORY):
    clock = itertools.count()
    soak = Soak(
        bench=bench,
        modes=modes,
        seed=1,
        minimal=tmp_path / "minimal",
        shrink_s=60.0,
        say=said.append,
        clock=lambda: float(next(clock)),
    )
    soak.run(float(ticks))
    return soak.tally


def test_a_soak_of_a_correct_pool_is_clean_and_keeps_no_history(bench_of, tmp_path):
    said = []
    tally = soak_of(bench_of(), tmp_path, said)
    assert set(tally.played) == {"clean"}
    assert not tally.findings
    assert list((tmp_path / "results").glob("history-*")) == []


def test_a_soak_writes_down_the_smallest_schedule_of_every_kind(bench_of, tmp_path):
    said = []
    tally = soak_of(bench_of(lies=("zeros",)), tmp_path, said, ticks=12)
    assert tally.findings["plain: zeros"] > 0
    path = tmp_path / "minimal/refimpl-plain-zeros.yaml"
    small = load_schedule(path)
    assert [step.do for step in small.steps] == [Do.PUT, Do.BREAK]
    assert "zeros" in small.expects
    assert "shown by 3 of 3 plays" in small.note
    assert f"    chaos correctness replay {path}" in "\n".join(said)
    assert len(tally.files) == len(set(tally.files))


@pytest.mark.parametrize(
    ("from_then_on", "steps", "shown"),
    [("nothing", [Do.PUT, Do.BREAK], "0 of 1"), ("larger", None, "3 of 3")],
)
def test_a_small_part_that_shows_no_more_gives_way_to_a_larger_one(
    bench_of, tmp_path, from_then_on, steps, shown
):
    """The cut ends; then a race shows nothing any more, or all but the smallest do."""
    bench = bench_of(lies=("zeros",))
    play, cut, shrinking = bench.play, bench.shrink, []

    def shrunk(*args, **named):
        found = cut(*args, **named)
        shrinking.append(len(found.steps))
        return found

    def raced(schedule):
        outcome = play(schedule)
        small = shrinking and len(schedule.steps) <= shrinking[0]
        gone = bool(shrinking) if from_then_on == "nothing" else small
        return dataclasses.replace(outcome, findings=()) if gone else outcome

    bench.play, bench.shrink = raced, shrunk
    soak_of(bench, tmp_path, [], ticks=3)
    kept = load_schedule(tmp_path / "minimal/refimpl-plain-zeros.yaml")

    assert f"shown by {shown} plays" in kept.note
    if steps is not None:
        assert [step.do for step in kept.steps] == steps
    else:
        whole = drawn(IN_MEMORY[0], 1, 0)
        assert shrinking[0] < len(kept.steps) < len(whole.steps)


def test_a_play_that_breaks_the_harness_is_told_and_the_cluster_renewed(
    bench_of, tmp_path
):
    said = []
    bench = bench_of(breaks=(1,))
    tally = soak_of(bench, tmp_path, said)
    assert tally.played["harness error"] == 1
    assert bench.renewed == 1
    assert "the harness broke" in said[0]


def test_a_cluster_that_does_not_settle_is_not_clean(bench_of, tmp_path):
    tally = soak_of(bench_of(settles=False), tmp_path, [])
    assert set(tally.played) == {"not settled"}


def test_a_play_in_which_no_read_was_answered_is_not_clean(bench_of, tmp_path):
    tally = soak_of(bench_of(lies=("breaks",)), tmp_path, [])
    assert set(tally.played) == {"nothing told"}


def test_a_fault_that_is_not_here_is_not_clean(bench_of, tmp_path):
    mode = IN_MEMORY[0]
    space = dataclasses.replace(mode.space, phrases={"partition": 1})
    modes = [dataclasses.replace(mode, space=space)]
    tally = soak_of(bench_of(), tmp_path, [], modes=modes)
    assert set(tally.played) == {"not here"}


@pytest.fixture
def schedule_file(tmp_path):
    steps = (
        Step(do=Do.PUT, by="c0", keys=("k0",), value=1),
        Step(do=Do.BREAK, fault="restart", target="holder k0"),
        Step(do=Do.GET, by="c1", keys=("k0",)),
    )
    path = tmp_path / "small.yaml"
    path.write_text(as_yaml(Schedule(name="small", time_scale=1.0, steps=steps)))
    return path


@pytest.mark.parametrize(
    ("attributes", "code", "words"),
    [
        ({}, 0, "nothing found"),
        ({"lies": ("zeros",)}, 1, "zeros: k0"),
        ({"settles": False}, 3, "did not become whole"),
        ({"lies": ("breaks",)}, 3, "no last read was answered"),
    ],
)
def test_a_replay_ends_with_what_it_showed(
    bench_of, monkeypatch, capsys, schedule_file, attributes, code, words
):
    bench_of(**attributes)
    monkeypatch.setattr(bench_module, "Bench", PoolBench)
    asked = ["correctness", "replay", str(schedule_file), "--times", "2"]
    assert main(asked) == code
    out = capsys.readouterr().out
    assert words in out
    assert "small: found in" in out


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path, capsys):
    assert main(["correctness", "replay", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: No such file" in capsys.readouterr().err


def test_a_drawn_schedule_is_the_one_that_the_soak_plays(capsys, tmp_path):
    assert main(["correctness", "draw", "3", "--seed", "9"]) == 0
    path = tmp_path / "drawn.yaml"
    path.write_text(capsys.readouterr().out)
    assert load_schedule(path) == drawn(MODES[0], 9, 3)


def test_a_shape_that_no_cluster_has_is_a_usage_error():
    with pytest.raises(UsageError, match="shape"):
        spec_of(Schedule(name="odd", shape={"stars": 3}))


def test_a_schedule_for_another_system_is_refused(tmp_path):
    bench = Bench("refimpl", tmp_path)
    with pytest.raises(UsageError, match="say --system mooncake"):
        bench.play(Schedule(name="odd", system="mooncake"))
    bench.close()

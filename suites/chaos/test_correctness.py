"""What is acknowledged is readable, byte for byte, until it may be gone (O1).

Random schedules of clients and faults from the seed of the run, one for each way of
reading; the history is checked, and what is found is cut down to a minimal schedule.
Schedules that once showed something stand in `suites/scenarios/minimal`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chaos.correctness.schedule import load_schedule
from chaos.correctness.soak import drawn
from chaos.correctness.spaces import modes_of
from chaos.correctness.suite import Fixtures, play_here
from chaos.errors import NotHere

MINIMAL = sorted((Path(__file__).parent.parent / "scenarios/minimal").glob("*.yaml"))
PATHS = ["plain", "batched", "ranges", "session"]
WHOLE = PATHS[:2]
"""Of a part of a value there is no checksum, so that nobody can tell a flipped bit."""
MORE = 4
SHORT, LONG = 20, 60


@pytest.fixture
def play(chaos_run, cluster_of, inject, history, steady_state):
    """Plays a schedule with the fixtures of this test."""
    fixtures = Fixtures(
        cluster_of=cluster_of,
        inject=inject,
        history=history,
        steady=steady_state,
        folder=chaos_run.report.path,
    )
    return lambda schedule: play_here(schedule, fixtures)


@pytest.fixture
def random_schedule(chaos_run):
    """A schedule of this run's seed and system, drawn for one way of reading."""
    options = chaos_run.options

    def of(path, turn=0, steps=SHORT):
        modes = modes_of(options.system)
        chosen = modes[turn % len(modes)]
        number = turn * len(PATHS) + PATHS.index(path)
        phrases = {
            name: weight
            for name, weight in chosen.space.phrases.items()
            if path in WHOLE or name != "corrupt"
        }
        space = dataclasses.replace(
            chosen.space, paths=(path,), phrases=phrases, steps=steps
        )
        if options.system == "refimpl":
            space = dataclasses.replace(space, time_scale=options.time_scale)
        schedule = drawn(dataclasses.replace(chosen, space=space), options.seed, number)
        return dataclasses.replace(
            schedule, target=options.target, expects=chosen.expects
        )

    return of


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PATHS)
def test_random_faults_falsify_and_lose_nothing(play, random_schedule, judge, path):
    """Kills, restarts, pauses, partitions, evictions: a miss at worst (O1)."""
    judge(play(random_schedule(path)))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("turn", range(1, 1 + MORE))
def test_more_random_faults_falsify_and_lose_nothing(
    play, random_schedule, judge, path, turn
):
    """The same, longer, and in every mode of the system."""
    judge(play(random_schedule(path, turn, LONG)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", MINIMAL, ids=[path.stem for path in MINIMAL])
def test_a_minimal_schedule_shows_nothing_new(play, chaos_run, judge, file):
    """What a schedule is known to show of its system is no news; the rest is."""
    schedule = load_schedule(file)
    if schedule.system != chaos_run.options.system:
        reason = f"it is a schedule for {schedule.system}"
        raise NotHere(capability=schedule.system, target="", reason=reason)
    judge(play(schedule))

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos.correctness.bench import spec_of
from chaos.correctness.findings import Kind
from chaos.correctness.generate import draw
from chaos.correctness.schedule import (
    Do,
    Schedule,
    Step,
    as_yaml,
    load_schedule,
    parse_schedule,
)
from chaos.correctness.soak import drawn
from chaos.correctness.spaces import MODES, laws_mode, modes_of
from chaos.errors import UsageError

MINIMAL = sorted(Path(__file__).parents[3].glob("suites/scenarios/minimal/*.yaml"))
ALL_MODES = [mode for modes in MODES.values() for mode in modes]


@pytest.mark.parametrize("mode", ALL_MODES, ids=lambda m: f"{m.space.system}-{m.name}")
def test_what_is_drawn_survives_its_file(mode):
    for number in range(5):
        schedule = drawn(mode, 1, number)
        assert parse_schedule(as_yaml(schedule)) == schedule


@pytest.mark.parametrize("mode", ALL_MODES, ids=lambda m: f"{m.space.system}-{m.name}")
def test_the_laws_of_a_mode_are_found_by_the_shape_of_its_schedules(mode):
    assert laws_mode(mode.space.system, mode.space.shape) == mode.laws


@pytest.mark.parametrize("mode", ALL_MODES, ids=lambda m: f"{m.space.system}-{m.name}")
def test_only_stores_that_are_there_are_broken(mode):
    """All of them, where a phrase breaks any."""
    there = {f"store-{number}" for number in range(mode.space.shape["stores"])}
    named = {
        step.target
        for number in range(30)
        for step in drawn(mode, 1, number).steps
        if step.target.startswith("store")
    }

    only_leaders = set(mode.space.phrases) <= {"failover", "sleep", "watch"}
    assert named == (set() if only_leaders else there)


@pytest.mark.parametrize("mode", ALL_MODES, ids=lambda m: f"{m.space.system}-{m.name}")
def test_what_is_expected_of_a_mode_stands_in_a_minimal_schedule(mode):
    """Nothing is called known that nobody can play again."""
    shown = {
        kind
        for schedule in map(load_schedule, MINIMAL)
        if schedule.system == mode.space.system
        and laws_mode(schedule.system, schedule.shape) == mode.laws
        for kind in schedule.expects
    }

    assert set(mode.expects) <= shown


def test_the_same_seed_draws_the_same_schedule_and_another_one_another():
    (mode,) = modes_of("refimpl")
    assert drawn(mode, 1, 4) == drawn(mode, 1, 4)
    assert drawn(mode, 1, 4).steps != drawn(mode, 2, 4).steps
    assert drawn(mode, 1, 4).steps != drawn(mode, 1, 5).steps


@pytest.mark.parametrize("seed", range(10))
def test_every_write_of_a_key_has_a_value_of_its_own(seed):
    (mode,) = modes_of("refimpl")
    steps = draw(random.Random(seed), mode.space, "drawn").steps
    written = [
        (key, step.value) for step in steps if step.do is Do.PUT for key in step.keys
    ]
    assert len(written) == len(set(written))


@pytest.mark.parametrize("seed", range(10))
def test_every_step_that_is_drawn_makes_sense(seed):
    for mode in ALL_MODES:
        schedule = drawn(mode, seed, seed)
        assert [step.problem() for step in schedule.steps] == [""] * len(schedule.steps)
        broken = [step.name for step in schedule.steps if step.do is Do.BREAK]
        healed = {step.name for step in schedule.steps if step.do is Do.HEAL}
        assert healed <= set(broken)


def test_a_step_is_one_line_of_a_file():
    step = Step(do=Do.PUT, by="c0", keys=("k0", "k1"), value=3)
    text = as_yaml(Schedule(name="one", steps=(step,)))
    assert (
        text == "name: one\nsteps:\n  - {do: put, by: c0, keys: [k0, k1], value: 3}\n"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{do: put, keys: [k0]}", "has no client"),
        ("{do: get, by: c0}", "has no keys"),
        ("{do: leap, by: c0}", "steps[0].do"),
        ("{do: get, by: c0, keys: [k0], pth: batched}", "steps[0].pth"),
        ("{do: break, fault: kill}", "needs a fault and a target"),
        ("{do: heal}", "has no name"),
        ("{do: put, by: c0, keys: [k0], value: 256}", "there are 0 to 255"),
        ("{do: wait, seconds: -1}", "below 0"),
        ("{do: exists, by: c0, keys: [k0], seconds: 601}", "at most 600"),
        (
            "{do: exists, by: c0, keys: [k0], seconds: 1, background: true}",
            "not for the background",
        ),
    ],
)
def test_a_wrong_step_is_one_line_with_its_place(line, words):
    text = f"name: wrong\nsteps:\n  - {line}\n"
    with pytest.raises(UsageError) as caught:
        parse_schedule(text, "wrong.yaml")
    told = str(caught.value)
    assert told.startswith("wrong.yaml:3: ")
    assert words in told
    assert "\n" not in told


def test_a_wrong_file_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="name a schedule file"):
        load_schedule(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match=r"f\.yaml:2: size_bytes"):
        parse_schedule("name: a\nsize_bytes: many\n", "f.yaml")
    with pytest.raises(UsageError, match="size_bytes 1 is not"):
        parse_schedule("name: a\nsize_bytes: 1\n", "f.yaml")
    with pytest.raises(UsageError, match="mend the YAML"):
        parse_schedule("name: [a\n", "f.yaml")


def test_unknown_systems_and_modes_are_usage_errors():
    with pytest.raises(UsageError, match="no schedules are drawn for 'redis'"):
        modes_of("redis")
    with pytest.raises(UsageError, match="has no mode 'fast'"):
        modes_of("mooncake", ["fast"])
    (only,) = modes_of("mooncake", ["oplog"])
    assert only.name == "oplog"


@pytest.mark.parametrize("file", MINIMAL, ids=[path.stem for path in MINIMAL])
def test_every_minimal_schedule_can_be_played_and_says_what_it_shows(file):
    schedule = load_schedule(file)
    modes_of(schedule.system)
    assert set(schedule.expects) <= {kind.value for kind in Kind}
    assert schedule.note
    spec_of(schedule)


def test_the_page_shows_a_schedule_that_is_one_and_names_every_kind():
    page = Path(__file__).parents[3].joinpath("docs/correctness.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    schedule = parse_schedule(text, "docs/correctness.md")
    assert set(schedule.expects) <= {kind.value for kind in Kind}
    assert all(f"`{kind.value}`" in page for kind in Kind)
    assert all(f"{do.value}" in page for do in Do)

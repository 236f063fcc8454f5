"""First cuts: what a finding says is not needed goes at once."""

from __future__ import annotations

from chaos.correctness.findings import Finding, Kind
from chaos.correctness.schedule import Do, Step
from chaos.correctness.shrink import Budget, shrink
from chaos.correctness.slices import slices


def put(*keys, value=1):
    return Step(do=Do.PUT, by="c0", keys=keys, value=value)


def get(*keys):
    return Step(do=Do.GET, by="c1", keys=keys, path="batched")


WAIT = Step(do=Do.WAIT, seconds=2.0)
KILL = Step(do=Do.BREAK, fault="kill", target="leader", name="f1")
HEAL = Step(do=Do.HEAL, name="f1")
FRESH = Step(do=Do.FRESH, by="c1")
STEPS = (
    put("k0", "k1"),  # 0
    get("k0", "k1"),
    put("k2"),
    put("k1", value=2),  # 3: the write that is lost
    KILL,
    WAIT,
    get("k2"),
    HEAL,
    FRESH,
    get("k0", "k1"),  # 9: where it is missed
    put("k3"),
    get("k3"),
)


def lost(*steps):
    return Finding(kind=Kind.ACK_LOSS, key="k1", why="", steps=steps)


def test_the_smallest_slice_is_of_its_key_from_the_write_to_the_miss():
    smallest, *more = slices(STEPS, lost(3, 9))

    assert smallest == (put("k1", value=2), KILL, WAIT, HEAL, FRESH, get("k1"))
    assert [len(one) for one in more] == sorted(len(one) for one in more)
    assert more[-1] == STEPS[:10]


def test_no_slice_is_the_whole_or_nothing():
    steps = (put("k1"), KILL, get("k1"))

    assert slices(steps, lost(0, 2)) == []
    assert slices((get("k0"),), lost()) == []


def test_what_is_seen_in_the_last_look_is_cut_at_its_beginning_only():
    assert slices(STEPS, lost(3, len(STEPS)))[-1] == STEPS[3:]


def test_steps_that_every_key_feels_stay():
    fill = Step(do=Do.FILL, by="c0", count=3)
    steps = (put("k1"), put("k2"), fill, get("k1"))

    assert slices(steps, lost(0, 3))[0] == (put("k1"), fill, get("k1"))


def test_a_fault_of_a_store_is_aimed_at_the_one_that_has_the_key_then_left_alone():
    restart = Step(do=Do.BREAK, fault="restart", target="store-1")
    steps = (put("k0"), put("k1"), restart, get("k1"))
    first, second, *_ = slices(steps, lost(1, 3))

    assert [step.target for step in first] == ["", "holder k1", ""]
    assert second == (put("k1"), restart, get("k1"))


def test_the_first_guesses_have_the_last_fault_alone_of_its_key_then_of_all():
    pause = Step(do=Do.BREAK, fault="pause", target="etcd", name="f0")
    heal = Step(do=Do.HEAL, name="f0")
    puts, gets = put("k0", "k1"), get("k0", "k1")
    first, *more = slices((puts, pause, WAIT, heal, KILL, WAIT, gets), lost(0, 6))

    assert first == (put("k1"), KILL, WAIT, get("k1"))
    assert (puts, KILL, WAIT, gets) in more[:1]


def test_a_guess_that_shows_it_saves_most_of_the_plays():
    played = []

    def fails(steps):
        played.append(steps)
        keys = [step.keys for step in steps if step.do in (Do.PUT, Do.GET)]
        return KILL in steps and ("k1",) in keys

    guesses = slices(STEPS, lost(3, 9))
    shrunk = shrink(STEPS, fails, Budget(tests=100), guesses=guesses)

    assert played[0] == guesses[0]
    assert shrunk.steps == (put("k1", value=2), KILL)


def test_guesses_that_show_nothing_do_no_harm():
    def fails(steps):
        return put("k2") in steps and WAIT in steps

    guesses = [STEPS[8:], STEPS[:2]]
    shrunk = shrink(STEPS, fails, Budget(tests=100), guesses=guesses)

    assert shrunk.steps == (put("k2"), WAIT)

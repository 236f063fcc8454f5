"""The shrinker on predicates that are known: what is left is what is needed."""

from __future__ import annotations

import random

import pytest

from chaos.correctness.schedule import Do, Step
from chaos.correctness.shrink import Budget, ddmin, shrink


def steps_of(count):
    return tuple(Step(do=Do.WAIT, seconds=float(number)) for number in range(count))


def contains(*wanted):
    def fails(steps):
        return set(wanted) <= {step.seconds for step in steps}

    return fails


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40, 200])
@pytest.mark.parametrize("needed", [1, 2, 3, 5])
def test_exactly_the_steps_that_are_needed_are_left(count, needed):
    dice = random.Random(f"{count}:{needed}")
    wanted = dice.sample(range(count), min(needed, count))
    shrunk = shrink(steps_of(count), contains(*wanted), Budget(tests=2000))
    assert [step.seconds for step in shrunk.steps] == sorted(wanted)
    assert shrunk.minimal


def test_order_is_kept_and_matters():
    def fails(steps):
        seconds = [step.seconds for step in steps]
        return 9.0 in seconds and 4.0 in seconds[: seconds.index(9.0)]

    shrunk = shrink(steps_of(30), fails)
    assert [step.seconds for step in shrunk.steps] == [4.0, 9.0]


def test_steps_that_only_work_in_pairs_go_in_pairs():
    def fails(steps):
        seconds = {step.seconds for step in steps}
        pairs_whole = all((n in seconds) == (n + 1 in seconds) for n in range(0, 16, 2))
        return pairs_whole and 6.0 in seconds

    shrunk = shrink(steps_of(16), fails, Budget(tests=2000))
    assert [step.seconds for step in shrunk.steps] == [6.0, 7.0]


def test_what_always_fails_needs_no_step():
    assert shrink(steps_of(20), lambda _: True).steps == ()


def test_what_fails_only_as_a_whole_stays_whole():
    steps = steps_of(12)
    shrunk = shrink(steps, lambda some: len(some) == len(steps))
    assert shrunk.steps == steps


def test_no_part_is_tested_twice_and_the_budget_holds():
    tested = []

    def fails(steps):
        tested.append(steps)
        return contains(3, 77, 150)(steps)

    shrunk = shrink(steps_of(200), fails, Budget(tests=30))
    assert shrunk.tests == len(tested) == 30
    assert len(set(map(str, tested))) == 30
    assert not shrunk.minimal
    assert contains(3, 77, 150)(shrunk.steps)


def test_a_deadline_ends_it_with_the_best_so_far():
    left = iter([False] * 5 + [True] * 1000)
    budget = Budget(ended=lambda: next(left))
    shrunk = shrink(steps_of(64), contains(5), budget)
    assert contains(5)(shrunk.steps)
    assert not shrunk.minimal


def test_keys_that_do_not_matter_are_taken_out_of_steps():
    steps = (
        Step(do=Do.PUT, by="c0", keys=("k0", "k1", "k2"), value=1),
        Step(do=Do.GET, by="c0", keys=("k0", "k1", "k2")),
    )

    def fails(some):
        return len(some) == 2 and all("k1" in step.keys for step in some)

    shrunk = shrink(steps, fails)
    assert [step.keys for step in shrunk.steps] == [("k1",), ("k1",)]


def test_a_part_of_a_minimal_one_never_fails():
    dice = random.Random(5)
    for _ in range(20):
        clauses = [set(dice.sample(range(24), 3)) for _ in range(2)]

        def fails(items, clauses=clauses):
            return any(clause <= set(items) for clause in clauses)

        left = ddmin(tuple(range(24)), fails, Budget(tests=10_000))
        assert fails(left)
        assert not any(fails(left[:at] + left[at + 1 :]) for at in range(len(left)))


def test_every_part_that_failed_is_told_the_smallest_first():
    shrunk = shrink(steps_of(40), contains(3, 30))

    sizes = [len(part) for part in shrunk.failed]
    assert shrunk.failed[0] == shrunk.steps
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]

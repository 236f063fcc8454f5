"""Failpoints: the grammar, exact patterns, and waits that end when the spec changes."""

from __future__ import annotations

import random
import threading

import pytest

from refimpl.errors import UsageError
from refimpl.failpoints import DEFECTS, FailpointPanic, Failpoints


def _answers(spec: str, calls: int) -> list[int | None]:
    points = Failpoints(random.Random(1))
    points.set("x", spec)
    return [points.hit("x") for _ in range(calls)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("off", [None, None, None]),
        ("on", [1, 1, 1]),
        ("return(-800)", [-800, -800, -800]),
        ("return", [-1, -1, -1]),
        ("2*return(-901)", [-901, -901, None]),
        ("1*return(-1)->1*return(-2)->return(-3)", [-1, -2, -3]),
        ("every(2,-704)", [None, -704, None]),
        ("2*off->return(5)", [None, None, 5]),
    ],
)
def test_a_spec_answers_as_written(spec, expected):
    assert expected == _answers(spec, 3)


def test_every_fifth_call_fails_and_no_other():
    answers = _answers("every(5,-800)", 100)

    assert [i for i, a in enumerate(answers, 1) if a] == list(range(5, 101, 5))


def test_a_percentage_is_about_that_share_and_reproducible():
    first, second = _answers("30%return(-1)", 2000), _answers("30%return(-1)", 2000)

    assert first == second
    assert 500 < sum(a is not None for a in first) < 700


def test_a_failpoint_that_is_not_set_does_nothing():
    points = Failpoints()

    assert points.hit("x") is None
    assert not points.enabled("x")
    assert points.snapshot() == {}


def test_hits_count_effects_and_calls_count_visits():
    points = Failpoints()
    points.set("x", "every(3,-1)")
    for _ in range(7):
        points.hit("x")

    assert points.snapshot() == {"x": {"spec": "every(3,-1)", "hits": 2, "calls": 7}}


def test_setting_again_starts_the_counters_anew():
    points = Failpoints()
    points.set("x", "on")
    points.hit("x")
    points.set("x", "on")

    assert points.snapshot()["x"]["hits"] == 0


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_on_or_off(name):
    points = Failpoints()
    points.set(name, "on")
    assert points.enabled(name)

    points.set(name, "off")
    assert not points.enabled(name)


def test_an_unknown_defect_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"defect\.deadline_ignored"):
        Failpoints().set("defect.deadline_ignord", "on")


def test_panic_raises_and_names_the_failpoint():
    points = Failpoints()
    points.set("store.read", "panic")

    with pytest.raises(FailpointPanic, match=r"store\.read"):
        points.hit("store.read")


def test_sleep_waits_the_milliseconds_through_the_seam():
    waits = []
    points = Failpoints(wait=lambda _event, seconds: waits.append(seconds))
    points.set("x", "sleep(250)->off")

    assert points.hit("x") is None
    assert waits == [0.25]


@pytest.mark.parametrize("how", ["clear", "clear all", "set"])
def test_a_paused_thread_goes_on_when_the_failpoint_changes(how):
    inside = threading.Event()

    def wait(event: threading.Event, seconds: float | None) -> None:
        inside.set()
        event.wait(seconds)

    points = Failpoints(wait=wait)
    points.set("x", "pause")
    paused = threading.Thread(target=points.hit, args=("x",), daemon=True)
    paused.start()
    assert inside.wait(5)
    assert paused.is_alive()

    if how == "set":
        points.set("x", "off")
    else:
        points.clear("x" if how == "clear" else None)
    paused.join(5)

    assert not paused.is_alive()


def test_the_environment_sets_several():
    environ = {"REFIMPL_FAILPOINTS": "store.read=return(-800); master.lookup=on;"}
    points = Failpoints.from_env(environ)

    assert set(points.snapshot()) == {"store.read", "master.lookup"}
    assert points.hit("store.read") == -800


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("explode", "is not"),
        ("return(x)", "whole numbers"),
        ("every(3)", "takes 2"),
        ("every(0,-1)", "n of 1"),
        ("sleep", "takes 1"),
        ("sleep(-1)", "ms of 0"),
        ("", "is not"),
        ("on(1)", "takes 0"),
    ],
)
def test_a_bad_spec_is_refused_in_words_and_leaves_nothing(spec, said):
    points = Failpoints()

    with pytest.raises(UsageError, match=said):
        points.set("x", spec)

    assert points.snapshot() == {}


def test_a_bad_environment_names_the_variable():
    with pytest.raises(UsageError, match="REFIMPL_FAILPOINTS"):
        Failpoints.from_env({"REFIMPL_FAILPOINTS": "store.read"})


def test_the_number_of_failpoints_is_bounded():
    points = Failpoints()
    for i in range(256):
        points.set(f"p{i}", "on")

    with pytest.raises(UsageError, match="clear some"):
        points.set("one more", "on")
    points.set("p0", "off")


def test_hits_from_many_threads_are_all_counted():
    points = Failpoints()
    points.set("x", "every(2,-1)")
    threads = [
        threading.Thread(target=lambda: [points.hit("x") for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert points.snapshot()["x"] == {
        "spec": "every(2,-1)",
        "hits": 1000,
        "calls": 2000,
    }

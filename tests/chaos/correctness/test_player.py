"""Schedules on a pool in memory: what is done, what is written down, what is found."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chaos.correctness.checker import check
from chaos.correctness.findings import Kind
from chaos.correctness.generate import draw
from chaos.correctness.judges import judge_correctness
from chaos.correctness.laws import REFIMPL
from chaos.correctness.operation import (
    good_keys,
    operations_of,
    plays_of,
    windows_of,
)
from chaos.correctness.player import play
from chaos.correctness.schedule import Do, Schedule, Step, parse_schedule
from chaos.correctness.shrink import shrink
from chaos.correctness.spaces import modes_of
from chaos.errors import UsageError
from chaos.history.history import read_history
from chaos.history.rejudge import rejudge
from chaos.judge.verdict import Verdict

(MODE,) = modes_of("refimpl")
HERE = {"kill": 2, "restart": 3, "pause": 2, "announce": 1, "fill": 1}


def schedule_of(*steps, **more):
    return Schedule(name="by hand", time_scale=1.0, steps=steps, **more)


def put(*keys, by="c0", value=1, **more):
    return Step(do=Do.PUT, by=by, keys=keys, value=value, **more)


def get(*keys, by="c1", **more):
    return Step(do=Do.GET, by=by, keys=keys, path="batched", **more)


def broken(fault, target, name=""):
    return Step(do=Do.BREAK, fault=fault, target=target, name=name)


def random_schedule(seed, phrases=HERE):
    space = replace(MODE.space, phrases=phrases, fill_count=3)
    return draw(random.Random(seed), space, f"random {seed}")


def kinds_of(played):
    found = check(played.operations, played.windows, REFIMPL)
    return {finding.kind for finding in found}


@pytest.mark.parametrize(("scale", "looks"), [(1.0, 30), (0.5, 15)])
def test_a_look_with_seconds_is_taken_again_and_again(
    make_pool, stage_of, scale, looks
):
    """Each is an operation of its own, and a key that flaps between them is found."""
    pool = make_pool(stores=1)
    values = pool.values
    wait, waits = pool.wait, []

    def flaps(seconds):
        wait(seconds)
        waits.append(seconds)
        pool.values = {} if 5 <= len(waits) <= 8 else values

    pool.wait = flaps
    watch = Step(do=Do.EXISTS, by="c1", keys=("k0",), seconds=3.0)
    steps = schedule_of(put("k0"), watch)
    played = play(replace(steps, time_scale=scale), stage_of(pool))

    seen = [one for one in played.operations if one.do == "exists" and one.step == 1]
    assert looks <= len(seen) <= 2 * looks
    assert kinds_of(played) == {Kind.FLAP}


@pytest.mark.parametrize("seed", range(12))
def test_a_correct_pool_has_no_findings(make_pool, stage_of, seed):
    played = play(random_schedule(seed), stage_of(make_pool()))
    assert played.settled
    assert good_keys(played.operations, "get") > 0
    assert kinds_of(played) == set()


@pytest.mark.parametrize(
    ("lie", "kind"),
    [
        ("zeros", Kind.ZEROS),
        ("loses", Kind.ACK_LOSS),
        ("resurrects", Kind.RESURRECTED),
        ("stale", Kind.STALE_END),
    ],
)
def test_every_lie_is_found_by_some_of_a_few_random_schedules(
    make_pool, stage_of, lie, kind
):
    found = set()
    for seed in range(8):
        found |= kinds_of(play(random_schedule(seed), stage_of(make_pool(lies=[lie]))))
    assert kind in found


def test_a_found_lie_is_cut_down_to_what_shows_it(make_pool, stage_of):
    schedule = random_schedule(3, {"restart": 1})

    def fails(steps):
        part = schedule.with_steps(steps)
        pool = make_pool(lies=["zeros"])
        return Kind.ZEROS in kinds_of(play(part, stage_of(pool)))

    assert fails(schedule.steps)
    shrunk = shrink(schedule.steps, fails)
    assert [step.do for step in shrunk.steps] == [Do.PUT, Do.BREAK]
    assert [len(step.keys) for step in shrunk.steps] == [1, 0]


def test_a_call_is_written_down_before_it_is_sent(make_pool, stage_of, tmp_path):
    pool = make_pool()
    stage = stage_of(pool)
    seen = []

    def write(names, **_):
        seen.extend(operations_of(read_history(tmp_path / "history.jsonl")))
        return [0] * len(names)

    probe = pool.kv()
    probe.write = write
    pool.kv = lambda: probe
    play(schedule_of(put("k0", value=7)), stage)
    (operation,) = seen
    assert (operation.do, operation.value, operation.codes) == ("put", 7, ())
    assert operation.end_s == float("inf")


def test_a_history_is_checked_as_the_play_was(make_pool, stage_of, tmp_path):
    for seed in range(2):
        stage = stage_of(make_pool(lies=["zeros", "loses"]))
        played = play(random_schedule(seed), stage)
    events = read_history(tmp_path / "history.jsonl")
    plays = plays_of(events)
    assert len(plays) == 2
    operations, windows = operations_of(plays[1]), windows_of(plays[1])
    assert operations == played.operations
    assert check(operations, windows, REFIMPL) == check(
        played.operations, played.windows, REFIMPL
    )
    schedule = parse_schedule(plays[1][0].value["schedule"])
    assert schedule == random_schedule(1)


def test_a_stored_history_is_judged_again_without_the_parts_that_were_cut(
    make_pool, stage_of, tmp_path
):
    stage = stage_of(make_pool(lies=["zeros"]))
    stage.history.limits(stage.cluster.limits)
    steps = [put("k0"), broken("restart", "holder k0"), get("k0")]
    schedule = schedule_of(*steps)
    judged = judge_correctness(play(schedule, stage), REFIMPL)
    play(schedule, stage, cut=True)
    events = read_history(tmp_path / "history.jsonl")
    again = [judgement for _, judgement in rejudge(events)]
    assert again == judged
    unended = [event for event in events if event.operation != "kv-over"]
    verdicts = {judgement.verdict for _, judgement in rejudge(unended)}
    assert verdicts == {Verdict.FAIL, Verdict.INCONCLUSIVE}


def test_what_is_broken_is_healed_whatever_happens(make_pool, stage_of):
    pool = make_pool()
    steps = [put("k0"), broken("kill", "store-0", "f1"), broken("nonsense", "store-1")]
    with pytest.raises(UsageError, match="no fault is called 'nonsense'"):
        play(schedule_of(*steps), stage_of(pool))
    assert pool.faults == [("begin", "kill", "store-0"), ("end", "kill", "store-0")]
    assert not pool.down


def test_a_store_that_is_not_there_is_a_mistake_of_the_file(make_pool, stage_of):
    pool = make_pool()
    schedule = schedule_of(put("k0"), broken("kill", "store-7"))
    with pytest.raises(UsageError, match="by hand: no store-7 here"):
        play(schedule, stage_of(pool))

    assert pool.faults == []


def test_what_was_not_healed_is_healed_at_the_end_the_masters_first(
    make_pool, stage_of
):
    pool = make_pool()
    steps = [broken("kill", "store-0", "f1"), broken("kill", "master", "f2")]
    play(schedule_of(*steps), stage_of(pool))
    ends = [row for row in pool.faults if row[0] == "end"]
    assert ends == [("end", "kill", "master"), ("end", "kill", "store-0")]


def test_no_store_is_started_while_the_master_is_away(make_pool, stage_of):
    pool = make_pool()
    steps = [
        broken("kill", "store-0", "f1"),
        broken("kill", "master", "f2"),
        broken("restart", "store-1"),
        Step(do=Do.HEAL, name="f1"),
    ]
    played = play(schedule_of(*steps), stage_of(pool))
    assert len(played.skipped) == 2
    assert ("begin", "restart", "store-1") not in pool.faults


def test_what_makes_no_sense_any_more_does_nothing(make_pool, stage_of):
    steps = [
        Step(do=Do.HEAL, name="never"),
        Step(do=Do.END, by="c0", name="never"),
        broken("kill", "holder k0", "f1"),
        get("k0"),
    ]
    played = play(schedule_of(*steps), stage_of(make_pool()))
    assert len(played.skipped) == 2
    assert kinds_of(played) == set()


def test_a_fault_may_be_meant_for_the_store_that_holds_a_key(make_pool, stage_of):
    pool = make_pool()
    steps = [put("k0"), broken("kill", "holder k0", "f1"), get("k0")]
    played = play(schedule_of(*steps), stage_of(pool))
    ((_, _, role), _) = pool.faults
    assert played.operations[0].owners == ((role,),)
    assert kinds_of(played) == set()


def test_a_fresh_client_has_a_new_probe(make_pool, stage_of):
    pool = make_pool()
    steps = [put("k0"), get("k0"), Step(do=Do.FRESH, by="c1"), get("k0")]
    play(schedule_of(*steps), stage_of(pool))
    assert pool.clients == 3 + 2  # and two that look in the end


def test_a_store_that_ended_by_itself_is_started_again(make_pool, stage_of):
    pool = make_pool()
    pool.down.add("store-1")
    played = play(schedule_of(put("k0"), get("k0")), stage_of(pool))
    assert played.revived == ["store-1"]
    assert played.settled
    assert [window.kind for window in played.windows] == ["restart"]


def test_a_call_that_breaks_is_an_operation_without_an_answer(make_pool, stage_of):
    pool = make_pool()
    probe = pool.kv()
    probe.write = lambda *_, **__: 1 // 0
    pool.kv = lambda: probe
    played = play(schedule_of(put("k0"), get("k0")), stage_of(pool))
    assert played.operations[0].codes == ()
    assert "ZeroDivisionError" in played.operations[0].error
    assert kinds_of(played) == set()


def test_a_play_of_which_nothing_was_read_proves_nothing(make_pool, stage_of):
    played = play(schedule_of(), stage_of(make_pool()))
    judged = judge_correctness(played, REFIMPL)
    assert {judgement.verdict for judgement in judged} == {Verdict.INCONCLUSIVE}


def test_a_fault_that_is_not_here_proves_nothing(make_pool, stage_of):
    steps = [put("k0"), broken("partition", "store-0", "f1"), get("k0")]
    played = play(schedule_of(*steps), stage_of(make_pool()))
    judged = judge_correctness(played, REFIMPL)
    assert {judgement.verdict for judgement in judged} == {Verdict.INCONCLUSIVE}
    assert "no network" in judged[0].reason


def test_what_is_expected_is_told_and_is_no_news(make_pool, stage_of):
    steps = [put("k0"), broken("restart", "holder k0"), get("k0")]
    pool = make_pool(lies=["zeros"])
    played = play(schedule_of(*steps), stage_of(pool))
    bytes_, acknowledged, order = judge_correctness(played, REFIMPL)
    assert bytes_.verdict is Verdict.FAIL
    assert "zeros: k0" in bytes_.reason
    assert acknowledged.verdict is order.verdict is Verdict.PASS
    known = judge_correctness(played, REFIMPL, expects=["zeros"])
    assert known[0].verdict is Verdict.PASS
    assert "known of this system" in known[0].reason


def expiring_during_waits(pool, *, told):
    """Every wait of a second takes store-0 for dead; `told`: the master says so."""
    ids = dict.fromkeys(pool.stores, 1)
    pool.mounts = lambda: dict(ids)
    wait = pool.wait

    def expires(seconds):
        wait(seconds)
        pool.lose("store-0")
        ids["store-0"] += told

    pool.wait = expires
    return pool


@pytest.mark.parametrize(("told", "kinds"), [(1, set()), (0, {Kind.ACK_LOSS})])
def test_what_a_store_that_was_taken_for_dead_held_is_not_lost_by_the_system(
    make_pool, stage_of, told, kinds
):
    pool = expiring_during_waits(make_pool(stores=1), told=told)
    waits = Step(do=Do.WAIT, seconds=0.1)
    played = play(schedule_of(put("k0"), waits, get("k0")), stage_of(pool))

    assert kinds_of(played) == kinds
    assert [w.kind for w in played.windows] == ["expired"] * told


def test_a_store_that_is_another_one_after_a_fault_has_no_window_but_the_faults(
    make_pool, stage_of
):
    pool = make_pool(stores=1)
    pool.mounts = lambda: {"store-0": len(pool.faults)}
    steps = put("k0"), broken("restart", "store-0"), get("k0")
    played = play(schedule_of(*steps), stage_of(pool))

    assert [w.kind for w in played.windows] == ["restart"]


@pytest.mark.parametrize(("code", "kinds"), [(-200, set()), (-705, {Kind.ACK_LOSS})])
def test_a_write_that_found_no_room_may_have_evicted_another(
    make_pool, stage_of, code, kinds
):
    pool = make_pool(stores=1)
    plain = pool.put

    def refused(name, value):
        if value != 2:
            return plain(name, value)
        pool.lose("store-0")
        return code

    pool.put = refused
    steps = put("k0"), put("k1", value=2), get("k0")

    assert kinds_of(play(schedule_of(*steps), stage_of(pool))) == kinds

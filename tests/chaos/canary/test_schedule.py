from __future__ import annotations

from collections import Counter

import pytest

from chaos.canary.schedule import (
    ARMS,
    BASELINE,
    CANARY,
    blocks_of,
    length_class,
    members_of,
    turns_of,
)
from chaos.systems.base import Request


def requests(count, *, gap_s=0.5, sessions=3):
    return [
        Request(
            request_id=f"r{i}",
            session=f"s{i % sessions}",
            at_s=10 + i * gap_s,
            input_length=1000,
            output_length=1,
            hash_ids=(i, i + 1),
        )
        for i in range(count)
    ]


def test_blocks_hold_every_request_once_in_order_with_its_number():
    blocks = blocks_of(requests(10), 4, first=100, number=7)

    numbers = [each.number for block in blocks for each in block.requests]
    ids = [each.request.request_id for block in blocks for each in block.requests]
    assert numbers == list(range(100, 110))
    assert ids == [f"r{i}" for i in range(10)]
    assert [block.number for block in blocks] == [7, 8, 9]
    assert [len(block.requests) for block in blocks] == [4, 4, 2]


def test_a_block_counts_from_its_own_beginning():
    block = blocks_of(requests(8), 4)[1]

    assert [each.request.at_s for each in block.requests] == [0.0, 0.5, 1.0, 1.5]
    assert block.lasts_s == 1.5


@pytest.mark.parametrize(("count", "size"), [(0, 4), (4, 0)])
def test_an_empty_trace_or_block_is_refused(count, size):
    with pytest.raises(ValueError, match="at least one"):
        blocks_of(requests(count), size)


def test_turns_are_swapped_from_block_to_block():
    turns = turns_of(blocks_of(requests(8), 2))

    assert "".join(turn.arm[0] for turn in turns) == "bccbbccb"
    assert [turn.number for turn in turns] == list(range(8))


def test_a_linear_drift_meets_both_arms_alike():
    turns = turns_of(blocks_of(requests(40), 2))
    drift = {arm: sum(t.number for t in turns if t.arm == arm) for arm in ARMS}

    assert drift[BASELINE] == drift[CANARY]


def test_both_arms_replay_every_block():
    turns = turns_of(blocks_of(requests(9), 2))

    seen = {arm: [t.block.number for t in turns if t.arm == arm] for arm in ARMS}
    assert seen[BASELINE] == seen[CANARY] == list(range(5))


def test_sessions_stay_at_home_unless_they_roam():
    trace = requests(60, sessions=4)
    home = members_of(trace, 2, roam=0.0, seed=1)
    roaming = members_of(trace, 2, roam=1.0, seed=1)

    places = {(r.session, home[r.request_id]) for r in trace}
    assert len(places) == 4
    assert Counter(place for _, place in places) == {0: 2, 1: 2}
    assert len({(r.session, roaming[r.request_id]) for r in trace}) > 4


def test_the_same_seed_routes_alike_and_another_does_not():
    trace = requests(60)

    one = members_of(trace, 3, roam=0.5, seed=1)
    assert one == members_of(trace, 3, roam=0.5, seed=1)
    assert one != members_of(trace, 3, roam=0.5, seed=2)


@pytest.mark.parametrize(("members", "roam"), [(0, 0.5), (2, 1.5)])
def test_routes_to_nowhere_are_refused(members, roam):
    with pytest.raises(ValueError, match="roaming share"):
        members_of(requests(2), members, roam=roam, seed=0)


@pytest.mark.parametrize(
    ("tokens", "name"), [(1, "1k"), (1024, "1k"), (1025, "2k"), (4000, "4k")]
)
def test_lengths_have_classes_of_powers_of_two(tokens, name):
    assert length_class(tokens) == name

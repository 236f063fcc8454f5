from __future__ import annotations

import json
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from chaos.load.trace import (
    TraceError,
    dump_trace,
    load_trace,
    longest_per_session,
    prefix_hit_share,
    spread,
    with_sessions,
)

GOOD = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_every_field_of_a_line_arrives(tmp_path):
    path = write(tmp_path / "t.jsonl", GOOD | {"timestamp": 1500})

    (request,) = load_trace(path)

    assert request.at_s == 1.5
    assert (request.input_length, request.output_length) == (1000, 5)
    assert request.hash_ids == (0, 1)


def test_optional_fields_of_aiperf_are_accepted(tmp_path):
    turn = {k: v for k, v in GOOD.items() if k != "timestamp"}
    path = write(
        tmp_path / "t.jsonl",
        GOOD | {"session_id": "a", "timestamp": 1000, "text_input": "hello"},
        turn | {"session_id": "a", "delay": 250},
    )

    first, second = load_trace(path)

    assert first.session == second.session == "a"
    assert second.at_s == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("change", "field", "remedy"),
    [
        ({"timestamp": -1}, "timestamp", "0 or more"),
        ({"timestamp": "0"}, "timestamp", "milliseconds"),
        ({"timestamp": True}, "timestamp", "milliseconds"),
        ({"input_length": 0}, "input_length", "1 or more"),
        ({"input_length": 1.5}, "input_length", "integer"),
        ({"output_length": -1}, "output_length", "0 or more"),
        ({"hash_ids": [0]}, "hash_ids", "is 2 blocks of 512 tokens, so give 2"),
        ({"hash_ids": [0, -1]}, "hash_ids", "0 or more"),
        ({"hash_ids": "0,1"}, "hash_ids", "list of block ids"),
        ({"session_id": 1.5}, "session_id", "string"),
        ({"text_input": 1}, "text_input", "string"),
        ({"priority": 1}, "priority", "is unknown"),
    ],
)
def test_an_error_names_file_line_field_value_and_remedy(
    tmp_path, change, field, remedy
):
    path = write(tmp_path / "t.jsonl", GOOD, GOOD | change)

    with pytest.raises(TraceError) as caught:
        load_trace(path)

    value = next(iter(change.values()))
    shown = -1 if value == [0, -1] else value
    assert str(caught.value).startswith(f"{path}:2: {field} = {shown!r}: ")
    assert remedy in str(caught.value)


@pytest.mark.parametrize("name", ["timestamp", "input_length", "output_length"])
def test_a_missing_field_is_named(tmp_path, name):
    row = {key: value for key, value in GOOD.items() if key != name}

    with pytest.raises(TraceError, match=rf":1: {name} = None: is missing"):
        load_trace(write(tmp_path / "t.jsonl", row))


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "t.jsonl"
    path.write_text(text)

    with pytest.raises(TraceError):
        load_trace(path)


def test_limit_bounds_the_requests_read(tmp_path):
    path = write(tmp_path / "t.jsonl", *[GOOD] * 5, {"broken": 1})

    assert len(load_trace(path, limit=5)) == 5


def test_a_dumped_trace_is_the_same_trace(tmp_path, fabricate):
    made = [fabricate.request("r1", session="x", at_s=0.25, tokens=700)]

    dump_trace(tmp_path / "t.jsonl", made)

    assert load_trace(tmp_path / "t.jsonl") == made


def quantised(fabricate, per_tick=10, ticks=5):
    return [
        fabricate.request(f"r{tick}-{i}", at_s=3.0 * tick)
        for tick in range(ticks)
        for i in range(per_tick)
    ]


def test_spread_stays_inside_the_tick_and_keeps_the_order(fabricate):
    requests = quantised(fabricate)

    done = spread(requests, random.Random(1))

    assert [one.request_id for one in done] == [one.request_id for one in requests]
    assert all(a.at_s <= b.at_s for a, b in pairwise(done))
    assert all(
        0 <= new.at_s - old.at_s <= 3 for old, new in zip(requests, done, strict=True)
    )
    assert len({one.at_s for one in done}) == len(requests)


def test_spread_is_seeded_and_none_changes_nothing(fabricate):
    requests = quantised(fabricate)

    assert spread(requests, random.Random(1)) == spread(requests, random.Random(1))
    assert spread(requests, random.Random(1)) != spread(requests, random.Random(2))
    assert spread(requests, random.Random(1), "none") == requests
    with pytest.raises(ValueError, match="uniform"):
        spread(requests, random.Random(1), "even")


def test_sessions_follow_the_deepest_known_block_but_not_a_shared_prompt(fabricate):
    def ask(name, *blocks):
        tokens = 512 * len(blocks)
        return fabricate.request(name, session="", tokens=tokens, hash_ids=blocks)

    roots = [ask(f"r{i}", 0, 100 + i) for i in range(12)]
    turn = ask("turn", 0, 103, 900)

    found = with_sessions([*roots, turn])

    assert len({one.session for one in found}) == 12
    assert found[-1].session == found[3].session


def test_longest_per_session_shares_no_private_block(fabricate):
    short = fabricate.request("a", session="x", tokens=600)
    long = fabricate.request("b", session="x", tokens=2000, at_s=1)
    other = fabricate.request("c", session="y", tokens=600)

    assert longest_per_session([short, long, other]) == [other, long]


def test_a_hit_needs_every_earlier_block(fabricate):
    def ask(*blocks):
        return fabricate.request(tokens=512 * len(blocks), hash_ids=blocks)

    assert prefix_hit_share([ask(1, 2), ask(9, 2)]) == 0
    assert prefix_hit_share([ask(1, 2), ask(1, 3)]) == 0.25
    assert prefix_hit_share([ask(1, 2, 3), ask(1, 2, 3)], capacity_blocks=2) == 0


TRACES = Path(os.environ.get("MOONQUAKE_TRACES", "traces"))


@pytest.mark.parametrize(
    ("name", "capacity", "golden"),
    [
        ("conversation", None, 0.366),
        ("conversation", 1_000, 0.045),
        ("conversation", 10_000, 0.211),
        ("conversation", 30_000, 0.326),
        ("synthetic", None, 0.640),
        ("synthetic", 1_000, 0.083),
        ("synthetic", 10_000, 0.424),
        ("synthetic", 30_000, 0.624),
    ],
)
def test_reuse_of_the_published_traces(name, capacity, golden):
    path = TRACES / f"{name}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here; MOONQUAKE_TRACES names its directory")

    share = prefix_hit_share(load_trace(path), capacity)

    assert share == pytest.approx(golden, abs=0.001)

from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest

from chaos.load.generate import GeneratorSettings, generate, shared_blocks
from chaos.load.trace import dump_trace, load_trace, prefix_hit_share


def made(seed=1, **fields):
    return generate(GeneratorSettings(**fields), random.Random(seed))


def gaps(requests):
    return [after.at_s - before.at_s for before, after in pairwise(requests)]


def test_one_seed_is_one_trace():
    assert made(1) == made(1)
    assert made(1) != made(2)


def test_every_prompt_has_the_blocks_of_its_length():
    requests = made(requests=400)

    assert all(len(r.hash_ids) == -(-r.input_length // 512) for r in requests)
    assert all(len(set(r.hash_ids)) == len(r.hash_ids) for r in requests)
    assert max(r.input_length for r in requests) <= 8_192


def test_what_it_makes_is_a_valid_trace_file(tmp_path):
    dump_trace(tmp_path / "t.jsonl", made())

    assert len(load_trace(tmp_path / "t.jsonl")) == 200


def test_a_block_has_one_place_and_one_parent():
    parents = {}
    for request in made(requests=600):
        for index, block in enumerate(request.hash_ids):
            parent = request.hash_ids[index - 1] if index else None

            assert parents.setdefault(block, (index, parent)) == (index, parent)


def test_sessions_share_their_system_prompt_and_nothing_else():
    settings = GeneratorSettings(requests=400)
    shared = shared_blocks(settings)
    owners = {}
    for request in generate(settings, random.Random(3)):
        assert set(request.hash_ids[: settings.system_blocks]) <= shared
        for block in request.hash_ids[settings.system_blocks :]:
            assert owners.setdefault(block, request.session) == request.session


def test_popular_prompts_follow_zipf():
    requests = made(requests=500, sessions=500, system_prompts=8, zipf=1.1)
    first = [request.hash_ids[0] // 2 for request in requests]

    assert first.count(0) > 2 * first.count(3) > 0


def test_branching_makes_siblings():
    def children(branching):
        followers = {}
        for request in made(requests=400, branching=branching):
            for block, after in pairwise(request.hash_ids[2:]):
                followers.setdefault(block, set()).add(after)
        return max(len(after) for after in followers.values())

    assert children(0.5) > 2


def test_reuse_is_what_a_conversation_has():
    assert 0.4 < prefix_hit_share(made(requests=400)) < 0.8
    assert prefix_hit_share(made(requests=32, sessions=32, system_prompts=32)) < 0.3


def test_arrivals_have_the_rate_and_the_bursts_asked_for():
    def shape(burstiness):
        found = gaps(made(requests=4000, rate_per_s=50, burstiness=burstiness))
        mean = statistics.mean(found)
        return mean, statistics.pvariance(found) / mean**2

    assert shape(0) == (pytest.approx(0.02), pytest.approx(0, abs=1e-9))
    assert shape(1) == (pytest.approx(0.02, rel=0.1), pytest.approx(1, rel=0.2))
    assert shape(6) == (pytest.approx(0.02, rel=0.2), pytest.approx(6, rel=0.4))


def test_fixed_length_prompts_still_share_prefixes():
    requests = made(fixed_input_tokens=8_192)

    assert {request.input_length for request in requests} == {8_192}
    assert prefix_hit_share(requests) > 0.4


def test_traces_of_two_tests_are_kept_apart():
    one, two = made(first_block_id=0), made(first_block_id=1 << 20)
    blocks = [{b for r in requests for b in r.hash_ids} for requests in (one, two)]

    assert not blocks[0] & blocks[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_input_tokens": 1_000},
        {"requests": 0},
        {"rate_per_s": 0},
        {"branching": 1.5},
        {"burstiness": -1},
    ],
)
def test_impossible_shapes_are_refused(fields):
    with pytest.raises(ValueError):
        GeneratorSettings(**fields)

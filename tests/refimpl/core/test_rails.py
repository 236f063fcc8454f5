from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from refimpl.core.rails import (
    ERR_DEVICE_NOT_FOUND,
    ERR_MALFORMED_JSON,
    WILDCARD,
    RailHealth,
    RailSettings,
    Topology,
    TopologyError,
)

EXAMPLE = json.dumps(
    {
        "cpu:0": [["mlx5_0", "mlx5_1"], ["mlx5_2", "mlx5_3"]],
        "cpu:1": [["mlx5_2", "mlx5_3"], ["mlx5_0", "mlx5_1"]],
        "cuda:0": [["mlx5_0"], ["mlx5_1", "mlx5_2", "mlx5_3"]],
        "far": [[], ["mlx5_3"]],
        "none": [[], []],
    }
)


def test_the_first_try_is_random_among_the_preferred():
    topology = Topology.from_json(EXAMPLE)
    rng = random.Random(5)
    seen = Counter(topology.select("cpu:0", 0, rng) for _ in range(1000))

    assert set(seen) == {"mlx5_0", "mlx5_1"}
    assert min(seen.values()) > 400


def test_retries_walk_preferred_then_available_and_wrap():
    topology = Topology.from_json(EXAMPLE)
    tries = [topology.select("cuda:0", n, random.Random(0)) for n in range(1, 6)]

    assert tries == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_0"]


def test_without_preferred_nics_the_available_ones_serve():
    assert Topology.from_json(EXAMPLE).select("far", 0, random.Random(0)) == "mlx5_3"


@pytest.mark.parametrize("location", ["none", "cuda:9"])
def test_no_nic_is_an_error(location):
    with pytest.raises(TopologyError) as caught:
        Topology.from_json(EXAMPLE).select(location, 0, random.Random(0))

    assert caught.value.code == ERR_DEVICE_NOT_FOUND


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "no json",
        '{"cpu:0": [["a"]]}',
        '{"cpu:0": [["a"], ["b"], ["c"]]}',
        '{"cpu:0": [["a"], [1]]}',
        '{"cpu:0": "a"}',
    ],
)
def test_other_shapes_are_malformed(text):
    with pytest.raises(TopologyError) as caught:
        Topology.from_json(text)

    assert caught.value.code == ERR_MALFORMED_JSON


def test_the_wildcard_holds_every_nic():
    topology = Topology.from_json(EXAMPLE)

    assert topology.choices(WILDCARD).all == topology.devices
    assert len(topology.devices) == 4


def test_a_disabled_nic_is_chosen_no_more_and_the_others_keep_their_index():
    topology = Topology.from_json(EXAMPLE)
    before = topology.index("mlx5_2")
    topology.disable("mlx5_0")
    rng = random.Random(0)

    assert all(topology.select("cpu:0", n, rng) != "mlx5_0" for n in range(50))
    assert topology.index("mlx5_2") == before


def test_five_errors_in_five_seconds_pause_a_rail_for_thirty():
    health = RailHealth(RailSettings())
    for i in range(4):
        health.record("s1@a", False, float(i))

    assert health.usable(["s1@a", "s1@b"], 3.0) == ["s1@a", "s1@b"]

    health.record("s1@a", False, 4.0)

    assert health.usable(["s1@a", "s1@b"], 4.0) == ["s1@b"]
    assert health.usable(["s1@a", "s1@b"], 33.9) == ["s1@b"]
    assert health.usable(["s1@a", "s1@b"], 34.0) == ["s1@a", "s1@b"]


def test_errors_further_apart_do_not_pause():
    health = RailHealth(RailSettings())
    for i in range(20):
        health.record("s1@a", False, i * 1.3)

    assert not health.paused("s1@a", 26.0)


def test_with_an_alternative_one_error_pauses_at_once():
    health = RailHealth(RailSettings())
    health.record("s1@a", False, 0.0, alternative=True)

    assert health.paused("s1@a", 0.0)
    assert health.pauses == 1


def test_successes_alone_remember_nothing():
    health = RailHealth(RailSettings())
    health.record("s1@a", True, 0.0)

    assert health.usable(["s1@a"], 0.0) == ["s1@a"]


def test_the_memory_is_bounded():
    health = RailHealth(RailSettings(rails_kept=8))
    for i in range(100):
        health.record(f"s{i}@a", False, 0.0, alternative=True)

    assert sum(health.paused(f"s{i}@a", 1.0) for i in range(100)) == 8

"""The real Mooncake behind the lanes: a store that is stopped costs the deadline."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl.core.codes import Code

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mooncake") is None,
        reason="the Mooncake wheel is not installed: pip install 'moonquake[mooncake]'",
    ),
]
ROOT = Path(__file__).parents[4]
PROGRAM = Path(__file__).with_name("real_mooncake.py")
SLACK_S = 0.25


@pytest.fixture(scope="module")
def told():
    """One run, measured from several sides."""
    net = f"127.90.{os.getpid() % 250 + 1}"
    addresses = [f"{net}.{n}" for n in (1, 11, 12)]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *addresses],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_was_put_is_read_back_from_both_stores(told):
    assert told["put"] == [0] * 16
    assert told["whole"]["codes"] == [0] * 16
    assert all(told["whole"]["right"])
    assert len(told["whole"]["endpoints"]) == 2
    assert told["canary"] == [0, 0]


def test_a_stopped_store_costs_the_deadline_and_its_own_keys_only(told):
    mixed = told["mixed"]

    assert 0.5 <= mixed["took_s"] < 0.5 + SLACK_S
    assert mixed["endpoints"][told["sick"]] == Code.RPC_TIMEOUT
    assert set(mixed["codes"]) == {0, Code.RPC_TIMEOUT}
    assert mixed["right"] == [code == 0 for code in mixed["codes"]]


def test_the_stopped_store_is_avoided_at_no_cost(told):
    again = told["again"]

    assert again["took_s"] < SLACK_S
    assert set(again["codes"]) == {0, Code.REPLICA_NOT_FOUND}


def test_probes_tell_the_sick_store_from_the_other(told):
    sick = told["sick"]

    assert {name: code == 0 for name, code in told["probes"].items()} == {
        name: name != sick for name in told["probes"]
    }


def test_hung_calls_come_back_and_their_lanes_with_them(told):
    lanes = told["stats"]["lanes"]

    assert lanes["hung"] == {}
    assert lanes["free"] == lanes["lanes"]
    assert lanes["late_returns"] == lanes["abandoned"] >= 1

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.judge.conservation import judge_baseline
from chaos.judge.verdict import Verdict
from chaos.steps import soak
from chaos.steps.footprint import Footprint


@pytest.fixture
def seen(monkeypatch):
    """What is held by an engine and a store that say how many connections they have."""

    def held(*, files=20, threads=20, connections=0):
        roles = ("engine-0", "store-0")
        print_ = Footprint(threads=threads, files=files, rss_bytes=1)
        monkeypatch.setattr(soak, "footprints", lambda _: dict.fromkeys(roles, print_))
        idle = {"client": {"transfer": {"idle_connections": connections}}}
        return soak.held(
            SimpleNamespace(
                engines=["engine-0"],
                stores=["store-0"],
                engine_state=lambda _: idle,
                role_state=lambda _: {"connections": connections},
            )
        )

    return held


def verdict(before, after):
    slack = {name: soak.slack_of(name) for name in before}
    return judge_baseline(before, after, slack=slack).verdict


def test_idle_connections_come_and_go(seen):
    before = seen(files=20, threads=20, connections=2)

    more = seen(files=28, threads=28, connections=10)
    threads_of_the_engine = {"engine-0 threads": 20}

    assert verdict(before, more | threads_of_the_engine) is Verdict.PASS


@pytest.mark.parametrize("leak", [{"files": 25}, {"threads": 25}])
def test_files_and_threads_that_no_connection_explains_are_a_leak(seen, leak):
    assert verdict(seen(), seen(**leak)) is Verdict.FAIL


def test_connections_without_a_bound_are_a_leak(seen):
    before, after = seen(), seen(files=60, threads=60, connections=40)

    assert verdict(before, after | {"engine-0 threads": 20}) is Verdict.FAIL

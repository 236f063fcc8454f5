from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.judge.conservation import judge_baseline
from chaos.judge.verdict import Verdict
from chaos.steps import soak
from chaos.steps.footprint import Footprint


@pytest.fixture
def seen(monkeypatch):
    """What an engine and a store hold that say how many connections they have."""

    def held(*, more=0, idle=0, served=None, leaked=0):
        served = idle if served is None else served
        sizes = {"engine-0": 20 + idle + more, "store-0": 20 + served + more + leaked}
        prints = {
            role: Footprint(
                threads=20 if role == "engine-0" else size, files=size, rss_bytes=1
            )
            for role, size in sizes.items()
        }
        monkeypatch.setattr(soak, "footprints", lambda _: prints)
        state = {"client": {"transfer": {"idle_connections": idle}}}
        return soak.held(
            SimpleNamespace(
                engines=["engine-0"],
                stores=["store-0"],
                engine_state=lambda _: state,
                role_state=lambda _: {"connections": served},
            )
        )

    return held


def verdict(before, after):
    slack = {name: soak.slack_of(name) for name in before}
    return judge_baseline(before, after, slack=slack).verdict


def test_idle_connections_come_and_go(seen):
    assert verdict(seen(idle=2), seen(idle=10)) is Verdict.PASS


def test_a_few_threads_and_files_more_are_pools_that_grew(seen):
    assert verdict(seen(), seen(more=4)) is Verdict.PASS


@pytest.mark.parametrize(
    "leak", [{"more": 5}, {"leaked": 5}, {"served": 20}, {"idle": 40}]
)
def test_what_no_pool_explains_is_a_leak(seen, leak):
    assert verdict(seen(), seen(**leak)) is Verdict.FAIL


def test_a_role_that_is_gone_is_not_counted(seen, monkeypatch):
    before = seen()

    after = {name: count for name, count in seen().items() if "files" not in name}

    assert verdict(before, after) is Verdict.INCONCLUSIVE

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.canary.cluster_arm import row_of
from chaos.canary.play import (
    _only,
    counts_of,
    fault_row,
    prepare,
    refuse_unproved,
    window_of,
)
from chaos.canary.schedule import Numbered
from chaos.errors import HarnessError, NotHere, UsageError
from chaos.judge.verdict import Judgement, Verdict
from chaos.systems.base import ClusterSpec

TEXT = """
name: stores fail to read
seed: 3
cluster: {{stores: {stores}, engines: 2}}
load: {{rate_per_s: 2, sessions: 4, after: 10s}}
timeline:
  - {{fault: failpoint, target: store-0, name: store.read, spec: "return(-800)",
     at: 5s, for: 5s}}
abort: [{{wrong_bytes: 0}}]
"""


@pytest.fixture
def path(tmp_path):
    def write(name="reads", stores=2):
        file = tmp_path / f"{name}.yaml"
        file.write_text(TEXT.format(stores=stores), encoding="utf-8")
        return file

    return write


def cluster(**fields):
    return SimpleNamespace(
        spec=ClusterSpec(**{"stores": 4, "engines": 2, **fields}),
        host_of=lambda role: role,
    )


def row_in(sample):
    numbered = Numbered(number=5, request=sample.request)
    return row_of(numbered, sample, host="engine-0", turn=1, at_s=2.0)


def judged(verdict, kind="counter"):
    return Judgement(
        oracle="O1",
        claim="claim",
        verdict=verdict,
        observed="",
        threshold="",
        samples=1,
        kind=kind,
    )


def played(**fields):
    values = {
        "before": judged(Verdict.PASS),
        "after": judged(Verdict.PASS),
        "tripped": None,
        "halted": None,
        "not_injected": [],
        "not_here": [],
    }
    return SimpleNamespace(**{**values, **fields})


def test_both_arms_get_the_same_requests_under_numbers_of_their_own(path):
    first, second = prepare([path("a"), path("b")], cluster(), seed=1, first=100)
    (again, _) = prepare([path("a"), path("b")], cluster(), seed=1, first=100)

    assert first.requests == again.requests
    assert first.first == 100
    assert second.first == 100 + len(first.requests)
    numbers = [each.number for each in first.numbers().values()]
    assert numbers == list(range(100, second.first))
    ids = {r.request_id for piece in (first, second) for r in piece.requests}
    assert len(ids) == len(first.requests) + len(second.requests)


def test_a_scenario_that_needs_more_than_the_arms_have_is_refused(path):
    with pytest.raises(UsageError, match="needs 9 stores, the arms have 4"):
        prepare([path(stores=9)], cluster(), seed=1, first=0)


def test_a_bad_day_has_columns_of_its_own(fabricate):
    sample = fabricate.sample(ttft_s=0.4, cache_wait_s=0.3)

    row = fault_row(row_in(sample), 0.6)

    assert row.ttft_s is None
    assert row.cache_wait_s is None
    assert (row.prompt_tokens, row.hit_tokens) == (None, None)
    assert row.metrics == {
        "fault_ttft_s": 0.4,
        "fault_wait_s": 0.3,
        "fault_waited": 0.5,
    }
    assert row.klass == "fault-1k"
    assert row.lag_s is not None


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({}, (0, 0, 0)),
        ({"after": judged(Verdict.FAIL)}, (1, 0, 0)),
        ({"before": judged(Verdict.FAIL), "after": None}, (1, 0, 0)),
        ({"tripped": object()}, (0, 1, 0)),
    ],
)
def test_what_a_play_broke_is_counted(monkeypatch, fields, counted):
    monkeypatch.setattr("chaos.canary.play.judge_played", lambda *_: [])

    found = counts_of(played(**fields), cluster())

    names = ("unsteady", "aborted_plays", "broken_oracles")
    assert tuple(found[name] for name in names) == counted


def test_oracles_of_speed_are_left_to_the_gate(monkeypatch):
    oracles = [
        judged(Verdict.FAIL, kind="timing"),
        judged(Verdict.FAIL),
        judged(Verdict.INCONCLUSIVE),
    ]
    monkeypatch.setattr("chaos.canary.play.judge_played", lambda *_: oracles)

    assert counts_of(played(), cluster())["broken_oracles"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"not_injected": ["kill(store-0): still alive"]},
        {"not_here": [NotHere(capability="kill", target="x", reason="no")]},
        {"halted": "by somebody"},
    ],
)
def test_a_play_without_its_faults_compares_nothing(path, fields):
    (piece,) = prepare([path()], cluster(), seed=1, first=0)

    with pytest.raises(HarnessError, match="was not played on the canary"):
        refuse_unproved(piece, "canary", played(**fields))
    refuse_unproved(piece, "canary", played())


def test_the_window_of_a_fault_is_the_planned_one_in_both_arms(path):
    (piece,) = prepare([path()], cluster(), seed=1, first=0)

    assert window_of(piece.schedule) == (5.0, 10.0)
    assert window_of(piece.schedule.scaled(0.1)) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("inside", "late", "kept"),
    [
        (False, False, set()),
        (True, False, {"fault_ttft_s", "fault_wait_s"}),
        (True, True, {"fault_ttft_s", "fault_wait_s", "fault_waited"}),
    ],
)
def test_waits_count_when_a_build_had_time_to_learn(fabricate, inside, late, kept):
    sample = fabricate.sample(ttft_s=0.4, cache_wait_s=0.3)
    row = fault_row(row_in(sample), 0.6)

    metrics = _only(row, inside=inside, late=late).metrics

    assert {name for name, value in metrics.items() if value is not None} == kept

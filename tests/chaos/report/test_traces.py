from __future__ import annotations

import json

import pytest

from chaos.history.history import History
from chaos.load.sample import Ending
from chaos.report import traces as module
from chaos.report.traces import read_traces


@pytest.fixture
def history(tmp_path):
    with History(tmp_path / "history.jsonl", clock=lambda: 50.0) as opened:
        opened.test = "t::one"
        yield opened


def read(history, **given):
    history.close()
    return read_traces(history.path, **given)


def test_samples_become_columns_by_test_and_arm(history, fabricate):
    for arm, l3 in (("healthy", 512), ("fault", 0)):
        history.complete(
            fabricate.sample("r1", at_s=3.0, lag_s=0.5, l3=l3), arm, "out-r1"
        )
    history.test = "t::two"
    history.complete(fabricate.sample("r1"), "fault", "another")

    found = read(history)

    fault = found.tests["t::one"].arms["fault"]
    assert (fault.at_s, fault.ttft_s, fault.reused, fault.asked) == (
        *([3.0], [pytest.approx(0.6)], [0], [1024]),
    )
    assert found.tests["t::one"].arms["healthy"].hit_rate == 0.5
    assert found.tests["t::one"].arms["healthy"].wrong == [False]
    assert found.tests["t::two"].arms["fault"].wrong == [True]
    assert found.why == ""


def test_hung_requests_count_as_failed_and_what_was_not_sent_does_not(
    history, fabricate
):
    for ending in Ending:
        history.complete(fabricate.sample(ending.value, ending=ending, latency_s=9.0))

    arm = read(history).tests["t::one"].arms["fault"]

    assert arm.requests == ["done", "hung"]
    assert (arm.failed, arm.ttft_s[1]) == (1, 9.0)


def test_set_up_is_not_shown(history, fabricate):
    history.complete(fabricate.sample("r1"), "keep")

    assert read(history).tests["t::one"].shown == []


def test_breakers_faults_and_the_poll_are_read(history, fabricate):
    history.limits(fabricate.limits())
    rows = [
        {"at": 2.0, "from": "open", "to": "half_open", "reason": "time"},
        {"at": 1.0, "from": "closed", "to": "open", "reason": "faults"},
        {"at": 1.5, "from": "open", "to": "closed", "reason": "operator"},
    ]
    for _ in range(2):  # noted twice, kept once
        history.info("breaker", "engine-0", transitions=rows)

    found = read(history).tests["t::one"]

    assert found.poll_s == fabricate.limits().poll_s
    assert [change.at_s for change in found.breakers["engine-0"]] == [1.0, 2.0]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"f": "prefill", "test": "t", "type": "ok", "value": {}}',
        '{"f": "limits", "test": "t", "type": "info", "value": {"poll_s": NaN}}',
        '{"f": "limits", "test": "t", "type": "info", "value": {"poll_s": true}}',
        '{"f": "breaker", "test": "t", "process": "e", "value": {"transitions": 3}}',
        '{"f": "fault", "test": "t", "value": {"receipt": null}}',
    ],
)
def test_damage_is_counted_and_left_out(tmp_path, line):
    path = tmp_path / "history.jsonl"
    path.write_text(f"{line}\n")

    found = read_traces(path)

    assert found.damaged == 1
    assert "1 lines of the history could not be read" in found.why


def test_a_cut_history_says_how_much_is_missing(tmp_path):
    path = tmp_path / "history.jsonl"
    row = {"f": "truncated", "type": "info", "test": "", "value": {"dropped": 7}}
    path.write_text(json.dumps(row) + "\n")

    assert "7 events are missing" in read_traces(path).why


def test_too_large_a_history_is_not_read_unless_somebody_insists(history, fabricate):
    history.complete(fabricate.sample("r1"))

    assert read(history, most_bytes=10).tests == {}
    assert "chaos analyze RUN --html" in read(history, most_bytes=10).why
    assert len(read(history).tests) == 1


def test_arms_and_samples_are_bounded(history, fabricate, monkeypatch):
    monkeypatch.setattr(module, "MOST_ARMS", 2)
    monkeypatch.setattr(module, "MOST_SAMPLES", 3)
    for number in range(4):
        history.complete(fabricate.sample("r"), f"arm-{number}")
        history.complete(fabricate.sample("r"), "arm-0")

    found = read(history)

    arms = found.tests["t::one"].arms
    assert {name: len(arm) for name, arm in arms.items()} == {"arm-0": 3, "arm-1": 1}
    assert found.damaged == 4


def test_names_are_one_printable_line_without_secrets(history, fabricate):
    history.complete(fabricate.sample("r"), "a\x1b[2J\n" + "x" * 100)

    (name,) = read(history).tests["t::one"].arms

    assert name.startswith("a?[2J?x")
    assert len(name) == 60


def test_what_a_system_says_it_is_is_kept(history):
    history.info("version", "mooncake", text="0.3.13")

    assert read(history).versions == {"mooncake": "0.3.13"}

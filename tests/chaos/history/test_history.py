from __future__ import annotations

import json
import threading

import pytest

from chaos.faults.base import Evidence, Receipt
from chaos.history.history import (
    EventType,
    History,
    HistoryError,
    fault_windows,
    is_truncated,
    limits_of,
    open_invokes,
    read_history,
    samples_of,
)
from chaos.load.sample import Ending


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.jsonl"


def test_samples_come_back_as_they_were(path, fabricate):
    done = fabricate.sample("r1", at_s=1.0)
    failed = fabricate.sample("r2", at_s=2.0, ok=False, error="x")
    hung = fabricate.sample("r0", at_s=3.0, ending=Ending.HUNG, latency_s=9)
    with History(path) as history:
        for sample in (hung, failed, done):
            history.complete(sample, "fault", expected="out")

    events = read_history(path)
    samples, expected = samples_of(events, arm="fault")

    assert samples == [done, failed, hung]
    assert expected == {"r0": "out", "r1": "out", "r2": "out"}
    assert [e.type for e in events] == [EventType.INFO, EventType.FAIL, EventType.OK]


def test_arms_and_tests_are_kept_apart(path, fabricate):
    with History(path) as history:
        history.test = "a"
        history.complete(fabricate.sample("r1"), "fault")
        history.complete(fabricate.sample("r1"), "local_only")
        history.test = "b"
        history.complete(fabricate.sample("r2"), "fault")

    events = read_history(path)

    assert len(samples_of(events, arm="local_only")[0]) == 1
    assert len(samples_of(events, arm="fault")[0]) == 2
    assert len(samples_of(events, arm="fault", test="a")[0]) == 1


def test_a_request_without_an_end_does_not_disappear(path, fabricate):
    with History(path) as history:
        for name in ("r0", "r1"):
            history.invoke(fabricate.request(name), "engine-0", 1.0)
        history.complete(fabricate.sample("r0"))

    (lost,) = open_invokes(read_history(path))

    assert lost.value["request_id"] == "r1"


def test_a_second_replay_hides_no_sample_of_the_first(path, fabricate):
    first = fabricate.sample("r0", at_s=1.0, output_hash="stale")
    second = fabricate.sample("r0", at_s=9.0, tokens=2048)
    with History(path) as history:
        for sample, expected in ((first, "one"), (second, "two")):
            history.invoke(sample.request, "e", sample.sent_s, "fault")
            history.complete(sample, "fault", expected)
        history.invoke(first.request, "e", 20.0, "fault")

    events = read_history(path)
    samples, expected = samples_of(events, arm="fault")

    assert [sample.request.request_id for sample in samples] == ["r0", "r0#2"]
    assert expected == {"r0": "one", "r0#2": "two"}
    assert len(open_invokes(events)) == 1


def test_limits_come_back(path, fabricate):
    with History(path) as history:
        history.limits(fabricate.limits())

    assert limits_of(read_history(path)) == fabricate.limits()
    assert limits_of([]) is None


def test_fault_windows_have_their_times(path):
    now = [5.0]
    receipt = Receipt(
        fault_id="f1",
        kind="kill",
        target="store-1",
        evidence=Evidence(measure="gone", effect=1),
    )
    with History(path, clock=lambda: now[0]) as history:
        history.fault("begin", receipt)
        now[0] = 7.5
        history.fault("end", receipt)
        history.fault("begin", Receipt(fault_id="f2", kind="pause", target="s2"))

    first, second = fault_windows(read_history(path))

    assert (first.kind, first.target, first.start_s, first.end_s) == (
        "kill",
        "store-1",
        5.0,
        7.5,
    )
    assert second.end_s is None


def test_a_full_history_counts_what_it_dropped_and_says_so(path):
    with History(path, max_events=3) as history:
        kept = [history.info("note", number=i) for i in range(5)]

    events = read_history(path)

    assert kept == [True, True, True, False, False]
    assert is_truncated(events)
    assert events[-1].value == {"dropped": 2}


def test_a_cut_last_line_is_seen_and_the_rest_is_read(path):
    with History(path) as history:
        history.info("one")
        history.info("two")
    path.write_text(path.read_text()[:-20])

    events = read_history(path)

    assert [event.operation for event in events] == ["one", "truncated"]
    assert is_truncated(events)


def test_damage_before_the_last_line_is_an_error_with_its_line(path):
    with History(path) as history:
        history.info("one")
        history.info("two")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["{", *lines]))

    with pytest.raises(HistoryError, match=r"history\.jsonl:1"):
        read_history(path)


def test_a_line_is_in_the_file_before_it_is_closed(path):
    with History(path) as history:
        history.info("one")

        assert len(read_history(path)) == 1


def test_threads_do_not_tear_lines(path):
    with History(path) as history:
        threads = [
            threading.Thread(
                target=lambda: [history.info("x", text="y" * 500) for _ in range(50)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(read_history(path)) == 200


def test_closed_twice_is_closed_and_takes_nothing(path):
    history = History(path)
    history.close()
    history.close()

    assert history.info("late") is False


def test_every_line_is_plain_json(path, fabricate):
    with History(path) as history:
        history.complete(fabricate.sample("r1"))
        history.info("odd", names=frozenset({"b", "a"}), kind=EventType.OK)

    rows = [json.loads(text) for text in path.read_text().splitlines()]
    assert rows[1]["value"] == {"names": ["a", "b"], "kind": "ok"}

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos import breakers
from chaos.breakers import note_breakers
from chaos.history.history import History, read_history


class Engines:
    """A cluster of which only the breakers' logs are asked."""

    def __init__(self, logs):
        self.engines = tuple(logs)
        self.logs = logs
        self.asked = []

    def engine_state(self, engine):
        self.asked.append(engine)
        log = self.logs[engine]
        if isinstance(log, Exception):
            raise log
        return {"hicache": {"breaker": {"transitions": log}}}


def row(at):
    return {"at": at, "from": "closed", "to": "open", "reason": "faults"}


@pytest.fixture
def noted(tmp_path):
    def note(cluster, since_s=5.0):
        with History(tmp_path / "history.jsonl", clock=lambda: 9.0) as history:
            history.test = "t"
            note_breakers(history, cluster, since_s=since_s)
        return read_history(tmp_path / "history.jsonl")

    return note


def test_the_log_of_every_engine_since_the_test_began_is_kept(noted):
    cluster = Engines({"engine-0": [row(1.0), row(6.0)], "engine-1": []})

    events = noted(cluster)

    found = {e.process: [r["at"] for r in e.value["transitions"]] for e in events}
    assert found == {"engine-0": [6.0], "engine-1": []}
    assert {(e.operation, e.test) for e in events} == {("breaker", "t")}


@pytest.mark.parametrize("log", [OSError("gone"), 3, [{"at": "x"}], [{}]])
def test_an_engine_that_does_not_answer_ends_it_and_is_written_down(noted, log):
    cluster = Engines({"engine-0": log, "engine-1": []})

    (event,) = noted(cluster)

    assert (event.operation, event.process) == ("breaker_unknown", "engine-0")
    assert cluster.asked == ["engine-0"]


def test_the_last_changes_are_kept(noted, monkeypatch):
    monkeypatch.setattr(breakers, "MOST_CHANGES", 2)

    (event,) = noted(Engines({"engine-0": [row(6.0), row(7.0), row(8.0)]}))

    assert [r["at"] for r in event.value["transitions"]] == [7.0, 8.0]


def test_a_system_without_engines_has_nothing_to_tell(noted):
    assert noted(SimpleNamespace(engines=())) == []

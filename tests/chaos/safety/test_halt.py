from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import dataclass

import pytest

from chaos.errors import UsageError
from chaos.safety.halt import (
    Halted,
    HostLever,
    LeverPoll,
    Levers,
    LeverWatch,
    LocalLever,
    Pulled,
    pull,
    release,
)


@pytest.fixture
def lever(tmp_path):
    return LocalLever(tmp_path / "halt.json")


@dataclass
class Done:
    rc: int
    stdout: str
    stderr: str = ""


def run_here(argv, stdin):
    """A host that is this machine: the very commands that a lever sends."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=5)
    return Done(done.returncode, done.stdout, done.stderr)


class Unreachable:
    where = "node-9:/run/moonquake/halt.json"

    def read(self):
        raise TimeoutError("no answer")

    def pull(self, pulled):
        raise TimeoutError("no answer")

    def release(self):
        raise TimeoutError("no answer")


def test_a_pulled_lever_tells_who_and_why(lever) -> None:
    pulled, failed = pull("an outage", [lever])

    found = lever.read()
    assert failed == {}
    assert found == Pulled(
        reason="an outage", by=pulled.by, at=pulled.at, where=lever.where
    )
    assert "an outage" in str(found)


def test_a_halt_needs_a_reason(lever) -> None:
    with pytest.raises(UsageError, match="needs a reason"):
        pull("  ", [lever])

    assert lever.read() is None


def test_a_run_refuses_to_start_while_the_lever_is_pulled(lever) -> None:
    levers = Levers([lever])
    levers.refuse()
    pull("an outage", [lever])

    with pytest.raises(Halted, match=r"an outage.*chaos resume") as refused:
        levers.refuse()

    assert refused.value.exit_code == 2
    assert release([lever]) == ([lever.where], {})
    levers.refuse()


def test_a_release_of_nothing_is_nothing(lever) -> None:
    assert release([lever]) == ([], {})


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"reason": "x"}'])
def test_whatever_is_written_there_counts_as_pulled(lever, text) -> None:
    lever.path.write_text(text)

    found = lever.read()

    assert found is not None
    assert "cannot be read" in found.reason


def test_a_lever_that_cannot_be_opened_counts_as_pulled(lever) -> None:
    lever.path.mkdir()

    assert lever.read() is not None


def test_a_pull_leaves_no_other_file(lever) -> None:
    pull("one", [lever])
    pull("two", [lever])

    assert [path.name for path in lever.path.parent.iterdir()] == ["halt.json"]
    assert json.loads(lever.path.read_text())["reason"] == "two"


def test_a_lever_on_a_host_is_read_and_written_by_plain_commands(tmp_path) -> None:
    host = HostLever("node-1", run_here, directory=str(tmp_path / "run"))

    assert host.read() is None
    assert host.release() is False
    pull("an outage", [host])
    found = host.read()
    assert found is not None
    assert found.reason == "an outage"
    assert found.where == f"node-1:{tmp_path}/run/halt.json"
    assert host.release() is True
    assert host.read() is None


def test_the_words_of_a_halt_reach_a_host_as_they_are(tmp_path) -> None:
    host = HostLever("node-1", run_here, directory=str(tmp_path))
    reason = "$(touch /tmp/x); `id` ' \" \\ ü"

    pull(reason, [host])

    found = host.read()
    assert found is not None
    assert found.reason == reason


def test_a_host_that_does_not_let_us_write_is_told(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    host = HostLever("node-1", run_here, directory=str(tmp_path / "file" / "run"))

    _, failed = pull("an outage", [host])

    assert "mkdir" in failed[host.where]


def test_an_unreachable_place_does_not_hide_the_others(lever) -> None:
    levers = Levers([Unreachable(), lever])
    assert levers.read() is None
    assert "no answer" in levers.unreachable[Unreachable.where]

    _, failed = pull("an outage", [Unreachable(), lever])

    assert list(failed) == [Unreachable.where]
    assert levers.read() is not None


def test_a_poll_asks_once_a_second(lever) -> None:
    now = [0.0]
    poll = LeverPoll(Levers([lever]), clock=lambda: now[0])
    assert poll() is None
    pull("an outage", [lever])

    now[0] = 0.9
    assert poll() is None
    now[0] = 1.0
    assert poll() is not None


def test_a_run_that_was_halted_stays_so(lever) -> None:
    now = [0.0]
    poll = LeverPoll(Levers([lever]), clock=lambda: now[0])
    pull("an outage", [lever])
    assert poll() is not None
    release([lever])

    now[0] = 5.0
    assert poll() is not None


def test_a_watch_calls_back_once(lever) -> None:
    called = threading.Event()
    calls = []

    def on_pulled(pulled):
        calls.append(pulled)
        called.set()

    with LeverWatch(Levers([lever]), on_pulled, every_s=0.01):
        pull("an outage", [lever])
        assert called.wait(5.0)

    assert [one.reason for one in calls] == ["an outage"]


def test_a_watch_ends_without_a_call(lever) -> None:
    before = set(threading.enumerate())
    watch = LeverWatch(Levers([lever]), pytest.fail, every_s=0.01).start()

    watch.stop()
    watch.stop()

    assert set(threading.enumerate()) <= before

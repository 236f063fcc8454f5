"""Hosts are asked through the agent's own program, here run on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from chaos.errors import UsageError
from chaos.safety import remote
from chaos.safety.halt import pull, release
from chaos.safety.remote import (
    here_recover,
    here_status,
    host_recover,
    host_status,
    levers_of,
)


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "hosts.yaml"
    hosts = {
        "node-1": {"ansible_host": "10.0.0.1"},
        "node-2": {"ansible_host": "10.0.0.2"},
    }
    lever = str(tmp_path / "shared" / "halt.json")
    (tmp_path / "shared").mkdir()
    path.write_text(json.dumps({"all": {"hosts": hosts, "vars": {"lever": lever}}}))
    return str(path)


class Session:
    """An SSH session to a host that is this machine."""

    def __init__(self, entry, answers) -> None:
        self.entry = entry
        self._answer = answers.get(entry.name, _here)

    def __enter__(self):
        return self

    def __exit__(self, *_exc) -> None:
        pass

    def run(self, argv, *, stdin=b"", timeout_s):
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout_s)
        return SimpleNamespace(rc=done.returncode, stdout=done.stdout, stderr=b"")

    def run_python(self, source, args=(), *, timeout_s):
        return self._answer(source, args, timeout_s)


def _here(source, args, timeout_s):
    """The program as the host would run it: from standard input."""
    done = subprocess.run(
        [sys.executable, "-", *args],
        input=source,
        capture_output=True,
        timeout=timeout_s,
    )
    return answer(done.stdout.decode(), done.returncode, done.stderr.decode())


def answer(text, rc=0, complaint=""):
    return SimpleNamespace(text=text, rc=rc, complaint=complaint)


def connect(**answers):
    return lambda entry: Session(
        entry, {name.replace("_", "-"): one for name, one in answers.items()}
    )


def rows(*found, rc=0):
    text = "".join(json.dumps(row) + "\n" for row in found)
    return lambda *_given: answer(text, rc)


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    """Neither the lever nor the ledgers of this machine."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(remote, "STATE_DIRECTORY", str(tmp_path / "run"))


def test_a_clean_host_is_told_as_clean_by_the_real_program(inventory) -> None:
    reports = host_status(inventory, connect())

    assert [report.lines() for report in reports] == [
        ["node-1: clean"],
        ["node-2: clean"],
    ]
    assert not any(report.residue or report.error for report in reports)


def test_recovering_a_clean_host_does_nothing_twice(inventory) -> None:
    for _ in range(2):
        told = [report.lines() for report in host_recover(inventory, connect())]
        assert told == [["node-1: clean"], ["node-2: clean"]]


def test_a_dead_run_with_a_fault_is_residue_a_live_one_is_not(inventory) -> None:
    fault = {"kind": "nic_down", "target": "store-1"}
    dead = {"run": "r1", "alive": False, "faults": [fault], "roles": []}
    live = {"run": "r2", "alive": True, "faults": [fault], "roles": [{"role": "x"}]}

    first, second = host_status(
        inventory, connect(node_1=rows(dead), node_2=rows(live))
    )

    assert first.residue
    assert first.lines() == ["node-1: r1 (dead): fault nic_down(store-1)"]
    assert not second.residue
    assert second.lines() == ["node-2: r2 (alive): fault nic_down(store-1), role x"]


def test_what_cannot_be_healed_is_residue(inventory) -> None:
    left = {"run": "r1", "state": "residual"}

    first, second = host_recover(inventory, connect(node_1=rows(left, rc=5)))

    assert first.residue
    assert first.lines() == ["node-1: r1: state=residual"]
    assert not second.residue


def test_a_host_that_cannot_be_asked_is_unknown_and_hides_no_other(inventory) -> None:
    def gone(*_given):
        raise TimeoutError("no answer within 60 s")

    first, second = host_status(inventory, connect(node_1=gone))

    assert first.lines() == ["node-1: UNKNOWN: no answer within 60 s"]
    assert second.lines() == ["node-2: clean"]


@pytest.mark.parametrize(
    ("text", "rc"), [("not json\n", 0), ("[]\n", 0), ("", 2), ("", 127)]
)
def test_what_nobody_can_read_is_unknown_never_clean(inventory, text, rc) -> None:
    reports = host_status(
        inventory, connect(node_1=lambda *_given: answer(text, rc, "sh: no python"))
    )

    assert reports[0].error
    assert "UNKNOWN" in reports[0].lines()[0]


def test_an_inventory_that_cannot_be_used_is_a_usage_error(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml"):
        host_status(str(tmp_path / "nowhere.yaml"), connect())


def test_the_lever_lies_near_shared_and_on_every_host(
    inventory, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("chaos.safety.halt.HOST_DIRECTORY", str(tmp_path / "run"))

    with levers_of(inventory, connect()) as levers:
        places = [lever.where.rpartition(":")[0] for lever in levers]
        assert places == ["", "", "node-1", "node-2"]
        near, shared = levers[:2]
        _, failed = pull("an outage", [near, shared])
        assert failed == {}
        assert shared.read() is not None
        assert len(release([near, shared])[0]) == 2


def test_without_an_inventory_only_the_near_lever_is_meant() -> None:
    with levers_of("") as levers:
        assert len(levers) == 1


def test_agents_on_this_machine_are_found_by_their_ledgers(tmp_path) -> None:
    """Namespaces keep theirs below `netns`, a machine that is a host its own."""
    for where in ("r1", "netns/r2/h0/r2"):
        folder = tmp_path / "run" / where
        folder.mkdir(parents=True)
        (folder / "ledger.jsonl").write_text("")

    found = [report.host for report in here_status()]

    assert found == ["this host", "netns/r2/h0"]
    assert not any(report.residue for report in here_status())


def test_recovering_this_machine_twice_leaves_it_clean(tmp_path) -> None:
    folder = tmp_path / "run" / "netns/r2/h0/r2"
    folder.mkdir(parents=True)
    (folder / "ledger.jsonl").write_text("")

    first, second = here_recover(), here_recover()

    assert [report.residue for report in first] == [False, False]
    assert second == []
    assert not (tmp_path / "run" / "netns" / "r2").exists()


def test_where_nothing_ran_nothing_is_found() -> None:
    assert here_status() == []

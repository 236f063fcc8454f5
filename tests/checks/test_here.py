"""This node is collected in a process of its own; its failures are documents too."""

from __future__ import annotations

import subprocess

import pytest

from checks import here
from checks.fleet import CollectOptions
from checks.here import SYSTEM_PYTHON, collect_here
from checks.judge import judge


def broken_collector(tmp_path, monkeypatch, source):
    path = tmp_path / "collector.py"
    path.write_text(source)
    monkeypatch.setattr(here, "COLLECTOR", path)
    return here.collect_here(CollectOptions(), timeout_s=2)["collector"]["error"]


def test_this_node_is_read_below_a_sysroot(tmp_path):
    file = tmp_path / "proc/cmdline"
    file.parent.mkdir()
    file.write_text("quiet\n")

    document = here.collect_here(CollectOptions(), str(tmp_path))

    assert document["files"]["/proc/cmdline"]["text"] == "quiet\n"
    assert document["collector"]["late"] is False


@pytest.mark.parametrize(
    ("source", "kind", "reason"),
    [
        ("import sys; sys.exit('boom')", "empty", "boom"),
        ("print('hello')", "garbage", "hello"),
        ("import time; time.sleep(60)", "timeout", "2 s"),
    ],
)
def test_a_collector_that_fails_says_how(tmp_path, monkeypatch, source, kind, reason):
    error = broken_collector(tmp_path, monkeypatch, source)

    assert error["kind"] == kind
    assert reason in error["reason"]


def test_active_without_an_inventory_sends_nothing_and_says_why():
    document = collect_here(CollectOptions(active=True), timeout_s=120.0)

    assert document["collector"]["active"] is True
    reason = "without --inventory there is no peer"
    assert document["collector"]["active_error"] == reason
    assert isinstance(document["verbs"]["probes"], list)
    assert not any(line.startswith("connect ") for line in document["cmds"])


def test_a_device_that_the_distributions_pyverbs_does_not_open_is_unknown(tmp_path):
    found = subprocess.run(
        [str(SYSTEM_PYTHON), "-c", "import pyverbs.qp"],
        capture_output=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(f"no pyverbs for {SYSTEM_PYTHON}: apt-get install python3-pyverbs")
    port = tmp_path / "sys/class/infiniband/none_0/ports/1"
    for path, text in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "gids/3": "0000:0000:0000:0000:0000:ffff:c612:0001",
        "gid_attrs/types/3": "RoCE v2",
    }.items():
        (port / path).parent.mkdir(parents=True, exist_ok=True)
        (port / path).write_text(f"{text}\n")

    document = collect_here(CollectOptions(active=True), str(tmp_path), timeout_s=120.0)

    rows = document["verbs"]["probes"]
    assert {(row["from"], row["to"], row["errno"]) for row in rows} == {
        ("none_0", "none_0", None)
    }
    assert rows[0]["error"].startswith("none_0: ")
    told = [f for f in judge([document]).findings if f.id == "act-hairpin"]
    assert [(f.subject, f.status) for f in told] == [("none_0", "UNKNOWN")]

"""This node is collected in a process of its own; its failures are documents too."""

from __future__ import annotations

import pytest

from checks import here
from checks.fleet import CollectOptions


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

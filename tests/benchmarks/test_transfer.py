from __future__ import annotations

import contextlib
import json

import pytest

from benchmarks import transfer
from benchmarks.transfer import Row


def row(ratio, target):
    return Row(
        name="x",
        gb_per_s=1.0,
        median_gb_per_s=1.0,
        ratio=ratio,
        median_ratio=ratio,
        target=target,
    )


@pytest.mark.parametrize(
    ("ratio", "target", "met"),
    [(0.8, 0.8, True), (0.79, 0.8, False), (0.1, None, True)],
)
def test_a_target_is_met_from_its_value_on(ratio, target, met):
    assert row(ratio, target).is_met is met


@pytest.mark.parametrize(("ratio", "code"), [(0.9, 0), (0.1, 1)])
def test_a_missed_target_is_the_exit_code(monkeypatch, capsys, ratio, code):
    monkeypatch.setattr(transfer, "_measure", lambda *_: [row(ratio, 0.5)])

    assert transfer.main(["--json"]) == code
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert found["ratio"] == ratio
    assert transfer.main([]) == code
    assert ("MISSED" in capsys.readouterr().out) is bool(code)


@pytest.mark.slow
def test_every_row_is_measured_on_real_processes():
    with contextlib.ExitStack() as stack:
        rows = transfer._measure(stack, rounds=2, batches=4)

    assert [r.name for r in rows] == [
        "plain stream",
        "read, 1 rail",
        "read, 2 rails",
        "get",
        "write, 2 rails",
        "put",
        "put, 2 at a time",
        "put, 16 MiB",
    ]
    assert all(r.gb_per_s > 0 for r in rows)
    assert rows[0].ratio == 1.0

"""Real arms: two clusters of the reference system, small and slow enough to be few."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.canary.live import Asked, run_asked
from chaos.canary.sides import Shape, side_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = ROOT / "suites" / "scenarios" / "canary"
SMALL = {"requests": 60, "per_block": 10, "sessions": 12}
_PATIENCE_S = 90.0


def meta(folder):
    return json.loads((folder / "meta.json").read_text(encoding="utf-8"))


def test_a_build_that_serves_wrong_bytes_is_stopped(tmp_path):
    asked = Asked(
        sides=(
            side_of("baseline", "refimpl"),
            side_of("canary", "refimpl", defects=["checksum_not_checked"]),
        ),
        shape=Shape(seed=5),
        out=tmp_path,
        scenarios=(SCENARIOS / "corrupt.yaml",),
        **SMALL,
    )

    result = run_asked(asked, say=lambda _line: None)

    assert result.verdict.value == "FAIL"
    (judged,) = (each for each in result.judgements if each.metric == "wrong_bytes")
    assert judged.canary > 0
    assert judged.baseline == 0


def test_equal_builds_break_no_law_in_all_the_chaos(tmp_path):
    asked = Asked(
        sides=(side_of("baseline", "refimpl"), side_of("canary", "refimpl")),
        shape=Shape(seed=6),
        out=tmp_path,
        scenarios=(SCENARIOS / "corrupt.yaml",),
        drills=True,
        **SMALL,
    )

    result = run_asked(asked, say=lambda _line: None)

    assert result.verdict.value != "FAIL"
    counted = [each for each in result.judgements if each.family == "invariant"]
    assert {each.verdict.value for each in counted} == {"PASS"}
    for label in ("baseline", "canary"):
        found = meta(tmp_path / label)
        assert found["complete"] is True
        assert found["counters"]["stale_ends"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_clusters_and_leaves_incomplete_directories(
    tmp_path, ledgers_of, number
):
    command = [sys.executable, "-m", "chaos.canary.cli", "run"]
    command += ["--baseline", "refimpl", "--canary", "refimpl", "--seed", "3"]
    command += ["--stores", "2", "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if "block 1" in line:
                process.send_signal(number)
                break
        _, rest = process.communicate(timeout=_PATIENCE_S)

    assert process.returncode == 128 + number, "".join(lines) + rest
    assert "clusters stopped, nothing judged" in rest
    assert ledgers_of(process.pid) == []
    for label in ("baseline", "canary"):
        found = meta(tmp_path / "out" / label)
        assert found["complete"] is False
        assert signal.Signals(number).name in found["incomplete_because"]
    assert not (tmp_path / "out" / "verdict.json").exists()

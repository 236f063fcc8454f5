"""The gate's error rates: what counts as met, and that a small run works."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import gate_power, kayenta
from benchmarks.gate_streams import Design, Truth, arms


@pytest.mark.parametrize(
    ("count", "trials", "expected"),
    [(0, 1000, (0.0, 0.00383)), (10, 1000, (0.00544, 0.0183)), (5, 5, (0.566, 1.0))],
)
def test_wilson_of_known_values(count, trials, expected) -> None:
    assert gate_power.wilson(count, trials) == pytest.approx(expected, abs=1e-3)


def test_missed_beats_unproven_beats_met() -> None:
    met = {"met": True, "missed": False}
    chance = {"met": False, "missed": False}
    missed = {"met": False, "missed": True}

    assert gate_power.exit_code([met]) == 0
    assert gate_power.exit_code([met, chance]) == 3
    assert gate_power.exit_code([chance, missed]) == 1


def test_streams_are_what_their_truth_says() -> None:
    rng = np.random.default_rng(1)
    design = Design(name="t", rows=200_000)

    def ratio(quantile, **harm):
        left, right = arms(design, Truth(name="h", **harm), rng)
        sides = [np.quantile(s.metrics["ttft_s"], quantile) for s in (left, right)]
        return sides[1] / sides[0]

    assert ratio(0.5, tail_p99=1.2) == pytest.approx(1.0, abs=0.01)
    assert ratio(0.99, tail_p99=1.2) == pytest.approx(1.2, abs=0.03)
    assert ratio(0.99, scale=1.3) == pytest.approx(1.3, abs=0.03)
    assert 1.3 < ratio(0.99, slow_share=0.02, slow_times=5.0) < 1.5


def test_kayentas_rule_sees_a_clear_shift_and_not_sparse_errors() -> None:
    rng = np.random.default_rng(2)
    base, same = rng.normal(1, 0.1, 60), rng.normal(1, 0.1, 60)
    sparse = np.where(np.arange(60) % 8 == 0, 0.01, 0.0)

    def found(left, right, **fields):
        series = kayenta.Series(name="m", baseline=left, canary=right, **fields)
        return kayenta.classify(series)

    assert found(base, base + 0.5) == "High"
    assert found(base, base - 0.5) == "Pass"
    assert found(base, base - 0.5, up_is_bad=False) == "Low"
    assert found(base, same) == "Pass"
    assert found(np.zeros(60), sparse) == "Pass"
    assert found(np.full(60, np.nan), base) == "Nodata"


@pytest.mark.slow
def test_a_small_run_has_all_figures(monkeypatch, capsys) -> None:
    small = Design(name="unpaired", rows=1_000)
    monkeypatch.setattr(gate_power, "UNPAIRED", small)
    monkeypatch.setattr(gate_power, "DESIGNS", (small, gate_power.SMALL))

    code = gate_power.main(["--json", "--trials", "2"])
    report = json.loads(capsys.readouterr().out)

    assert code in (0, 1, 3)
    assert set(report["wrong_pass"]) == {
        "p99_20pct",
        "tail_only",
        "hit_rate_1pt",
        "errors",
    }
    assert 0 <= report["aa_false_fail"] <= 1
    assert set(report["kayenta"]["wrong_pass"]) == set(report["wrong_pass"])
    assert all(row["low"] <= row["share"] <= row["high"] for row in report["targets"])

"""The noise floor: found in A/A runs, kept in a file, refused when it is none."""

from __future__ import annotations

import json

import numpy as np
import pytest

from chaos.canary.errors import FloorError
from chaos.canary.floor import NoiseFloor, floor_of, read_floor
from chaos.canary.gate import judge
from chaos.canary.policy import Policy, RelativeRule
from chaos.canary.result import GateResult

RULE = RelativeRule(metric="ttft_s", quantile=0.5, max_ratio=1.1)
POLICY = Policy(name="t", relative=(RULE,))


def aa_runs(arm_of, count, host_sd):
    """A/A runs whose arms have hosts of their own."""
    for run in range(count):
        rng = np.random.default_rng([8, run])
        scales = np.exp(rng.normal(0, host_sd, 2))
        yield judge(
            POLICY,
            arm_of("baseline", rng, rows=2000, scale=scales[0]),
            arm_of("canary", rng, rows=2000, scale=scales[1]),
        )


def test_the_spread_between_hosts_is_found(arm_of) -> None:
    floor = NoiseFloor.from_runs(list(aa_runs(arm_of, 20, host_sd=0.05)))

    assert floor.runs == 20
    assert 0.05 < floor.of("ttft_s p50", ratio=True) < 0.12  # 0.05 * sqrt(2) = 0.07


def test_equal_arms_have_hardly_any(arm_of) -> None:
    floor = NoiseFloor.from_runs(list(aa_runs(arm_of, 20, host_sd=0.0)))

    assert floor.of("ttft_s p50", ratio=True) < 0.02


def test_with_its_floor_a_setup_does_not_fail_itself(arm_of) -> None:
    runs = list(aa_runs(arm_of, 20, host_sd=0.08))
    floor = NoiseFloor.from_runs(runs)
    fails = [r.verdict.value for r in runs].count("FAIL")
    rng = np.random.default_rng(3)
    again = [
        judge(
            POLICY,
            arm_of("baseline", rng, rows=2000),
            arm_of("canary", rng, rows=2000, scale=float(np.exp(0.113 * z))),
            floor=floor,
        ).verdict.value
        for z in rng.normal(0, 1, 20)
    ]

    assert fails >= 3
    assert again.count("FAIL") == 0


def test_one_run_five_times_is_no_floor(arm_of) -> None:
    """It would show no scatter at all, and take the doubt about hosts away."""
    (run,) = aa_runs(arm_of, 1, host_sd=0.05)
    copies = [GateResult.from_document(run.to_document()) for _ in range(5)]

    with pytest.raises(FloorError, match="twice"):
        NoiseFloor.from_runs(copies)


def test_few_runs_are_no_floor(arm_of) -> None:
    with pytest.raises(FloorError, match="needs 5 A/A runs, there are 4"):
        NoiseFloor.from_runs(list(aa_runs(arm_of, 4, host_sd=0.0)))


def test_a_floor_survives_its_file(tmp_path) -> None:
    floor = NoiseFloor(sd={"ttft_s p50": 0.02}, runs=9, default=0.01)
    floor.write(tmp_path / "floor.json")

    found = read_floor(tmp_path / "floor.json")

    assert (found.sd, found.runs, found.default) == (floor.sd, 9, 0.01)
    assert [path.name for path in tmp_path.iterdir()] == ["floor.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"schema": "canary.floor/1"}),
        json.dumps({"schema": "canary.floor/1", "sd": {"a": -1}}),
        json.dumps({"schema": "canary.floor/1", "sd": {"a": "much"}}),
        json.dumps({"schema": "canary.floor/1", "sd": {"a": float("nan")}}),
        json.dumps({"schema": "canary.floor/1", "sd": {}, "default": float("inf")}),
        json.dumps({"schema": "canary.floor/1", "sd": {}, "runs": "many"}),
        json.dumps({"schema": "canary.floor/1", "sd": {"a": True}}),
    ],
)
def test_a_file_that_is_no_floor_is_refused_in_one_line(tmp_path, text) -> None:
    path = tmp_path / "floor.json"
    path.write_text(text)

    with pytest.raises(FloorError) as caught:
        read_floor(path)

    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(FloorError, match="No such file"):
        read_floor(tmp_path / "none.json")


def test_a_policy_names_a_file_beside_it_or_a_number(tmp_path) -> None:
    NoiseFloor(sd={"a": 0.5}).write(tmp_path / "f.json")

    def named(value):
        policy = POLICY.model_copy(update={"noise_floor": value})
        return floor_of(policy, tmp_path)

    assert named(None) is None
    assert named(0.03).of("anything", ratio=True) == 0.03
    assert named(0.03).of("error_rate", ratio=False) == 0.0
    assert named("f.json").of("a", ratio=True) == 0.5

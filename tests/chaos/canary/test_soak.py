from __future__ import annotations

import ast
import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest

from chaos.canary import soak as room
from chaos.canary.result import GateJudgement, GateResult
from chaos.canary.soak import AA, PLANTS, Plant, Soak, patched, summary_of
from chaos.defects import DEFECTS
from chaos.errors import HarnessError
from chaos.judge.verdict import Verdict
from refimpl.core.codes import Outcome


class Noted(Soak):
    """A soak that a test may hang its notes on."""


def result(verdict, *, design="paired", needs=None):
    judged = GateJudgement(
        name="ttft_s p50",
        family="relative",
        metric="ttft_s",
        verdict=Verdict(verdict),
        limit="x1.1",
        reason="because",
        design=design,
        needs=needs,
    )
    return GateResult(verdict=Verdict(verdict), judgements=(judged,), extend_by=needs)


@pytest.fixture
def soak(tmp_path):
    said: list[str] = []
    answers: list = []
    asked: list = []

    def run(what, *, say):
        asked.append(what)
        what.directory("baseline").mkdir(parents=True)
        rows = [json.dumps({"lookup_ms": ms}) for ms in (0.9, 1.1, 1.0)]
        (what.directory("baseline") / "requests.jsonl").write_text("\n".join(rows))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = Noted(folder=tmp_path, seed=5, requests=100, say=said.append, run=run)
    made.answers, made.asked, made.said = answers, asked, said
    return made


def plant(name):
    return next(each for each in PLANTS if each.name == name)


def test_every_defect_of_the_reference_system_is_planted():
    planted = {defect for each in PLANTS for defect in each.defects}

    assert planted == set(DEFECTS)


def test_every_failpoint_of_the_headline_suites_is_planted():
    planted = {
        text.partition(":")[2].partition("=")[0]
        for each in PLANTS
        for text in each.failpoints
    }

    assert planted >= {
        "store.read",
        "store.corrupt",
        "master.lookup",
        "master.put_start",
        "client.before_transfer",
        "hicache.before_get",
        "hicache.put_batch",
        "hicache.sidecar",
    }


def test_names_of_plants_are_single_and_those_of_ci_are_among_them():
    names = [each.name for each in PLANTS]

    assert len(set(names)) == len(names)
    assert set(room.IN_CI) <= set(names)
    assert AA not in names


def test_the_chaos_of_plants_is_there():
    needed = {need for each in PLANTS for need in each.needs} - {room.DRILLS}

    assert all((room.SCENARIOS / f"{name}.yaml").is_file() for name in needed)


def test_an_equal_build_is_the_same_in_both_arms_and_seeds_differ(soak):
    soak.answers += [result("PASS"), result("PASS")]

    soak.equal(0)
    soak.equal(1)

    assert all(each.aa for each in soak.asked)
    assert [each.shape.seed for each in soak.asked] == [5, 6]
    assert [trial.good for trial in soak.trials] == [True, True]


def test_a_planted_lookup_is_slow_by_what_this_machine_takes(soak):
    soak.answers += [result("PASS"), result("FAIL")]

    soak.equal(0)
    soak.planted(plant("lookup_3x"), 0)

    (failpoint,) = soak.asked[1].sides[1].build.failpoints
    assert str(failpoint) == "master:master.lookup=sleep(2)"
    assert not soak.asked[1].aa


@pytest.mark.parametrize(
    ("verdict", "good"), [("FAIL", True), ("PASS", False), ("INCONCLUSIVE", False)]
)
def test_a_planted_build_must_fail(soak, verdict, good):
    soak.answers.append(result(verdict))

    trial = soak.planted(plant("placement_random"), 0)

    assert trial.good is good
    assert "defect" in str(soak.asked[0].sides[1])


@pytest.mark.parametrize(
    ("verdict", "good"), [("FAIL", False), ("PASS", True), ("INCONCLUSIVE", True)]
)
def test_an_equal_build_must_not_fail(soak, verdict, good):
    soak.answers.append(result(verdict, needs=500))

    assert soak.equal(0).good is good


def test_a_harness_that_breaks_is_no_verdict_and_not_good(soak):
    soak.answers += [HarnessError("the ports are taken")] * 2

    soak.equal(0)
    soak.planted(plant("store_read_fails"), 0)

    assert [trial.good for trial in soak.trials] == [False, False]
    assert soak.trials[0].verdict == "HarnessError"


def test_the_settings_that_reach_a_planted_place_are_in_both_arms(soak):
    soak.answers.append(result("FAIL"))

    soak.planted(plant("sidecar_hangs"), 0)

    for side in soak.asked[0].sides:
        assert side.settings["engine"]["sidecar_bytes"] == 4096


def test_chaos_is_played_where_a_plant_needs_it(soak):
    soak.answers += [result("FAIL")] * 2

    soak.planted(plant("breaker_never_opens"), 0)
    soak.planted(plant("stale_end_accepted"), 1)

    assert [each.stem for each in soak.asked[0].scenarios] == ["outage"]
    assert [each.drills for each in soak.asked] == [False, True]


def test_the_summary_has_the_figures_and_is_on_disk_after_every_trial(soak):
    soak.answers += [
        result("PASS"),
        result("INCONCLUSIVE", needs=700),
        result("FAIL"),
    ]

    soak.equal(0)
    soak.equal(1)
    soak.planted(plant("placement_random"), 0)

    found = json.loads((soak.folder / "summary.json").read_text(encoding="utf-8"))
    assert found == json.loads(json.dumps(summary_of(soak.trials)))
    assert found["aa_verdicts"] == {"PASS": 1, "INCONCLUSIVE": 1}
    assert found["aa_paired_pass"] == 1
    assert found["aa_inconclusive_with_needs"] == 1
    assert found["planted"] == {"placement_random": "FAIL"}


@pytest.mark.parametrize(
    ("passed", "good"), [(15, True), (14, False)], ids=["enough", "one too few"]
)
def test_fifteen_of_twenty_equal_builds_pass(soak, passed, good):
    soak.answers += [result("PASS")] * passed
    soak.answers += [result("INCONCLUSIVE", needs=500)] * (20 - passed)

    for number in range(20):
        soak.equal(number)

    assert room.verdict_of(soak.trials) is good


def test_a_soak_without_trials_is_not_good():
    assert room.verdict_of([]) is False


@pytest.mark.parametrize(
    ("patch", "module", "word"),
    [
        ("one_more_rpc", "client/rpc.py", "_look_up_twice"),
        ("breaker_off", "core/breaker.py", "_stay_closed"),
    ],
)
def test_a_patch_makes_a_whole_checkout_that_still_compiles(
    tmp_path, patch, module, word
):
    found = patched(tmp_path / "checkout", patch)

    changed = found / "refimpl" / module
    ast.parse(changed.read_text(encoding="utf-8"))
    assert word in changed.read_text(encoding="utf-8")
    assert (found / "refimpl" / "__main__.py").is_file()
    ours = Path(room.ROOT) / "refimpl" / module
    assert word not in ours.read_text(encoding="utf-8")


def test_with_its_breaker_off_a_build_never_opens_whoever_asks(tmp_path):
    found = patched(tmp_path, "breaker_off") / "refimpl" / "core" / "breaker.py"
    spec = importlib.util.spec_from_file_location("patched_breaker", found)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    breaker = module.Breaker(module.BreakerSettings(), random.Random(0))

    breaker.trip(1.0, "witnesses")
    for number in range(100):
        breaker.record(breaker.admit(1.0 + number / 100), Outcome.FAULT, 1.0)

    assert breaker.state is module.BreakerState.CLOSED


def test_an_unknown_plant_is_refused(capsys):
    with pytest.raises(SystemExit) as refused:
        room.main(["--only", "gremlins", "--runs", "0"])

    assert refused.value.code == 2
    assert "no plant 'gremlins'" in capsys.readouterr().err


def test_a_plant_has_a_name_and_no_side_effects_by_itself():
    empty = Plant(name="x")

    assert (empty.defects, empty.failpoints, empty.needs) == ((), (), ())

from __future__ import annotations

import json

import pytest

from chaos.canary import run_command
from chaos.canary.cli import main
from chaos.canary.result import GateJudgement, GateResult
from chaos.canary.run_command import repeated
from chaos.errors import HarnessError, ResidualFault
from chaos.judge.verdict import Verdict
from chaos.scenario.interrupt import Interrupted


def result(verdict="PASS", on_inconclusive="block"):
    judged = GateJudgement(
        name="hangs",
        family="invariant",
        metric="hangs",
        verdict=Verdict(verdict),
        limit="0",
        reason="none in either arm",
    )
    return GateResult(
        verdict=Verdict(verdict),
        judgements=(judged,),
        on_inconclusive=on_inconclusive,
    )


@pytest.fixture
def asked(monkeypatch):
    """What the command asked for; `ending` is what the run then comes to."""
    seen = []

    def run(what, *, say):
        seen.append(what)
        say("turn 1")
        if isinstance(seen_ending[0], BaseException):
            raise seen_ending[0]
        return seen_ending[0]

    seen_ending = [result()]
    monkeypatch.setattr(run_command, "run_asked", run)
    run.seen, run.ending = seen, seen_ending
    return run


def call(tmp_path, *more, baseline="refimpl", canary="refimpl"):
    base = ["run", "--baseline", baseline, "--canary", canary]
    return main([*base, "--out", str(tmp_path / "out"), *more])


def test_what_is_said_is_what_is_asked(asked, tmp_path):
    options = "--canary-set engine.policy=best_effort --canary-defect lease_not_checked"
    more = "--requests 40 --per-block 10 --rate 5 --seed 9 --stores 2 --drills"

    assert call(tmp_path, *options.split(), *more.split()) == 0

    (what,) = asked.seen
    assert what.sides[1].settings == {"engine": {"policy": "best_effort"}}
    assert what.sides[1].defects == ("lease_not_checked",)
    assert what.sides[0].settings == {}
    assert (what.requests, what.per_block, what.rate_per_s) == (40, 10, 5.0)
    assert (what.shape.seed, what.shape.stores, what.drills) == (9, 2, True)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (result("PASS"), 0),
        (result("FAIL"), 1),
        (result("INCONCLUSIVE"), 3),
        (result("INCONCLUSIVE", "warn"), 0),
        (result("INCONCLUSIVE", "extend"), 3),
        (HarnessError("ports"), 4),
        (RuntimeError("ours"), 4),
        (ResidualFault(fault="kill", target="x", reason="dead"), 5),
        (Interrupted(15), 143),
        (Interrupted(2), 130),
    ],
)
def test_every_ending_has_its_exit_code(asked, tmp_path, ending, code):
    asked.ending[0] = ending

    assert call(tmp_path) == code


def test_an_open_verdict_that_is_let_through_is_said_loudly(asked, tmp_path, capsys):
    asked.ending[0] = result("INCONCLUSIVE", "warn")

    call(tmp_path)

    assert "WARNING: INCONCLUSIVE" in capsys.readouterr().err


def test_the_verdict_is_beside_the_measurements(asked, tmp_path, capsys):
    asked.ending[0] = result("FAIL")

    call(tmp_path, "--json", "--quiet")

    shown = capsys.readouterr()
    assert json.loads(shown.out)["verdict"] == "FAIL"
    assert "turn 1" not in shown.err
    kept = json.loads((tmp_path / "out" / "verdict.json").read_text(encoding="utf-8"))
    assert kept["verdict"] == "FAIL"
    assert "--seed" in kept["command"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--canary-set", "engine"], "ROLE.FIELD=VALUE"),
        (["--canary-failpoint", "x"], "ROLE:NAME=SPEC"),
        (["--on-inconclusive", "perhaps"], "block, warn or extend"),
        (["--api", "soap"], "completions or chat"),
        (["--format", "xml"], "--format 'xml'"),
        (["--canary-python", "/nowhere"], "neither a checkout nor"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_2(asked, tmp_path, capsys, more, told):
    assert call(tmp_path, *more) == 2

    shown = capsys.readouterr()
    assert told in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert asked.seen == []


def test_roles_on_other_machines_take_arm(asked, tmp_path, capsys):
    more = ["--inventory", "hosts.yaml"]

    assert call(tmp_path, *more, baseline="group:blue", canary="group:green") == 2
    assert "--arm" in capsys.readouterr().err
    armed = [*more, "--arm"]
    assert call(tmp_path, *armed, baseline="group:blue", canary="group:green") == 0


def test_a_key_comes_from_the_environment_and_is_not_shown(
    asked, tmp_path, monkeypatch, capsys, openai_server
):
    monkeypatch.setenv("MY_KEY", "sk-not-a-real-key-0001")
    urls = {"baseline": openai_server.url, "canary": openai_server.url + "/v1"}

    assert call(tmp_path, "--api-key-env", "MY_KEY", **urls) == 0

    assert asked.seen[0].shape.key == "sk-not-a-real-key-0001"
    shown = capsys.readouterr()
    assert "0001" not in shown.out + shown.err


def test_the_command_to_repeat_has_its_seed():
    assert repeated(["run", "--out", "a b"], 7) == "canary run --out 'a b' --seed 7"
    assert repeated(["run", "--seed", "9"], 7) == "canary run --seed 9"
    assert repeated(["run", "--seed=9"], 7) == "canary run --seed=9"

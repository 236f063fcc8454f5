from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.cli import main
from chaos.errors import FaultNotInjected, HarnessError, ResidualFault, UsageError
from chaos.judge.verdict import Judgement, Verdict
from chaos.report.document import Document, Outcome
from chaos.safety import remote
from chaos.safety.halt import Halted, LocalLever, pull
from chaos.scenario import command
from chaos.scenario.bench import BenchOptions, Result
from chaos.scenario.command import RunOptions, run_files
from chaos.scenario.interrupt import Interrupted
from chaos.scenario.place import place_of

TEXT = """
name: a store dies
timeline:
  - {fault: kill, target: store-1, at: 10s, for: 10s}
abort: [{wrong_bytes: 0}]
"""


class FakeBench:
    """Ends every scenario as it was told to, and remembers what it was asked."""

    def __init__(self, endings) -> None:
        self.endings = list(endings)
        self.played: list = []
        self.closed = 0

    def __call__(self, options, *, levers, live):
        self.options, self.levers = options, levers
        return self

    def run(self, scenario, schedule, name):
        self.played.append((name, schedule.seed))
        ending = self.endings.pop(0)
        if isinstance(ending, BaseException):
            raise ending
        judged = document(name, ending)
        return Result(document=judged, played=None, path=Path("results/x"))

    def close(self) -> None:
        self.closed += 1


def document(name, verdict, residual=()):
    if verdict == "residual":
        verdict, residual = Verdict.FAIL, ("kill(store-1): still dead",)
    judgement = Judgement(
        oracle="O1",
        claim="claim",
        verdict=verdict,
        observed="seen",
        threshold="-",
        samples=1,
    )
    outcome = Outcome(nodeid=name, judgements=(judgement,), reproduce="chaos run x")
    return Document(
        suite="scenarios",
        seed=1,
        time_scale=0.1,
        residual=residual,
        outcomes=(outcome,),
    )


@pytest.fixture
def lever(tmp_path):
    return LocalLever(tmp_path / "halt.json")


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{name}.yaml" for name in ("a", "b", "c")]
    for path in paths:
        path.write_text(TEXT)
    return paths


@pytest.fixture
def run(monkeypatch, lever):
    """`run(paths, endings, **options)` -> (code, out, err, bench)."""

    def go(paths, endings, **given):
        bench = FakeBench(endings)
        monkeypatch.setattr(command, "Bench", bench)
        out, err = io.StringIO(), io.StringIO()
        place = given.pop("place", place_of("local"))
        options = RunOptions(bench=BenchOptions(place=place), **given)
        code = run_files(paths, options, out=out, err=err, levers=[lever])
        return SimpleNamespace(
            code=code, out=out.getvalue(), err=err.getvalue(), bench=bench
        )

    return go


PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("endings", "code"),
    [
        ([PASS, PASS, PASS], 0),
        ([PASS, FAIL, PASS], 1),
        ([PASS, UNKNOWN, PASS], 3),
        ([UNKNOWN, FAIL, PASS], 1),
        ([FAIL, HarnessError("broke"), PASS], 4),
        ([RuntimeError("bug"), PASS, PASS], 4),
        ([PASS, FaultNotInjected(fault="f", target="t", reason="r"), PASS], 3),
        ([HarnessError("broke"), PASS, "residual"], 5),
    ],
)
def test_the_exit_code_is_that_of_the_worst_scenario(run, files, endings, code) -> None:
    done = run(files, endings)

    assert done.code == code
    assert len(done.bench.played) == 3
    assert done.bench.closed == 1


def test_a_fault_that_is_left_behind_stops_the_rest(run, files) -> None:
    done = run(files, ["residual", PASS, PASS])

    assert done.code == 5
    assert len(done.bench.played) == 1
    assert "chaos recover" in done.err


def test_what_could_not_be_undone_on_the_way_of_an_error_is_left_behind(
    run, files
) -> None:
    left = ResidualFault(fault="kill", target="store-1", reason="still dead")

    assert run(files, [ExceptionGroup("faults", [left])]).code == 5
    broke = ExceptionGroup("faults", [HarnessError("gone")])
    assert run(files[:1], [broke]).code == 4


def test_a_signal_ends_the_run_with_its_own_code(run, files) -> None:
    done = run(files, [PASS, Interrupted(15), PASS])

    assert done.code == 143
    assert len(done.bench.played) == 2
    assert done.bench.closed == 1
    assert "SIGTERM" in done.err


def test_progress_goes_to_one_stream_and_results_to_the_other(run, files) -> None:
    done = run(files[:1], [PASS], as_json=True)

    rows = json.loads(done.out)
    assert rows["exit_code"] == 0
    assert rows["scenarios"][0]["scenario"] == str(files[0])
    assert "[1/1]" in done.err
    assert "kill(store-1)" in done.err


def test_a_broken_harness_is_told_in_json_too(run, files) -> None:
    done = run(files[:1], [HarnessError("broke")], as_json=True)

    (row,) = json.loads(done.out)["scenarios"]
    assert row == {"scenario": str(files[0]), "exit_code": 4, "error": "broke"}


def test_a_wrong_file_starts_nothing(run, files) -> None:
    files[2].write_text(TEXT.replace("kill", "kil"))

    with pytest.raises(UsageError, match=r"c\.yaml:4: .*is no fault"):
        run(files, [PASS] * 3)


def test_a_seed_may_be_given_for_all(run, files) -> None:
    done = run(files[:2], [PASS, PASS], seed=77)

    assert [seed for _, seed in done.bench.played] == [77, 77]


def test_too_much_at_once_starts_nothing(run, files) -> None:
    files[0].write_text(TEXT.replace("store-1", "master"))

    with pytest.raises(UsageError, match="the quorum is lost"):
        run(files, [PASS] * 3)


def test_the_operator_may_narrow_the_limit_of_a_file(run, files) -> None:
    two = TEXT + "limits: {max_nodes_down: 2}\n"
    two = two.replace(
        "timeline:", "timeline:\n  - {fault: kill, target: store-2, at: 12s, for: 3s}"
    )
    files[0].write_text(two)

    assert run(files[:1], [PASS]).code == 0
    with pytest.raises(UsageError, match="max_nodes_down is 1"):
        run(files[:1], [PASS], max_nodes_down=1)


def test_nothing_starts_while_the_lever_is_pulled(run, files, lever) -> None:
    pull("an outage", [lever])

    with pytest.raises(Halted, match="an outage"):
        run(files, [PASS] * 3)


def test_other_machines_are_not_touched_without_arm(run, files, tmp_path) -> None:
    done = run(files[:1], [], place=place_of("ssh", inventory(tmp_path)))

    assert done.bench.played == []
    assert done.code == 3
    assert "say --arm" in done.err
    assert "kill(store-1)" in done.out


def test_a_host_that_did_not_opt_in_starts_nothing(run, files, tmp_path) -> None:
    place = place_of("ssh", inventory(tmp_path))

    with pytest.raises(UsageError, match=r"node-0 is not opted in.*and 7 more"):
        run(files, [PASS] * 3, place=place, arm=True)


def inventory(tmp_path):
    path = tmp_path / "hosts.yaml"
    roles = ["master", "probe", *(f"store-{n}" for n in range(4)), "engine-0"]
    hosts = {
        f"node-{n}": {"ansible_host": f"10.0.0.{n + 1}", "roles": [role]}
        for n, role in enumerate([*roles, "engine-1"])
    }
    path.write_text(json.dumps({"all": {"hosts": hosts}}))
    return str(path)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("moon", ""), "no target is called 'moon'"),
        (("ssh", ""), "has no inventory"),
        (("local", "x.yaml"), "has no use for --inventory"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(words, problem) -> None:
    with pytest.raises(UsageError, match=problem):
        place_of(*words)


# -- the command line ------------------------------------------------------------------


@pytest.fixture
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(remote, "STATE_DIRECTORY", str(tmp_path / "run"))


def test_every_mistake_of_a_file_is_a_line_of_its_own(files, capsys) -> None:
    files[0].write_text(TEXT.replace("kill", "kil").replace("name", "nam"))

    assert main(["run", str(files[0])]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"chaos: {files[0]}:") for line in lines)


def test_halt_and_resume_are_commands(own_state, files, capsys) -> None:
    assert main(["halt", "--reason", "an outage"]) == 0
    assert main(["run", str(files[0])]) == 2
    assert "an outage" in capsys.readouterr().err
    assert main(["status"]) == 0
    assert "HALTED: halted by" in capsys.readouterr().out
    assert main(["resume"]) == 0
    assert main(["resume"]) == 0
    assert "nothing was halted" in capsys.readouterr().out


def test_a_plan_of_a_scenario_has_its_exact_steps(files, capsys) -> None:
    assert main(["plan", str(files[0])]) == 0

    out = capsys.readouterr().out
    assert "at 1.00 s for 1.00 s: kill(store-1)" in out
    assert "SIGKILL to store-1" in out


def test_a_plan_says_what_cannot_run_and_why(files, capsys) -> None:
    files[0].write_text(
        TEXT.replace("kill, target: store-1", "cpu, target: store-1, workers: 2")
    )

    assert main(["plan", str(files[0]), "--json"]) == 3
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert "--target netns" in step["why_not"]


def test_a_plan_tells_a_refusal(files, capsys) -> None:
    files[0].write_text(TEXT.replace("store-1", "master"))

    assert main(["plan", str(files[0])]) == 3
    assert "REFUSED: 1 of 1 masters are down" in capsys.readouterr().out


def test_a_time_scale_must_be_positive(files, capsys) -> None:
    assert main(["run", str(files[0]), "--time-scale", "0"]) == 2
    assert "positive" in capsys.readouterr().err

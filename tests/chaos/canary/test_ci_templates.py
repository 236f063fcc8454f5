"""The templates in `ci/`, run as a CI would run them, with the command of this tree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chaos.canary.ladder.schema import load_ladder

ROOT = Path(__file__).parents[3]
ACTION = ROOT / "ci" / "action"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
GITLAB = ROOT / "ci" / "gitlab.yml"
POLICY = """\
schema: canary.policy/1
name: small
invariants: [wrong_bytes, hangs, residual_faults]
relative: [{metric: ttft_s, quantile: 0.5, max_ratio: 1.3}]
"""


def read(path):
    return yaml.safe_load(path.read_text())


def scripts():
    for path in (WORKFLOW, GITLAB, ACTION / "action.yml"):
        document = read(path)
        jobs = document.get("jobs", document)
        for name, job in jobs.items():
            steps = job.get("steps", []) if isinstance(job, dict) else []
            for number, step in enumerate(steps):
                if "run" in step:
                    yield f"{path.name}:{name}:{number}", step["run"]
            for words in job.get("script", []) if isinstance(job, dict) else []:
                yield f"{path.name}:{name}", words
    yield "judge.sh", (ACTION / "judge.sh").read_text()


SCRIPTS = [pytest.param(*each, id=f"{i} {each[0]}") for i, each in enumerate(scripts())]


@pytest.mark.parametrize(("where", "script"), SCRIPTS)
def test_every_script_is_one_that_bash_can_read(where, script) -> None:
    text = re.sub(r"\$\{\{.*?\}\}", "x", script)
    done = subprocess.run(
        ["/bin/bash", "-n"], input=text, text=True, capture_output=True, timeout=20
    )

    assert (done.returncode, done.stderr) == (0, ""), where


@pytest.mark.parametrize(("where", "script"), SCRIPTS)
def test_no_script_has_an_input_pasted_into_it(where, script) -> None:
    assert "${{ inputs" not in script, where
    assert "${{ github.event" not in script, where


def test_every_input_of_the_action_reaches_the_script() -> None:
    action = read(ACTION / "action.yml")
    script = (ACTION / "judge.sh").read_text()
    judge = next(s for s in action["runs"]["steps"] if s.get("id") == "judge")
    told = " ".join(judge["env"].values())
    elsewhere = {"install", "artifact"}

    for name in set(action["inputs"]) - elsewhere:
        assert f"inputs.{name} " in told, name
    for variable in set(judge["env"]) - {"CANARY_PROMETHEUS_TOKEN"}:
        assert f"${{{variable}" in script, variable
    assert all("description" in each for each in action["inputs"].values())


def test_the_workflow_needs_no_more_than_to_read() -> None:
    workflow = read(WORKFLOW)

    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60, name
        for step in job["steps"]:
            assert re.fullmatch(r"[\w./-]+@v\d+|\./.+", step.get("uses", "x/y@v1"))


def test_the_example_of_a_ladder_can_be_climbed() -> None:
    ladder, _ = load_ladder(ROOT / "ci" / "ladder.example.yaml")

    names = [stage.name for stage in ladder.stages]
    assert names[:3] == ["preflight", "chaos-smoke", "soak"]
    assert ladder.stage("canary-5%").approve


@pytest.fixture
def ci(tmp_path):
    """Runs a script as a job: (exit code, log, step summary, outputs)."""
    programs = tmp_path / "bin"
    programs.mkdir()
    canary = programs / "canary"
    canary.write_text(f'#!/bin/sh\nexec {sys.executable} -m chaos.canary.cli "$@"\n')
    canary.chmod(0o755)
    (tmp_path / "policy.yaml").write_text(POLICY)

    def run(script, **variables):
        environ = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            **variables,
        }
        done = subprocess.run(
            ["/bin/bash", "-e", "-o", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=110,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def action(ci, tmp_path):
    def run(**variables):
        summary, output = tmp_path / "summary", tmp_path / "output"
        code, log = ci(
            'bash "$GITHUB_ACTION_PATH/judge.sh"',
            GITHUB_ACTIONS="true",
            GITHUB_ACTION_PATH=str(ACTION),
            GITHUB_STEP_SUMMARY=str(summary),
            GITHUB_OUTPUT=str(output),
            CANARY_HTML="false",
            CANARY_POLICY="policy.yaml",
            **variables,
        )
        assert "Traceback" not in log
        return code, log, summary.read_text(), output.read_text()

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "code", "verdict", "level"),
    [
        ({}, 0, "PASS", "notice"),
        ({"slow": 1.6}, 1, "FAIL", "error"),
        ({"complete": False}, 3, "INCONCLUSIVE", "error"),
    ],
)
def test_the_action_ends_with_the_verdict_and_shows_it(
    action, measured, made, code, verdict, level
) -> None:
    measured("baseline", seed=1)
    measured("canary", **{"seed": 2, **made})
    found, log, summary, output = action(
        CANARY_BASELINE="baseline", CANARY_CANARY="canary"
    )

    assert found == code
    assert f"::{level} title=canary::{verdict}" in log
    assert summary.startswith("## canary: ")
    assert verdict in summary
    assert output == f"verdict={verdict}\nexit-code={code}\n"


@pytest.mark.slow
def test_the_action_without_a_verdict_never_goes_on(action, tmp_path) -> None:
    old = tmp_path / "canary-verdict"
    old.mkdir()
    (old / "verdict.json").write_text('{"verdict": "PASS"}')
    code, log, summary, output = action(CANARY_BASELINE="nowhere", CANARY_CANARY="x")

    assert code == 2
    assert "::error title=canary::nothing was judged (exit code 2)" in log
    assert "nothing was judged" in summary
    assert output == "verdict=\nexit-code=2\n"


@pytest.mark.slow
def test_a_command_that_says_0_and_judges_nothing_is_no_pass(action, tmp_path) -> None:
    (tmp_path / "bin" / "canary").write_text("#!/bin/sh\nexit 0\n")

    assert action(CANARY_BASELINE="a", CANARY_CANARY="b")[0] == 4


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "code"), [(1.0, 0), (1.6, 1)])
def test_the_gitlab_job_ends_with_the_verdict(
    ci, measured, tmp_path, slow, code
) -> None:
    measured("baseline", seed=1)
    measured("canary", seed=2, slow=slow)
    job = read(GITLAB)[".canary-judge"]
    found, log = ci(
        "\n".join(job["script"]),
        CANARY_OUT="out dir",
        CANARY_ON_INCONCLUSIVE="block",
        CANARY_BASELINE="baseline",
        CANARY_CANARY="canary",
        CANARY_POLICY="policy.yaml",
    )

    assert found == code, log
    verdict = json.loads((tmp_path / "out dir" / "verdict.json").read_text())
    assert verdict["exit_code"] == code

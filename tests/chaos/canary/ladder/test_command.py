"""`canary ladder` as an operator calls it: real commands, real signals, real restarts.

Each command of a ladder appends a word to a file, so the file is what happened.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chaos.canary.cli import main
from chaos.canary.ladder.store import LadderStore, read_state
from chaos.safety.identity import start_ticks_of, state_of, wait_until

NOTE = "import sys; open('happened', 'a').write(sys.argv[1] + '\\n')\n"


def note(word, then="pass"):
    return [sys.executable, "-I", "-S", "-c", NOTE + then, word]


def code(number):
    return f"raise SystemExit({number})"


WAIT = "import time\ntime.sleep(60)"


def stage(name, *, gate="pass", apply="pass", rollback="pass", **fields):
    made = {
        "name": name,
        "apply": note(f"apply {name}", apply),
        "gate": note(f"gate {name}", gate),
        "rollback": note(f"rollback {name}", rollback),
        "budget": "30s",
        **fields,
    }
    return {key: value for key, value in made.items() if value is not None}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ladder(here, capfd):
    """Writes a ladder and runs `canary ladder WORD FILE ...`."""

    class Ladder:
        file = here / "ladder.yaml"
        folder = here / ".release.ladder"

        def write(self, *stages):
            document = {
                "schema": "canary.ladder/1",
                "name": "release",
                "stages": list(stages),
            }
            self.file.write_text(yaml.safe_dump(document))
            return self

        def __call__(self, word, *options):
            capfd.readouterr()
            self.code = main(["ladder", word, str(self.file), *map(str, options)])
            self.out, self.err = capfd.readouterr()
            assert "Traceback" not in self.out + self.err
            return self.code

        @property
        def happened(self):
            path = here / "happened"
            return path.read_text().splitlines() if path.exists() else []

        @property
        def state(self):
            return read_state(self.folder)

    return Ladder()


def test_a_ladder_is_climbed_stage_by_stage(ladder) -> None:
    ladder.write(stage("one"), stage("two"))

    assert ladder("run") == 0
    assert ladder.happened == ["apply one", "gate one", "apply two", "gate two"]
    assert "ladder release: complete" in ladder.out


def test_a_ladder_at_the_top_is_not_climbed_again(ladder) -> None:
    ladder.write(stage("one"))
    ladder("run")

    assert ladder("run") == 0
    assert ladder.happened == ["apply one", "gate one"]


def test_a_gate_that_fails_takes_everything_back(ladder) -> None:
    ladder.write(stage("one"), stage("two", gate=code(1)), stage("three"))

    assert ladder("run") == 1
    assert ladder.happened[4:] == ["rollback two", "rollback one"]
    assert "its gate ended with exit code 1" in ladder.out
    assert ladder("run") == 1
    assert len(ladder.happened) == 6


@pytest.mark.parametrize("number", [2, 4, 77, 127])
def test_any_other_end_of_a_gate_is_no_pass(ladder, number) -> None:
    ladder.write(stage("one", gate=code(number)))

    assert ladder("run") == 1
    assert ladder.happened[-1] == "rollback one"


def test_a_gate_that_left_a_fault_behind_ends_with_5(ladder) -> None:
    ladder.write(stage("one", gate=code(5)))

    assert ladder("run") == 5
    assert ladder.happened[-1] == "rollback one"


def test_a_gate_that_could_not_tell_holds_and_is_judged_again(ladder, here) -> None:
    told = "import os\nraise SystemExit(0 if os.path.exists('more') else 3)"
    ladder.write(stage("one", gate=told), stage("two"))

    assert ladder("run") == 3
    assert ladder.state.outcome == "held"
    assert ladder("run") == 3
    (here / "more").touch()
    assert ladder("run") == 0
    assert ladder.happened == [
        *("apply one", "gate one", "gate one", "gate one"),
        *("apply two", "gate two"),
    ]


def test_a_gate_that_could_not_tell_rolls_back_where_the_file_says_so(ladder) -> None:
    ladder.write(stage("one", gate=code(3), on_inconclusive="rollback"))

    assert ladder("run") == 1
    assert ladder.happened[-1] == "rollback one"


def test_an_apply_that_fails_is_not_judged_and_is_taken_back(ladder) -> None:
    ladder.write(stage("one", apply=code(9)))

    assert ladder("run") == 1
    assert ladder.happened == ["apply one", "rollback one"]


def test_a_program_that_is_not_there_is_a_failure(ladder) -> None:
    ladder.write(stage("one") | {"gate": ["/nowhere/gate"]})

    assert ladder("run") == 1
    assert "cannot be started" in ladder.out


def test_time_that_is_up_is_a_failure(ladder) -> None:
    ladder.write(stage("one", gate=WAIT, budget="1s"))

    assert ladder("run") == 1
    assert ladder.happened == ["apply one", "gate one", "rollback one"]
    assert "did not end within" in ladder.out


def test_a_rollback_that_fails_is_told_and_tried_again(ladder, here) -> None:
    told = "import os\nraise SystemExit(0 if os.path.exists('mended') else 9)"
    ladder.write(stage("one"), stage("two", gate=code(1), rollback=told))

    assert ladder("run") == 5
    assert ladder.happened[-2:] == ["rollback two", "rollback one"]
    assert ladder("reset") == 2
    assert ladder("run") == 5
    assert ladder.happened[-1] == "rollback one"
    (here / "mended").touch()
    assert ladder("rollback") == 1
    assert ladder.happened[-1] == "rollback two"
    assert ladder.state.outcome == "rolled back"


def test_nothing_of_a_stage_that_changes_nothing_is_rolled_back(ladder) -> None:
    look = stage("look", gate=code(1)) | {"rollback": "none"}
    del look["apply"]
    ladder.write(look)

    assert ladder("run") == 1
    assert ladder.happened == ["gate look"]
    assert ladder.state.outcome == "rolled back"


# -- a person ----------------------------------------------------------------------


def test_a_stage_waits_for_a_person_and_goes_on_after_them(ladder) -> None:
    ladder.write(stage("one"), stage("two", approve="read the soak report"))

    assert ladder("run") == 3
    assert "two waits for a person: read the soak report" in ladder.err
    assert ladder("run") == 3
    assert ladder.happened == ["apply one", "gate one"]
    assert ladder("approve", "two", "--by", "eve", "--reason", "looks right") == 0
    assert ladder.happened == ["apply one", "gate one"]
    assert ladder("run") == 0
    record = ladder.state.record("two")
    assert (record.approved_by, record.approved_why) == ("eve", "looks right")
    assert record.approved_at


@pytest.mark.parametrize("name", ["one", "two", "nowhere"])
def test_only_the_stage_that_waits_can_be_approved(ladder, name) -> None:
    ladder.write(stage("one", approve="look"), stage("two", approve="look"))
    assert ladder("approve", name) == 2
    ladder("run")

    assert ladder("approve", name, "--by", "eve") == (0 if name == "one" else 2)


# -- state -------------------------------------------------------------------------


def test_a_dry_run_prints_every_command_and_does_nothing(ladder) -> None:
    ladder.write(stage("one"), stage("two", approve="look"))

    assert ladder("run", "--dry-run") == 0
    for word in ("apply one", "gate one", "rollback one", "gate two", "approve:"):
        assert word in ladder.out
    assert ladder.happened == []
    assert not ladder.folder.exists()
    assert "not found" not in ladder.out
    assert ladder("run", "--dry-run", "--json") == 0
    assert json.loads(ladder.out)["next"] == "begin one"


def test_a_dry_run_names_programs_that_are_not_here(ladder) -> None:
    ladder.write(stage("one") | {"gate": ["no-such-gate", "5"]})

    assert ladder("run", "--dry-run") == 0
    assert "not found on the PATH here: no-such-gate" in ladder.out


def test_a_ladder_that_was_changed_meanwhile_is_not_run(ladder) -> None:
    ladder.write(stage("one"), stage("two", approve="look"))
    ladder("run")
    ladder.write(stage("one"), stage("two"))

    assert ladder("run") == 2
    assert "is not the ladder that was begun" in ladder.err
    assert ladder("rollback", "--reason", "a new one") == 1
    assert ladder.happened[-1] == "rollback one"
    assert ladder("reset") == 0
    assert ladder("run") == 0


def test_a_ladder_of_which_something_is_live_cannot_be_forgotten(ladder) -> None:
    ladder.write(stage("one"), stage("two", approve="look"))
    ladder("run")

    assert ladder("reset") == 2
    assert ladder.state is not None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": "canary.ladder-state/1"}', '{"schema": "x"}']
)
def test_a_state_that_cannot_be_read_stops_everything(ladder, content) -> None:
    ladder.write(stage("one"), stage("two", approve="look"))
    ladder("run")
    (ladder.folder / "state.json").write_text(content)

    for word in ("run", "status", "rollback", "reset"):
        assert ladder(word) == 2
    assert ladder.happened == ["apply one", "gate one"]


def test_a_ladder_whose_state_is_lost_does_not_begin_anew(ladder) -> None:
    ladder.write(stage("one"), stage("two"))
    assert ladder("run") == 0
    done = ladder.happened
    (ladder.folder / "state.json").unlink()

    for word in ("run", "status", "rollback", "reset"):
        assert ladder(word) == 2
    assert ladder.happened == done


@pytest.mark.parametrize("left", [[], ["two"], ["two", "one"], ["one"]])
def test_a_state_of_other_stages_is_never_complete(ladder, left) -> None:
    ladder.write(stage("one"), stage("two"))
    assert ladder("run") == 0
    done = ladder.happened
    path = ladder.folder / "state.json"
    document = json.loads(path.read_text())
    rows = {row["name"]: row for row in document["stages"]}
    document["stages"] = [rows[name] for name in left]
    path.write_text(json.dumps(document))

    for words in (["run"], ["run", "--dry-run"], ["status"], ["rollback"]):
        assert ladder(*words) == 2
    assert ladder.happened == done


def test_the_folder_of_the_ladder_itself_keeps_no_state(ladder, here) -> None:
    ladder.write(stage("one"))
    before = ladder.file.read_text()

    assert ladder("run", "--state", ".") == 2
    assert ladder.file.read_text() == before


def test_a_second_process_is_refused(ladder) -> None:
    ladder.write(stage("one"))
    with LadderStore(ladder.folder):
        assert ladder("run") == 2
        assert f"process {os.getpid()} is on this ladder" in ladder.err

    assert ladder("run") == 0


def test_status_ends_as_run_would(ladder) -> None:
    ladder.write(stage("one", gate=code(1)))
    assert ladder("status") == 3
    ladder("run")

    assert ladder("status", "--json") == 1
    assert json.loads(ladder.out)["outcome"] == "rolled back"


def test_a_copy_of_the_ladder_is_for_its_owner_only(ladder) -> None:
    ladder.write(stage("one"))
    ladder("run")

    assert (ladder.folder / "ladder.yaml").stat().st_mode & 0o077 == 0


def test_a_state_in_the_middle_of_a_stage_is_taken_up_there(ladder) -> None:
    ladder.write(stage("one"), stage("two", approve="look"))
    ladder("run")
    path = ladder.folder / "state.json"
    document = json.loads(path.read_text())
    document["stages"][0]["phase"] = "gating"
    path.write_text(json.dumps(document))
    ladder("run")

    assert ladder.happened == ["apply one", "gate one", "gate one"]


def test_a_stage_that_never_ends_is_given_up_after_its_last_attempt(ladder) -> None:
    ladder.write(stage("one"), stage("two", approve="look"))
    ladder("run")
    path = ladder.folder / "state.json"
    document = json.loads(path.read_text())
    document["stages"][0] |= {"phase": "applying", "attempts": 3}
    path.write_text(json.dumps(document))

    assert ladder("run") == 4
    assert ladder.happened[-1] == "rollback one"


def test_a_command_of_a_killed_ladder_is_waited_for_by_a_person(ladder) -> None:
    ladder.write(stage("one"), stage("two", approve="look"))
    ladder("run")
    path = ladder.folder / "state.json"
    document = json.loads(path.read_text())
    document["child"] = [os.getpid(), start_ticks_of(os.getpid())]
    path.write_text(json.dumps(document))

    assert ladder("rollback") == 2
    assert "a command of a ladder that was killed" in ladder.err
    assert ladder.happened == ["apply one", "gate one"]


# -- signals -----------------------------------------------------------------------


@pytest.fixture
def process(ladder, here):
    """The command as a process of its own; whatever is left of it is ended."""
    started = []

    def start(word="run"):
        command = [sys.executable, "-m", "chaos.canary.cli", "ladder", word]
        with (here / "told").open("w") as told:  # a pipe would be its commands' as well
            process = subprocess.Popen(
                [*command, str(ladder.file)],
                stdout=told,
                stderr=told,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
                cwd=here,
            )
        started.append(process)
        return process

    yield start
    for each in started:
        each.kill()
        each.wait(timeout=20)


def gone(pid):
    return state_of(pid) in ("", "Z")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_ladder_takes_everything_back(ladder, process, number) -> None:
    ladder.write(stage("one"), stage("two", gate=WAIT))
    running = process()
    assert wait_until(lambda: "gate two" in ladder.happened, timeout_s=60)
    child = wait_for_child(ladder)
    running.send_signal(number)
    running.wait(timeout=40)
    told = Path("told").read_text()

    assert running.returncode == 128 + number, told
    assert ladder.happened[4:] == ["rollback two", "rollback one"]
    assert ladder.state.outcome == "rolled back"
    assert gone(child)
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_ladder_whose_process_was_killed_goes_on_where_it_was(
    ladder, process
) -> None:
    told = "import os, time\nos.path.exists('go') or time.sleep(60)"
    ladder.write(stage("one"), stage("two", gate=told), stage("three"))
    running = process()
    assert wait_until(lambda: "gate two" in ladder.happened, timeout_s=60)
    child = wait_for_child(ladder)
    running.kill()
    running.wait(timeout=20)

    assert ladder("run") == 2
    assert f"process {child}" in ladder.err
    os.kill(child, signal.SIGKILL)
    assert wait_until(lambda: gone(child), timeout_s=20)
    Path("go").touch()
    assert ladder("run") == 0
    assert ladder.happened[2:] == [
        *("apply two", "gate two", "gate two"),
        *("apply three", "gate three"),
    ]


@pytest.mark.slow
def test_a_second_signal_stops_the_way_back_and_the_state_says_so(
    ladder, process
) -> None:
    slow = "import os, time\nos.path.exists('go') or time.sleep(60)"
    ladder.write(stage("one"), stage("two", gate=code(1), rollback=slow))
    running = process()
    assert wait_until(lambda: "rollback two" in ladder.happened, timeout_s=60)
    child = wait_for_child(ladder)
    running.send_signal(signal.SIGTERM)
    running.wait(timeout=40)

    assert running.returncode == 5
    assert gone(child)
    assert ladder.state.outcome == "rolling back"
    Path("go").touch()
    assert ladder("rollback") == 1
    assert ladder.happened[-2:] == ["rollback two", "rollback one"]
    assert ladder.state.outcome == "rolled back"


def wait_for_child(ladder):
    assert wait_until(lambda: bool(ladder.state.child), timeout_s=20)
    return ladder.state.child[0]


# -- with the gate of this house ---------------------------------------------------

POLICY = """\
schema: canary.policy/1
name: small
relative: [{metric: ttft_s, quantile: 0.5, max_ratio: 1.3}]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "code", "last"),
    [
        ({}, 0, "gate everywhere"),
        ({"slow": 1.6}, 1, "rollback canary"),
        ({"complete": False}, 3, "apply canary"),
    ],
)
def test_a_ladder_goes_where_the_verdict_of_its_gate_says(
    ladder, measured, monkeypatch, here, made, code, last
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    (here / "policy.yaml").write_text(POLICY)
    judge = [sys.executable, "-m", "chaos.canary.cli", "judge", "--policy=policy.yaml"]
    judge += [
        f"--baseline={measured('baseline', seed=1)}",
        f"--canary={measured('canary', **{'seed': 2, **made})}",
    ]
    ladder.write(stage("canary") | {"gate": judge}, stage("everywhere"))

    assert ladder("run") == code
    assert ladder.happened[-1] == last

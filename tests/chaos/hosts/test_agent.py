"""The agent serves: commands, roles, faults with their undo, one owner a host."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.errors import AgentError, UsageError
from chaos.hosts.connectors import AGENT_PROGRAM

SOURCE = AGENT_PROGRAM.read_text(encoding="utf-8")
HOSTILE = [
    "$(touch /tmp/pwned)",
    "a 'b' \"c\"",
    "two\nlines",
    "`id`; rm -rf x",
    "-n",
    "",
]


def arm(link, *steps, fault_id="f", **options):
    return link.arm(fault_id, kind="test", target="t", steps=steps, **options)


@pytest.fixture
def fault_id(request):
    return request.node.name


# --- the program ----------------------------------------------------------------------


def test_the_program_is_python_3_8():
    ast.parse(SOURCE, feature_version=(3, 8))


def test_the_program_needs_nothing_but_the_standard_library():
    tree = ast.parse(SOURCE)
    names = {
        a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
    }
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}

    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--run", "../up"], "--run: needs letters"),
        (["serve", "--run", "r", "--state-dir", "relative"], "must be absolute"),
        (["serve", "--run", "r", "--state-dir", "/" + "x" * 120], "below 108 bytes"),
        (["serve", "--run", "r", "--ttl", "0"], "--ttl: needs seconds above 0"),
        (["serve", "--run", "r", "--ttl", "nan"], "--ttl: needs seconds above 0"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(argv, message):
    done = subprocess.run(
        [sys.executable, str(AGENT_PROGRAM), *argv], capture_output=True, text=True
    )

    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


# --- reading --------------------------------------------------------------------------


def test_it_says_who_it_is(shared):
    hello = shared.hello()

    assert (hello.run, hello.pid) == ("run-1", shared.connector.pid)
    assert hello.warden == shared.connector.warden
    assert hello.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert 60 < hello.expires_in_s <= hello.ttl_s == 120


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_arguments_are_inert(shared, value):
    code = "import sys; sys.stdout.write(sys.argv[1] + sys.stdin.read())"
    done = shared.run([sys.executable, "-c", code, value], stdin=value)

    assert (done.rc, done.stdout) == (0, value * 2)
    assert not Path("/tmp/pwned").exists()


def test_a_command_that_is_not_there_is_told(shared):
    done = shared.run(["no-such-program-here"])

    assert done.rc == 127
    assert "no-such-program-here" in done.stderr


def test_a_command_has_a_deadline_and_dies_with_its_children(shared, kit, tmp_path):
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! > {pids}; wait"
    began = kit.now()
    done = shared.run(["sh", "-c", script], timeout_s=0.3)

    assert (done.timed_out, done.rc) == (True, -9)
    assert kit.now() - began < 3
    assert kit.within(15, lambda: kit.ended(int(pids.read_text())))


def test_output_is_bounded(shared):
    code = "import sys; sys.stdout.write('x' * (3 << 20)); sys.stderr.write('end')"
    done = shared.run([sys.executable, "-c", code], timeout_s=10)

    assert (done.rc, len(done.stdout), done.stderr) == (0, 1 << 20, "end")


def test_a_background_child_does_not_hold_a_command(shared, kit):
    began = kit.now()
    done = shared.run(["sh", "-c", "sleep 5 & echo said"], timeout_s=10)

    assert done.stdout == "said\n"
    assert kit.now() - began < 3


def test_the_probe_names_a_reason_for_what_it_cannot(shared):
    found = shared.probe()

    for name in ("nft", "link", "tbf", "netem", "cgroup", "root", "pidfd"):
        assert found[name] or found["why_not"][name]
    assert found["root"] == (os.geteuid() == 0)


@pytest.mark.parametrize(
    ("op", "fields", "message"),
    [
        ("nonsense", {}, "op: no such operation"),
        ("run", {"argv": "ls -l"}, "argv: needs a list"),
        ("run", {"argv": []}, "argv: needs a list"),
        ("run", {"argv": ["a\0b"]}, "without NUL"),
        ("run", {"argv": ["ls"], "timeout_s": -1}, "timeout_s: needs a number"),
        ("run", {"argv": ["ls"], "timeout_s": 1e9}, "timeout_s: needs a number"),
        ("renew", {"ttl_s": 0}, "ttl_s"),
        ("spawn", {"role": "../../x", "argv": ["ls"]}, "role: needs letters"),
        ("spawn", {"role": "x\ny", "argv": ["ls"]}, "role: needs letters"),
        ("spawn", {"role": "x", "argv": ["ls"], "env": {"A=B": "c"}}, "env: no such"),
        ("spawn", {"role": "x", "argv": ["ls"], "env": {"A": 1}}, "A: needs a text"),
        ("arm", {"fault_id": "x", "steps": []}, "steps: needs a list"),
        ("arm", {"fault_id": "x", "steps": [{}]}, "steps[0].do: needs an action"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(shared, op, fields, message):
    with pytest.raises(AgentError) as caught:
        shared.call(op, fields)

    assert message in caught.value.reason
    assert "\n" not in caught.value.reason


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"op": "explode"}, "no such action"),
        ({"run": ["ls"], "shell": True}, "do.shell: no such field"),
        ({"run": "ls"}, "do.run: needs a list"),
        (
            {"op": "signal", "pid": 1, "start_ticks": 1, "signal": "NO"},
            "no such signal",
        ),
        ({"op": "signal", "pid": 1, "signal": "STOP"}, "do.start_ticks: needs"),
        ({"op": "write", "path": "here", "text": ""}, "absolute path"),
        ({"op": "start", "name": "a b", "argv": ["ls"]}, "do.name: needs letters"),
    ],
)
def test_wrong_steps_are_refused_before_the_first_one_runs(
    shared, kit, tmp_path, action, message, fault_id
):
    made = tmp_path / "made"
    with pytest.raises(AgentError, match="steps"):
        arm(shared, kit.touch(made), {"do": action}, fault_id=fault_id)
    with pytest.raises(AgentError) as caught:
        arm(shared, kit.touch(made), {"do": action}, fault_id=fault_id)

    assert message in caught.value.reason
    assert not made.exists()
    assert shared.fault(fault_id).state == "unknown"


# --- faults ---------------------------------------------------------------------------


def test_a_fault_is_armed_and_disarmed(shared, kit, scratch, fault_id):
    scratch.parent.mkdir(exist_ok=True)
    arm(shared, kit.touch(scratch), fault_id=fault_id)
    armed = shared.fault(fault_id)

    assert scratch.exists()
    assert (armed.state, armed.steps_done, armed.kind) == ("active", 1, "test")
    assert (shared.disarm(fault_id), scratch.exists()) == ("", False)
    assert shared.fault(fault_id).state == "reverted"
    assert shared.disarm(fault_id) == ""


def test_steps_are_undone_in_reverse_order(shared, kit, tmp_path, fault_id):
    log = tmp_path / "log"
    steps = [kit.note(log, word) for word in ("one", "two", "three")]
    arm(shared, *steps, fault_id=fault_id)
    shared.disarm(fault_id)

    assert log.read_text().split() == ["three", "two", "one"]


def test_a_step_that_fails_undoes_those_before_it(shared, kit, tmp_path, fault_id):
    log = tmp_path / "log"
    with pytest.raises(AgentError, match="step 2: false: exit 1") as caught:
        arm(
            shared,
            kit.note(log, "one"),
            kit.note(log, "two"),
            {**kit.note(log, "foreign"), "do": {"run": ["false"]}},
            kit.note(log, "never"),
            fault_id=fault_id,
        )

    assert log.read_text().split() == ["two", "one"]
    assert caught.value.detail["residual"] == ""
    assert shared.fault(fault_id).state == "reverted"


def test_a_step_that_was_cut_off_is_undone_as_well(shared, kit, tmp_path, fault_id):
    """Nobody knows how far it came."""
    log = tmp_path / "log"
    slow = {"run": ["sleep", "60"], "timeout_s": 0.1}
    with pytest.raises(AgentError, match="step 1: sleep: took too long"):
        arm(
            shared,
            kit.note(log, "one"),
            {**kit.note(log, "cut"), "do": slow},
            fault_id=fault_id,
        )

    assert log.read_text().split() == ["cut", "one"]


def test_a_fault_id_is_good_once(shared, kit, tmp_path, fault_id):
    arm(shared, kit.touch(tmp_path / "a"), fault_id=fault_id)
    shared.disarm(fault_id)

    with pytest.raises(AgentError, match="before"):
        arm(shared, kit.touch(tmp_path / "a"), fault_id=fault_id)


def test_an_arm_that_arrives_after_its_disarm_finds_the_door_shut(
    shared, kit, tmp_path, fault_id
):
    assert shared.disarm(fault_id) == ""

    with pytest.raises(AgentError, match="before"):
        arm(shared, kit.touch(tmp_path / "late"), fault_id=fault_id)
    assert not (tmp_path / "late").exists()


def test_an_undo_that_fails_is_residual_and_can_be_tried_again(
    shared, tmp_path, fault_id
):
    there = tmp_path / "there"
    undo = {"run": ["test", "-e", str(there)]}
    arm(shared, {"do": {"run": ["true"]}, "undo": undo}, fault_id=fault_id)

    assert "step 0: test: exit 1" in shared.disarm(fault_id)
    assert shared.fault(fault_id).state == "residual"

    there.touch()
    assert shared.disarm(fault_id) == ""
    assert shared.fault(fault_id).state == "reverted"


def test_a_check_decides_and_not_the_undo(shared, tmp_path, fault_id):
    """An undo that claims success is not believed."""
    made = tmp_path / "made"
    step = {
        "do": {"run": ["touch", str(made)]},
        "undo": {"run": ["true"]},
        "verify": {"run": ["test", "-e", str(made)], "expect_rc": 1, "within_s": 0.2},
    }
    arm(shared, step, fault_id=fault_id)

    assert "step 0: check" in shared.disarm(fault_id)
    made.unlink()
    assert shared.disarm(fault_id) == ""


@pytest.mark.parametrize(
    ("check", "left"),
    [
        ({"run": ["echo", "up"], "stdout_has": "up"}, False),
        ({"run": ["echo", "up"], "stdout_has": "down"}, True),
        ({"run": ["echo", "up"], "stdout_lacks": "up"}, True),
        ({"run": ["no-such-program-here"]}, True),
        ({"run": ["sleep", "60"], "timeout_s": 0.1}, True),
        ({"run": ["ip", "link", "show", "nodev0"], "stdout_has": "UP"}, False),
    ],
)
def test_checks_read_what_commands_say(shared, check, left, fault_id):
    verify = {"within_s": 0.05, **check}
    arm(shared, {"do": {"run": ["true"]}, "verify": verify}, fault_id=fault_id)

    assert bool(shared.disarm(fault_id)) is left


def test_an_undo_is_content_with_a_target_that_is_gone(shared, fault_id):
    undo = {"run": ["ip", "link", "set", "nodev0", "up"]}
    arm(shared, {"do": {"run": ["true"]}, "undo": undo}, fault_id=fault_id)

    assert shared.disarm(fault_id) == ""


def test_a_tool_that_is_missing_is_not_a_target_that_is_gone(shared, fault_id):
    undo = {"run": ["no-such-program-here"]}
    arm(shared, {"do": {"run": ["true"]}, "undo": undo}, fault_id=fault_id)

    assert "No such file" in shared.disarm(fault_id)


# --- commit-confirmed, leases of faults -----------------------------------------------


def test_a_fault_heals_itself_when_nobody_confirms_it(shared, kit, tmp_path, fault_id):
    made = tmp_path / "made"
    arm(shared, kit.touch(made), fault_id=fault_id, confirm_s=0.3)

    assert made.exists()
    assert kit.within(15, lambda: shared.fault(fault_id).state == "reverted")
    assert not made.exists()
    assert shared.fault(fault_id).detail == "not confirmed in time"
    with pytest.raises(AgentError, match="not confirmed in time"):
        shared.confirm(fault_id)


def test_a_confirmed_fault_stays(shared, kit, tmp_path, fault_id):
    arm(shared, kit.touch(tmp_path / "a"), fault_id=fault_id, confirm_s=0.3)
    shared.confirm(fault_id)

    assert not kit.within(0.8, lambda: shared.fault(fault_id).state != "active")
    assert shared.disarm(fault_id) == ""


def test_a_fault_with_a_lease_of_its_own_heals_without_the_others(
    shared, kit, tmp_path, fault_id
):
    arm(shared, kit.touch(tmp_path / "short"), fault_id=fault_id, ttl_s=0.3)
    arm(shared, kit.touch(tmp_path / "long"), fault_id=fault_id + "-2")

    assert kit.within(15, lambda: not (tmp_path / "short").exists())
    assert (tmp_path / "long").exists()
    assert shared.disarm(fault_id + "-2") == ""


def test_a_renewal_runs_the_renewals_of_active_faults_again(shared, tmp_path, fault_id):
    log = tmp_path / "log"
    step = {"do": {"run": ["true"]}, "renew": {"run": ["tee", "-a", str(log)]}}
    step["renew"]["stdin"] = "again\n"
    arm(shared, step, fault_id=fault_id)
    shared.renew(120)
    shared.renew(120)
    shared.disarm(fault_id)
    shared.renew(120)

    assert log.read_text().split() == ["again", "again"]


def test_a_renewal_that_fails_is_reported(shared, fault_id):
    step = {"do": {"run": ["true"]}, "renew": {"run": ["false"]}}
    arm(shared, step, fault_id=fault_id)

    assert "false: exit 1" in shared.renew(120).failed[fault_id]
    shared.disarm(fault_id)


# --- the kinds of actions -------------------------------------------------------------


def test_a_pause_stops_and_resumes_this_very_process(shared, victim, fault_id):
    arm(shared, victim.pause_step(), fault_id=fault_id)
    stopped = victim.state
    shared.disarm(fault_id)

    assert stopped == "T"
    assert victim.state != "T"


def test_a_pid_with_another_start_time_is_never_signalled(shared, victim, fault_id):
    with pytest.raises(AgentError, match="has ended"):
        arm(shared, victim.pause_step(ticks=victim.ticks + 1), fault_id=fault_id)

    assert victim.state != "T"


def test_a_paused_process_that_was_killed_counts_as_healed(shared, victim, fault_id):
    arm(shared, victim.pause_step(), fault_id=fault_id)
    victim.popen.kill()
    victim.popen.wait()

    assert shared.disarm(fault_id) == ""


@pytest.mark.parametrize("before", ["old content\n", None])
def test_a_written_file_is_restored(shared, scratch, before, fault_id):
    scratch.mkdir()
    path = scratch / "a 'setting'"
    if before is not None:
        path.write_text(before)
    step = {
        "do": {"op": "write", "path": str(path), "text": "new $(x)\n"},
        "undo": {"op": "restore", "path": str(path)},
    }
    arm(shared, step, fault_id=fault_id)
    written = path.read_text()

    assert (written, shared.disarm(fault_id)) == ("new $(x)\n", "")
    assert (path.read_text() if path.exists() else None) == before


def test_a_restore_is_content_when_the_directory_went_away(shared, scratch, fault_id):
    scratch.mkdir()
    path = scratch / "file"
    path.write_text("old")
    step = {
        "do": {"op": "write", "path": str(path), "text": "new"},
        "undo": {"op": "restore", "path": str(path)},
        "verify": {"op": "same", "path": str(path), "text": "old"},
    }
    arm(shared, step, fault_id=fault_id)
    path.unlink()
    scratch.rmdir()

    assert shared.disarm(fault_id) == ""


def test_a_disk_is_filled_as_far_as_asked_and_emptied(shared, tmp_path, fault_id):
    path = tmp_path / "filler"
    do = {"op": "fill", "path": str(path), "leave_bytes": 0, "max_bytes": 3_000_000}
    step = {"do": do, "undo": {"op": "unlink", "path": str(path)}}
    answers = arm(shared, step, fault_id=fault_id)

    assert answers == [{"bytes": 3_000_000}]
    assert path.stat().st_size == 3_000_000
    assert (shared.disarm(fault_id), path.exists()) == ("", False)


def test_a_file_of_others_is_neither_filled_nor_removed(shared, tmp_path, fault_id):
    path = tmp_path / "theirs"
    path.write_text("precious")
    do = {"op": "fill", "path": str(path), "leave_bytes": 0, "max_bytes": 10}
    step = {"do": do, "undo": {"op": "unlink", "path": str(path)}}
    with pytest.raises(AgentError, match="is there already"):
        arm(shared, step, fault_id=fault_id)

    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "action",
    [
        {"op": "start", "argv": ["sleep", "600"]},
        {"op": "memory", "bytes": 4 << 20},
        {"op": "cpu", "workers": 2},
        {"op": "listen", "address": "127.0.0.1", "port": 0},
    ],
    ids=lambda action: action["op"],
)
def test_a_background_child_runs_until_it_is_ended(shared, kit, action, fault_id):
    fault_id = fault_id.replace("[", "-").replace("]", "")
    step = {
        "do": {**action, "name": "child"},
        "undo": {"op": "end", "name": "child"},
        "verify": {"op": "gone", "name": "child"},
    }
    [child] = arm(shared, step, fault_id=fault_id)

    assert kit.is_alive(child["pid"], child["start_ticks"])
    assert shared.disarm(fault_id) == ""
    assert not kit.is_alive(child["pid"], child["start_ticks"])


def test_a_port_is_taken_while_the_fault_lasts(shared, fault_id):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    do = {"op": "listen", "name": "p", "address": "127.0.0.1", "port": port}
    step = {"do": do, "undo": {"op": "end", "name": "p"}}
    arm(shared, step, fault_id=fault_id)
    with socket.socket() as wanted, pytest.raises(OSError, match="in use"):
        wanted.bind(("127.0.0.1", port))
    shared.disarm(fault_id)

    with socket.socket() as wanted:
        wanted.bind(("127.0.0.1", port))


def test_a_port_that_cannot_be_taken_is_no_fault(shared, fault_id):
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        do = {"op": "listen", "name": "p", "address": "127.0.0.1"}
        do["port"] = owner.getsockname()[1]
        with pytest.raises(AgentError, match="in use"):
            arm(
                shared,
                {"do": do, "undo": {"op": "end", "name": "p"}},
                fault_id=fault_id,
            )


def test_a_child_that_ends_at_once_is_no_fault(shared, fault_id):
    do = {"op": "start", "name": "c", "argv": ["false"]}
    with pytest.raises(AgentError, match="ended at once with 1"):
        arm(shared, {"do": do, "undo": {"op": "end", "name": "c"}}, fault_id=fault_id)


# --- roles ----------------------------------------------------------------------------


def test_a_role_is_started_watched_and_stopped(shared, kit):
    process = kit.spawn(shared, "role-a", env={"TOKEN": "a 'b'\n$(c)"})
    line = shared.wait_line("role-a", "ready", timeout_s=5)
    environment = Path(f"/proc/{process.pid}/environ").read_text()

    assert line == "role ready role-a"
    assert "TOKEN=a 'b'\n$(c)\0" in environment
    assert shared.role("role-a").alive
    assert shared.tail("role-a") == ("role ready role-a\n", "")
    assert shared.stop("role-a", timeout_s=5) == -15
    assert (shared.role("role-a").alive, shared.role("role-a").rc) == (False, -15)


def test_the_environment_of_a_role_is_not_on_disk(shared, kit):
    kit.spawn(shared, "role-b", env={"TOKEN": "very-secret-value"})
    home = Path(shared.connector.state_dir) / "run-1"
    texts = [path.read_bytes() for path in home.iterdir() if path.is_file()]
    shared.stop("role-b", timeout_s=5)

    assert texts
    assert not any(b"very-secret-value" in text for text in texts)


def test_a_role_runs_once(shared, kit):
    kit.spawn(shared, "role-c")
    with pytest.raises(AgentError, match="already running"):
        kit.spawn(shared, "role-c")
    shared.stop("role-c", timeout_s=5)
    kit.spawn(shared, "role-c")

    assert shared.stop("role-c", timeout_s=5) == -15


def test_only_lines_of_this_start_count(shared, kit):
    kit.spawn(shared, "role-d")
    shared.wait_line("role-d", "ready", timeout_s=5)
    shared.stop("role-d", timeout_s=5)
    kit.spawn(shared, "role-d", "import time; time.sleep(600)")
    with pytest.raises(AgentError, match=r"not ready in 0\.3 s"):
        shared.wait_line("role-d", "ready", timeout_s=0.3)
    shared.stop("role-d", timeout_s=5)


def test_a_role_that_ends_is_told_with_its_last_words(shared, kit):
    kit.spawn(shared, "role-e", "import sys; sys.exit('port 7 is taken')")
    with pytest.raises(AgentError, match="ended with 1") as caught:
        shared.wait_line("role-e", "ready", timeout_s=5)

    assert caught.value.detail["tail"] == "port 7 is taken"


def test_a_role_that_ignores_sigterm_is_killed(shared, kit):
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=1)"
    )
    kit.spawn(shared, "role-f", code + "; time.sleep(600)")
    shared.wait_line("role-f", "up", timeout_s=5)

    assert shared.stop("role-f", timeout_s=0.2) == -9


def test_children_of_a_role_end_with_it(shared, kit):
    code = "import subprocess; p = subprocess.Popen(['sleep', '600'])"
    kit.spawn(shared, "role-g", f"{code}; print('child', p.pid, flush=True); p.wait()")
    pid = int(shared.wait_line("role-g", "child", timeout_s=5).split()[1])
    shared.stop("role-g", timeout_s=5)

    assert kit.within(15, lambda: kit.ended(pid))


def test_a_role_that_was_never_started_is_not_alive(shared):
    state = shared.role("nobody")

    assert (state.alive, state.pid, state.rc) == (False, 0, None)


def test_signals_reach_a_role_as_if_it_had_been_started_by_hand(shared, kit):
    """No blocked and no ignored signals are inherited from the agent."""
    kit.spawn(shared, "role-h")
    text = Path(f"/proc/{shared.role('role-h').pid}/status").read_text()
    shared.stop("role-h", timeout_s=5)
    fields = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)

    assert int(fields["SigBlk"], 16) == 0
    assert int(fields["SigIgn"], 16) & ~(1 << 12 | 1 << 24) == 0  # Python's own two


# --- one owner a host -----------------------------------------------------------------


def test_a_second_run_is_refused_and_told_of_the_first(fleet):
    first = fleet.agent(run="first-run")
    with pytest.raises(
        UsageError, match=r"run first-run of test since .*Z \(pid \d+\)"
    ):
        fleet.agent(first.connector.state_dir, run="second-run")

    assert first.hello().run == "first-run"


def test_after_a_shutdown_nothing_is_left_and_the_next_run_starts(fleet, kit):
    first = fleet.agent(run="first-run")
    process = kit.spawn(first)
    warden = first.connector.warden

    assert first.shutdown() == ""
    assert not kit.is_alive(process.pid, process.start_ticks)
    assert kit.within(15, lambda: kit.ended(warden))
    assert not Path(first.connector.state_dir).exists()
    assert fleet.agent(first.connector.state_dir, run="next").hello().run == "next"


def test_a_shutdown_can_be_asked_again(fleet):
    link = fleet.agent()

    assert (link.shutdown(), link.shutdown()) == ("", "")


def test_what_cannot_be_healed_is_named_and_refuses_the_next_run(fleet, tmp_path):
    link = fleet.agent()
    step = {
        "do": {"run": ["true"]},
        "undo": {"run": ["test", "-e", str(tmp_path / "x")]},
    }
    arm(link, step, fault_id="stuck")

    assert "stuck: step 0: test: exit 1" in link.shutdown()
    with pytest.raises(
        UsageError, match="still broken by an earlier run: run-1: stuck"
    ):
        fleet.agent(link.connector.state_dir, run="next")

    (tmp_path / "x").touch()
    rows = link.connector.recover()
    assert [row["state"] for row in rows] == ["reverted", "healed"]
    assert not (Path(link.connector.state_dir) / "run-1").exists()


def test_state_is_for_the_owner_alone(fleet):
    link = fleet.agent()
    home = Path(link.connector.state_dir) / "run-1"
    modes = {path.name: path.stat().st_mode & 0o077 for path in home.iterdir()}

    assert home.stat().st_mode & 0o077 == 0
    assert set(modes.values()) == {0}
    assert {"agent.py", "agent.sock", "ledger.jsonl"} <= set(modes)


def test_the_status_of_a_host_tells_its_run_and_its_open_faults(fleet, kit, tmp_path):
    link = fleet.agent()
    arm(link, kit.touch(tmp_path / "a"), fault_id="open-one")
    [row] = link.connector.status()

    assert (row["run"], row["alive"], row["controller"]) == ("run-1", True, "test")
    assert [(one["fault_id"], one["state"]) for one in row["faults"]] == [
        ("open-one", "active")
    ]
    assert json.dumps(row)

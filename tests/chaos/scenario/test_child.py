"""A run in a process of its own: ended with us, in its own way and never at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from chaos.scenario.child import run_child, run_side_by_side

# Undoes something for half a second when it is asked to end, and says so.
SLOW = textwrap.dedent("""
    import os, pathlib, signal, sys, time
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    told = pathlib.Path(sys.argv[1])
    try:
        told.write_text(str(os.getpid()))
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)
        told.write_text("undone")
        sys.exit(130)
""")
PARENT = textwrap.dedent("""
    import sys
    from chaos.scenario.child import run_child
    from chaos.scenario.interrupt import Interrupted
    from chaos.scenario.child import run_side_by_side
    commands = [[sys.executable, "-c", sys.argv[1], path] for path in sys.argv[2:]]
    try:
        run_side_by_side(commands) if commands[1:] else run_child(commands[0])
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)
""")


def begun(path):
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return path.read_text()


def test_what_it_says_and_its_code_come_back():
    command = [sys.executable, "-c", "print('seen'); raise SystemExit(3)"]
    done = run_child(command, stdout=subprocess.PIPE)

    assert (done.returncode, done.stdout) == (3, "seen\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("to", ["the parent", "the group of the parent"])
@pytest.mark.parametrize("many", [1, 2])
def test_a_signal_ends_them_orderly_and_then_us(tmp_path, number, to, many):
    paths = [tmp_path / f"told-{n}" for n in range(many)]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, SLOW, *map(str, paths)], start_new_session=True
    )
    for path in paths:
        begun(path)
    if to == "the parent":
        parent.send_signal(number)
    else:
        os.killpg(parent.pid, number)

    assert parent.wait(20) == 128 + number
    assert [path.read_text() for path in paths] == ["undone"] * many


def test_the_codes_of_all_come_back():
    commands = [[sys.executable, "-c", f"raise SystemExit({n})"] for n in (0, 3)]

    assert run_side_by_side(commands) == [0, 3]


def test_a_child_whose_time_is_up_is_asked_to_end(tmp_path):
    path = tmp_path / "told"
    command = [sys.executable, "-c", SLOW, str(path)]
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(command, timeout_s=2.0)

    assert path.read_text() == "undone"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_right_after_the_first_leaves_nobody_unasked(tmp_path, number):
    """As a shell and the kernel send when a terminal is closed."""
    path = tmp_path / "told"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, SLOW, str(path)], start_new_session=True
    )
    pid = int(begun(path))
    for _ in range(2):
        parent.send_signal(number)
        time.sleep(0.03)

    assert parent.wait(20) == 128 + number
    ended = time.monotonic() + 20
    while path.read_text() == str(pid) and time.monotonic() < ended:
        time.sleep(0.01)
    assert path.read_text() == "undone"


def test_one_that_cannot_start_ends_those_that_did(tmp_path):
    path = tmp_path / "told"
    slow = [sys.executable, "-c", SLOW, str(path)]
    with pytest.raises(FileNotFoundError):
        run_side_by_side([slow, [str(tmp_path / "nothing")]], grace_s=20.0)

    time.sleep(1.0)  # one that was left alone would have begun by then
    told = path.read_text() if path.exists() else ""
    assert not told.isdigit() or not Path(f"/proc/{told}").exists()


def test_one_that_does_not_end_is_killed(tmp_path, capsys):
    path = tmp_path / "told"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    command = [sys.executable, "-c", f"{deaf}{SLOW}", str(path)]
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(command, timeout_s=1.5, grace_s=0.2)

    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)
    assert "was killed; run `chaos recover`" in capsys.readouterr().err

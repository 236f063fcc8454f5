"""Commands are processes here: each is a small Python program."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from chaos.canary.ladder.commands import run_command
from chaos.canary.ladder.interrupts import Interrupts
from chaos.safety.identity import is_alive, state_of, wait_until


@pytest.fixture
def interrupts():
    with Interrupts() as opened:
        yield opened


@pytest.fixture
def run(tmp_path, interrupts):
    def run(*command, timeout_s=20.0, grace_s=0.3, started=lambda pid, ticks: None):
        return run_command(
            command,
            timeout_s=timeout_s,
            cwd=tmp_path,
            environ={"CANARY_STAGE": "s"},
            started=started,
            interrupts=interrupts,
            grace_s=grace_s,
        )

    return run


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


@pytest.mark.parametrize("code", [0, 1, 3, 5, 255])
def test_the_exit_code_is_what_the_command_said(run, code) -> None:
    assert run(*python(f"raise SystemExit({code})")).code == code


def test_arguments_reach_the_program_as_they_are(run, tmp_path) -> None:
    wild = "$(touch x) `touch y` ; touch z * ~ \"'"
    script = "import sys, pathlib; pathlib.Path('got').write_text(sys.argv[1])"
    ended = run(*python(script), wild)

    assert ended.code == 0
    assert (tmp_path / "got").read_text() == wild
    assert [path.name for path in tmp_path.iterdir()] == ["got"]


def test_a_command_knows_its_stage(run) -> None:
    script = "import os; raise SystemExit(os.environ['CANARY_STAGE'] != 's')"

    assert run(*python(script)).code == 0


def test_a_program_that_is_not_there_is_a_problem_and_no_code(run) -> None:
    ended = run("/nowhere/at-all")

    assert ended.code is None
    assert "cannot be started" in ended.problem


def test_a_command_that_died_of_a_signal_has_no_code(run) -> None:
    ended = run(*python("import os; os.kill(os.getpid(), 9)"))

    assert (ended.code, ended.problem) == (None, "was ended by signal 9")


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    open('pids', 'w').write(f'{os.getpid()} {child}')
time.sleep(60)
"""


def gone(pid: int) -> bool:
    return state_of(pid) in ("", "Z")


def test_at_the_deadline_the_whole_group_is_ended(run, tmp_path) -> None:
    begin = time.monotonic()
    ended = run(*python(STUBBORN), timeout_s=0.7, grace_s=0.1)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    assert ended.code is None
    assert "did not end within 0.7 s" in ended.problem
    assert time.monotonic() - begin < 10
    assert wait_until(lambda: all(map(gone, pids)), timeout_s=5)


def test_an_interrupt_ends_the_command_at_once(run, interrupts) -> None:
    timer = threading.Timer(0.3, interrupts.raise_one, [signal.SIGTERM])
    timer.start()
    began = time.monotonic()
    ended = run(*python("import time; time.sleep(60)"))
    timer.join()

    assert ended.interrupted
    assert time.monotonic() - began < 10
    assert interrupts.take() == signal.SIGTERM
    assert not interrupts.pending


def test_a_real_signal_is_a_number_and_no_exception() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.take() == signal.SIGTERM
        assert interrupts.take() == 0

    assert signal.getsignal(signal.SIGTERM) is before


def test_who_was_started_is_told_before_it_is_waited_for(run) -> None:
    seen = []
    run(
        *python("import time; time.sleep(0.2)"),
        started=lambda pid, ticks: seen.append(is_alive(pid, ticks)),
    )

    assert seen == [True]


def test_when_the_note_cannot_be_made_the_command_is_ended(run) -> None:
    pids = []

    def started(pid: int, ticks: int) -> None:
        pids.append(pid)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(*python("import time; time.sleep(60)"), started=started, grace_s=1.0)

    assert gone(pids[0])

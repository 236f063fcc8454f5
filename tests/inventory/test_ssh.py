"""Commands over a real sshd."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from inventory import SshError, SshProblem, SshSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from inventory import HostEntry


def failure(call: Callable[[], object]) -> SshError:
    with pytest.raises(SshError) as caught:
        call()
    return caught.value


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it came true in time."""
    pause = threading.Event()
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(0.01)
    return True


def test_arguments_arrive_as_they_were_given(host: Callable[..., HostEntry]) -> None:
    hostile = ["a b", "$HOME", "`id`", "; rm -rf x", "'", '"', "\n", "*", "-e", ""]
    with SshSession(host()) as session:
        done = session.run_python(
            b"import sys, json; print(json.dumps(sys.argv[1:]))", hostile, timeout_s=10
        )

    assert json.loads(done.text) == hostile


def test_exit_code_and_both_streams_come_back(host: Callable[..., HostEntry]) -> None:
    with SshSession(host()) as session:
        done = session.run(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout_s=10)

    assert (done.rc, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_much_input_and_output_at_once_do_not_block_each_other(
    host: Callable[..., HostEntry],
) -> None:
    data = bytes(range(256)) * 20_000
    with SshSession(host()) as session:
        done = session.run(["cat"], stdin=data, timeout_s=20)

    assert done.stdout == data


def test_much_on_stderr_does_not_block_stdout(host: Callable[..., HostEntry]) -> None:
    source = b"import sys\nsys.stderr.write('e' * 3000000)\nprint('done')"
    with SshSession(host()) as session:
        done = session.run_python(source, timeout_s=20)

    assert (len(done.stderr), done.text) == (3_000_000, "done\n")


def test_a_command_that_reads_no_input_ends_all_the_same(
    host: Callable[..., HostEntry],
) -> None:
    with SshSession(host()) as session:
        done = session.run(["sh", "-c", "exit 3"], stdin=b"x" * 9_000_000, timeout_s=20)

    assert done.rc == 3


def test_a_command_ended_by_a_signal_has_no_exit_code(
    host: Callable[..., HostEntry],
) -> None:
    with SshSession(host()) as session:
        done = session.run(["sh", "-c", "kill -9 $$"], timeout_s=10)

    assert done.rc == -1


def test_a_command_has_its_deadline_and_the_session_goes_on(
    host: Callable[..., HostEntry],
) -> None:
    with SshSession(host()) as session:
        session.connect()
        begun = time.monotonic()
        error = failure(lambda: session.run(["sleep", "2"], timeout_s=0.3))
        took_s = time.monotonic() - begun
        after = session.run(["echo", "on"], timeout_s=10)

    assert error.kind is SshProblem.TIMEOUT
    assert error.maybe_ran
    assert took_s < 3
    assert after.text == "on\n"


def test_a_command_that_closes_its_output_and_goes_on_has_its_deadline_too(
    host: Callable[..., HostEntry],
) -> None:
    command = ["sh", "-c", "exec >/dev/null 2>&1 </dev/null; sleep 3"]
    with SshSession(host()) as session:
        error = failure(lambda: session.run(command, timeout_s=0.6))

    assert error.kind is SshProblem.TIMEOUT


def test_output_without_end_is_garbage(host: Callable[..., HostEntry]) -> None:
    source = b"import sys\nwhile True: sys.stdout.write('y' * 65536)"
    with SshSession(host()) as session:
        error = failure(
            lambda: session.run_python(source, timeout_s=20, limit_bytes=1 << 20)
        )

    assert error.kind is SshProblem.GARBAGE
    assert "1048576 bytes" in str(error)


def test_threads_share_one_connection(host: Callable[..., HostEntry]) -> None:
    answers: list[str] = []
    with SshSession(host()) as session:
        threads = [
            threading.Thread(
                target=lambda n=n: answers.append(
                    session.run(["echo", str(n)], timeout_s=20).text.strip()
                )
            )
            for n in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    assert sorted(answers) == [str(n) for n in range(6)]


def test_a_missing_interpreter_is_said_to_be_missing(
    host: Callable[..., HostEntry],
) -> None:
    with SshSession(host(python="/nowhere/python3")) as session:
        error = failure(lambda: session.run_python(b"print(1)", timeout_s=10))

    assert error.kind is SshProblem.NO_PYTHON
    assert not error.maybe_ran
    assert "/nowhere/python3" in str(error)
    assert "ansible_python_interpreter" in str(error)


def test_missing_sudo_is_said_to_be_missing(host: Callable[..., HostEntry]) -> None:
    with SshSession(host(sudo=True)) as session:
        error = failure(lambda: session.run_python(b"print(1)", timeout_s=10))

    assert error.kind is SshProblem.NO_SUDO


@pytest.mark.parametrize(
    "words",
    [
        "sudo: a password is required",
        "sudo: sorry, you must have a tty to run sudo",
        "sudo: a terminal is required to read the password",
        "moon is not in the sudoers file.",
        "Sorry, user moon is not allowed to execute 'python3' as root on h.",
    ],
)
def test_sudo_that_refuses_is_told_from_a_program_that_fails(
    words: str,
    host: Callable[..., HostEntry],
    program: Callable[[str, str], None],
) -> None:
    program("sudo", f'echo "{words}" >&2; exit 1')
    with SshSession(host(sudo=True)) as session:
        error = failure(lambda: session.run_python(b"print(1)", timeout_s=10))

    assert error.kind is SshProblem.NO_SUDO


def test_sudo_without_the_interpreter_is_no_fault_of_sudo(
    host: Callable[..., HostEntry], program: Callable[[str, str], None]
) -> None:
    program("sudo", 'echo "sudo: $3: command not found" >&2; exit 1')
    with SshSession(host(sudo=True)) as session:
        error = failure(lambda: session.run_python(b"print(1)", timeout_s=10))

    assert error.kind is SshProblem.NO_PYTHON


def test_sudo_is_asked_for_no_password_and_given_the_program(
    host: Callable[..., HostEntry], program: Callable[[str, str], None]
) -> None:
    program("sudo", '[ "$1 $2" = "-n --" ] || exit 9; shift 2; exec "$@"')
    with SshSession(host(sudo=True)) as session:
        done = session.run_python(b"import sys; print(sys.argv[1])", ["x"], timeout_s=9)

    assert (done.rc, done.text) == (0, "x\n")


def test_a_program_that_fails_by_itself_is_not_taken_for_a_missing_one(
    host: Callable[..., HostEntry],
) -> None:
    with SshSession(host()) as session:
        done = session.run_python(b"import sys; sys.exit(127)", timeout_s=10)

    assert done.rc == 127


def test_a_stream_carries_lines_both_ways_until_it_is_closed(
    host: Callable[..., HostEntry],
) -> None:
    with SshSession(host()) as session, session.open(["cat"]) as channel:
        channel.send(b"one\n", timeout_s=5)
        first = channel.recv(timeout_s=5)
        with pytest.raises(TimeoutError):
            channel.recv(timeout_s=0.05)
        channel.send(b"two\n", timeout_s=5)
        second = channel.recv(timeout_s=5)
        channel.end_input()
        last = channel.recv(timeout_s=5)
        code = channel.wait(timeout_s=5)

    assert (first, second, last, code) == (b"one\n", b"two\n", b"", 0)


def test_one_thread_reads_while_another_writes(host: Callable[..., HostEntry]) -> None:
    got: list[bytes] = []
    with SshSession(host()) as session, session.open(["cat"]) as channel:
        reader = threading.Thread(
            target=lambda: got.append(channel.recv(timeout_s=10)), daemon=True
        )
        reader.start()
        channel.send(b"x", timeout_s=5)
        reader.join(10)

    assert got == [b"x"]


def test_what_a_stream_complains_of_can_be_read(
    host: Callable[..., HostEntry],
) -> None:
    with SshSession(host()) as session:
        channel = session.open(["sh", "-c", "echo no >&2; exit 4"])
        end = channel.recv(timeout_s=5)
        code = channel.wait(timeout_s=5)
        words = channel.stderr
        channel.close()

    assert (end, code, words) == (b"", 4, b"no\n")


def test_a_command_lost_with_its_connection_may_have_run_and_is_not_run_again(
    host: Callable[..., HostEntry], relay: Any, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    entry = host(address=relay.server.address, port=relay.server.port)
    command = ["sh", "-c", 'echo x >> "$0"; sleep 2; echo late', str(marks)]
    with SshSession(entry) as session:
        session.connect()
        errors: list[SshError] = []
        thread = threading.Thread(
            target=lambda: errors.append(
                failure(lambda: session.run(command, timeout_s=20))
            )
        )
        thread.start()
        started = until(marks.exists)
        relay.cut()
        thread.join(20)
        again = session.run(["cat", str(marks)], timeout_s=10)

    assert started
    assert errors[0].kind is SshProblem.LOST
    assert errors[0].maybe_ran
    assert again.text == "x\n"


def test_output_cut_in_the_middle_is_lost_never_short(
    host: Callable[..., HostEntry], relay: Any
) -> None:
    entry = host(address=relay.server.address, port=relay.server.port)
    source = (
        b"import sys, time\nsys.stdout.write('x' * 100000)\nsys.stdout.flush()\n"
        b"time.sleep(3)"
    )
    with SshSession(entry) as session:
        channel = session.open(["env", entry.python, "-c", source.decode()])
        some = channel.recv(timeout_s=10)
        relay.cut()
        error = failure(lambda: [channel.recv(timeout_s=10) for _ in range(1000)])
        channel.close()

    assert some
    assert error.kind is SshProblem.LOST


def test_a_network_that_swallows_everything_ends_in_a_timeout(
    host: Callable[..., HostEntry], relay: Any
) -> None:
    entry = host(address=relay.server.address, port=relay.server.port)
    with SshSession(entry) as session:
        session.connect()
        relay.freeze()
        error = failure(lambda: session.run(["echo", "x"], timeout_s=0.5))

    assert error.kind is SshProblem.TIMEOUT
    assert error.phase == "the command"


def test_a_broken_connection_is_replaced_by_the_next_call(
    host: Callable[..., HostEntry], relay: Any
) -> None:
    entry = host(address=relay.server.address, port=relay.server.port)
    with SshSession(entry) as session:
        session.connect()
        relay.cut()
        gone = until(lambda: not session.connected)
        done = session.run(["echo", "again"], timeout_s=10)

    assert gone
    assert done.text == "again\n"
    assert relay.server.taken == 2


def test_closing_leaves_no_thread_behind(host: Callable[..., HostEntry]) -> None:
    before = set(threading.enumerate())
    session = SshSession(host())
    session.run(["echo", "x"], timeout_s=10)
    session.close()
    session.close()

    assert until(lambda: set(threading.enumerate()) <= before)


def test_a_program_that_misses_another_one_is_not_taken_for_a_missing_python(
    host: Callable[..., HostEntry],
) -> None:
    source = b"import sys; sys.exit('env: nvidia-smi: No such file or directory')"
    with SshSession(host()) as session:
        done = session.run_python(source, timeout_s=10)

    assert done.rc == 1

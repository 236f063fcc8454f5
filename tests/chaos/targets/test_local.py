from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.errors import ProcessFailed
from chaos.safety.identity import state_of, wait_until
from chaos.safety.ledger import Ledger, read_ledger
from chaos.safety.locks import lease_block
from chaos.targets.local import LocalTarget

PYTHON = [sys.executable, "-S", "-u", "-c"]
ROLE = [*PYTHON, "import time; print('hello up'); time.sleep(60)"]
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    " print('hello up'); time.sleep(60)"
)


@pytest.fixture
def target(tmp_path):
    block = lease_block(directory=tmp_path)
    ledger = Ledger.create(tmp_path)
    target = LocalTarget(run_dir=tmp_path / "roles", ledger=ledger, block=block)
    yield target
    target.close()
    ledger.close()
    block.lock.release()


def ledger_of(tmp_path: Path):
    (path,) = tmp_path.glob("run-*.jsonl")
    return read_ledger(path)


def test_a_role_runs_in_a_session_of_its_own_and_stands_in_the_ledger(
    target, tmp_path
) -> None:
    import os

    process = target.spawn("store-0", ROLE)

    assert target.wait_ready("store-0", "up", timeout_s=10) == "hello up"
    assert os.getsid(process.pid) == process.pid
    assert ledger_of(tmp_path).processes[process.pid].role == "store-0"


def test_output_goes_to_files_in_the_run_directory(target, tmp_path) -> None:
    target.spawn("store-0", ROLE)
    target.wait_ready("store-0", "up", timeout_s=10)

    assert (tmp_path / "roles" / "store-0.out").read_text() == "hello up\n"


def test_a_role_that_ends_before_it_is_ready_tells_its_last_words(target) -> None:
    target.spawn(
        "store-0", [sys.executable, "-S", "-c", "import sys; sys.exit('port taken')"]
    )

    with pytest.raises(ProcessFailed, match=r"ended with 1: port taken"):
        target.wait_ready("store-0", "up", timeout_s=10)


def test_waiting_for_a_silent_role_has_a_deadline(target) -> None:
    target.spawn("store-0", [sys.executable, "-S", "-c", "import time; time.sleep(60)"])

    with pytest.raises(ProcessFailed, match=r"not ready in 0\.05 s"):
        target.wait_ready("store-0", "up", timeout_s=0.05)


def test_the_ready_line_of_an_earlier_start_does_not_count(target) -> None:
    target.spawn("store-0", ROLE)
    target.wait_ready("store-0", "up", timeout_s=10)
    target.stop("store-0", timeout_s=5)
    target.spawn("store-0", [sys.executable, "-S", "-c", "import time; time.sleep(60)"])

    with pytest.raises(ProcessFailed, match="not ready"):
        target.wait_ready("store-0", "up", timeout_s=0.05)


def test_a_role_that_runs_is_not_started_twice(target) -> None:
    target.spawn("store-0", ROLE)

    with pytest.raises(ProcessFailed, match="already running"):
        target.spawn("store-0", ROLE)


def test_stopping_ends_a_role_and_returns_its_code(target) -> None:
    target.spawn("store-0", ROLE)
    target.wait_ready("store-0", "up", timeout_s=10)

    assert target.stop("store-0", timeout_s=5) == -signal.SIGTERM
    assert target.process("store-0") is None


def test_a_deaf_role_is_killed_when_its_time_is_up(target) -> None:
    target.spawn("store-0", [sys.executable, "-S", "-u", "-c", DEAF])
    target.wait_ready("store-0", "up", timeout_s=10)

    assert target.stop("store-0", timeout_s=0.1) == -signal.SIGKILL


def test_a_paused_role_can_be_stopped(target, freeze) -> None:
    process = target.spawn("store-0", ROLE)
    target.wait_ready("store-0", "up", timeout_s=10)
    freeze(process.pid)

    assert target.stop("store-0", timeout_s=5) == -signal.SIGTERM


def test_closing_ends_everything_and_is_safe_twice(target, tmp_path) -> None:
    processes = [target.spawn(f"store-{number}", ROLE) for number in range(3)]
    target.close()
    target.close()

    assert all(state_of(process.pid) == "" for process in processes)
    assert ledger_of(tmp_path).processes == {}


_HARNESS = """
import os, signal, sys
from pathlib import Path
from chaos.safety.ledger import Ledger
from chaos.safety.locks import lease_block
from chaos.targets.local import LocalTarget
where = Path(sys.argv[1])
block = lease_block(directory=where)
target = LocalTarget(run_dir=where, ledger=Ledger.create(where), block=block)
code = (
    "from refimpl.role import die_with_parent; die_with_parent();"
    " import time; print('up', flush=True); time.sleep(60)"
)
process = target.spawn("store-0", [sys.executable, "-c", code])
target.wait_ready("store-0", "up", timeout_s=20)
os.kill(process.pid, signal.SIGSTOP)
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_even_a_paused_role_dies_with_a_killed_harness(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HARNESS, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    pid = int(done.stdout)

    assert wait_until(lambda: state_of(pid) in ("", "Z"), timeout_s=5)

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from chaos.safety.identity import start_ticks_of
from chaos.safety.ledger import (
    FaultState,
    Ledger,
    ledgers,
    read_ledger,
    state_directory,
)


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.create(tmp_path, command="pytest suites/chaos")
    yield ledger
    ledger.close()


def step(ledger: Ledger, state: FaultState, detail: str = "") -> None:
    ledger.fault("kill-1", state, kind="kill", target="store-3", detail=detail)


def test_a_run_is_read_back_as_the_living_process_that_wrote_it(ledger) -> None:
    view = read_ledger(ledger.path)

    assert view.pid == os.getpid()
    assert view.command == "pytest suites/chaos"
    assert view.harness_alive


def test_a_fault_row_is_synced_before_the_call_returns(tmp_path) -> None:
    synced: list[bytes] = []
    path = tmp_path / "run-1-1.jsonl"
    ledger = Ledger(path, sync=lambda _: synced.append(path.read_bytes()))
    step(ledger, FaultState.ARMED)
    ledger.close()

    assert b'"armed"' in synced[-1]


def test_the_last_state_of_a_fault_counts(ledger) -> None:
    for state in (FaultState.PLANNED, FaultState.ARMED, FaultState.ACTIVE):
        step(ledger, state)
    assert [fault.state for fault in read_ledger(ledger.path).open_faults] == [
        FaultState.ACTIVE
    ]

    step(ledger, FaultState.REVERTED)

    assert read_ledger(ledger.path).open_faults == []


def test_a_fault_that_was_only_planned_broke_nothing(ledger) -> None:
    step(ledger, FaultState.PLANNED)

    assert read_ledger(ledger.path).open_faults == []


def test_a_row_torn_by_a_crash_is_counted_and_the_rest_is_read(ledger) -> None:
    step(ledger, FaultState.ACTIVE)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + b'{"row":"fault","fault_id":"ki')

    view = read_ledger(ledger.path)

    assert view.torn_rows == 1
    assert len(view.open_faults) == 1


def test_the_file_goes_when_a_run_ends_clean(tmp_path) -> None:
    ledger = Ledger.create(tmp_path)
    step(ledger, FaultState.ACTIVE)
    step(ledger, FaultState.REVERTED)
    ledger.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", [FaultState.ACTIVE, FaultState.RESIDUAL])
def test_the_file_stays_while_a_fault_is_left(tmp_path, state) -> None:
    ledger = Ledger.create(tmp_path)
    step(ledger, state, "still there")
    ledger.close()

    (view,) = ledgers(tmp_path)
    assert view.open_faults[0].state is state


def test_the_file_stays_while_a_process_of_the_run_lives(tmp_path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    )
    ticks = start_ticks_of(process.pid)
    assert ticks is not None
    ledger = Ledger.create(tmp_path)
    ledger.process("store-0", process.pid, ticks)
    ledger.close()
    assert len(ledgers(tmp_path)) == 1
    process.kill()
    process.wait()

    assert not ledgers(tmp_path)[0].processes[process.pid].alive


def test_temporary_paths_and_proxies_are_struck_when_they_are_gone(ledger) -> None:
    ledger.temporary("/tmp/moonquake-x")
    ledger.proxy("http://127.0.0.1:8474", "mq-a")
    ledger.proxy("http://127.0.0.1:8474", "mq-b")
    ledger.temporary_gone("/tmp/moonquake-x")
    ledger.proxy_gone("http://127.0.0.1:8474", "mq-a")

    view = read_ledger(ledger.path)

    assert view.temporary == set()
    assert view.proxies == {("http://127.0.0.1:8474", "mq-b")}


def test_every_row_is_one_line_of_json(ledger) -> None:
    step(ledger, FaultState.ACTIVE, "two\nlines")

    for line in ledger.path.read_text().splitlines():
        assert json.loads(line)["row"] in ("run", "fault")


def test_a_closed_ledger_refuses_to_record(tmp_path) -> None:
    ledger = Ledger.create(tmp_path)
    ledger.close()
    ledger.close()

    with pytest.raises(ValueError, match="closed"):
        step(ledger, FaultState.ARMED)


def test_the_state_directory_is_ours_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    directory = state_directory()

    assert directory == tmp_path / f"moonquake-{os.getuid()}"
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_state_directory_that_is_a_link_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"moonquake-{os.getuid()}").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PermissionError, match="XDG_RUNTIME_DIR"):
        state_directory()

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from chaos.safety.identity import start_ticks_of, state_of, wait_until
from chaos.safety.ledger import ledgers
from chaos.safety.recover import recover, status

_HARNESS = """
import os, signal, subprocess, sys
from pathlib import Path
from chaos.safety.identity import start_ticks_of
from chaos.safety.ledger import FaultState, Ledger

ledger = Ledger.create(Path(sys.argv[1]), command="a run that is killed")
role = subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; time.sleep(60)"],
    stdout=subprocess.DEVNULL,
)
ledger.process("store-3", role.pid, start_ticks_of(role.pid))
ledger.fault("pause-1", FaultState.ARMED, kind="pause", target="store-3")
os.kill(role.pid, signal.SIGSTOP)
ledger.fault("pause-1", FaultState.ACTIVE, kind="pause", target="store-3")
folder = Path(sys.argv[1]) / "moonquake-work"
ledger.temporary(folder)
folder.mkdir()
(folder / "shard").write_text("x")
for extra in sys.argv[2:]:
    ledger.temporary(extra)
print(role.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_harness(directory, *extra: str) -> tuple[int, int]:
    """A harness that was SIGKILLed mid-fault: pid and start time of its paused role."""
    done = subprocess.run(
        [sys.executable, "-c", _HARNESS, str(directory), *extra],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    pid = int(done.stdout)
    ticks = start_ticks_of(pid)
    assert ticks is not None
    return pid, ticks


def gone(pid: int) -> bool:
    return wait_until(lambda: state_of(pid) in ("", "Z"), timeout_s=5.0)


def test_after_sigkill_the_paused_role_is_ended_and_the_files_are_gone(
    tmp_path,
) -> None:
    pid, _ = killed_harness(tmp_path)
    assert state_of(pid) == "T"

    actions = recover(tmp_path)

    assert gone(pid)
    assert all(action.done for action in actions)
    assert list(tmp_path.iterdir()) == []
    said = [action.what for action in actions]
    assert f"killed store-3 (pid {pid})" in said
    assert "fault pause(store-3) was active" in said


def test_recover_twice_finds_nothing_the_second_time(tmp_path) -> None:
    pid, _ = killed_harness(tmp_path)
    recover(tmp_path)

    assert recover(tmp_path) == []
    assert gone(pid)


def test_status_shows_the_dead_run_with_what_it_left(tmp_path) -> None:
    pid, _ = killed_harness(tmp_path)

    (run,) = status(tmp_path)

    assert not run.alive
    assert run.residue
    assert run.living == (f"store-3 pid {pid}",)
    assert run.faults == ("pause(store-3) active",)
    recover(tmp_path)


def test_a_living_run_is_left_alone(tmp_path) -> None:
    from chaos.safety.ledger import FaultState, Ledger

    ledger = Ledger.create(tmp_path)
    ledger.fault("kill-1", FaultState.ACTIVE, kind="kill", target="store-0")

    assert recover(tmp_path) == []
    assert [run.alive for run in status(tmp_path)] == [True]
    assert not status(tmp_path)[0].residue
    ledger.fault("kill-1", FaultState.REVERTED, kind="kill", target="store-0")
    ledger.close()


def test_a_process_that_took_the_pid_over_is_never_touched(tmp_path) -> None:
    pid, ticks = killed_harness(tmp_path)
    (view,) = ledgers(tmp_path)
    rows = [json.loads(line) for line in view.path.read_text().splitlines()]
    for row in rows:
        if row["row"] == "process":
            row["start_ticks"] = ticks + 1
    view.path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    recover(tmp_path)

    assert state_of(pid) == "T"
    os.kill(pid, 9)


def test_a_path_that_is_not_ours_is_refused_and_the_ledger_stays(tmp_path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    killed_harness(tmp_path, str(precious))

    actions = recover(tmp_path)

    assert precious.exists()
    assert [action.done for action in actions if "precious" in action.what] == [False]
    assert len(ledgers(tmp_path)) == 1


@pytest.fixture
def toxiproxy():
    """A server that knows one proxy and records what is deleted."""
    deleted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            deleted.append(self.path)
            self.send_response(204 if self.path.endswith("mq-known") else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", deleted
    server.shutdown()
    thread.join()
    server.server_close()


def record_proxies(directory, rows: list[tuple[str, str]]) -> None:
    code = (
        "import os, sys, json\nfrom pathlib import Path\n"
        "from chaos.safety.ledger import Ledger\n"
        "ledger = Ledger.create(Path(sys.argv[1]))\n"
        "for url, name in json.loads(sys.argv[2]):\n    ledger.proxy(url, name)\n"
        "os._exit(0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(directory), json.dumps(rows)], check=True
    )


def test_proxies_on_a_server_that_outlived_the_run_are_deleted(
    toxiproxy, tmp_path
) -> None:
    url, deleted = toxiproxy
    record_proxies(tmp_path, [(url, "mq-known"), (url, "mq-gone")])

    actions = recover(tmp_path)

    assert deleted == ["/proxies/mq-gone", "/proxies/mq-known"]
    assert [action.what for action in actions] == [f"deleted proxy mq-known on {url}"]
    assert ledgers(tmp_path) == []


def test_proxies_on_a_server_that_died_need_nothing(tmp_path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        record_proxies(tmp_path, [(url, "mq-x")])

        assert recover(tmp_path) == []
    assert ledgers(tmp_path) == []

"""K1: however `chaos run` ends, on real processes, nothing of it is left.

Each test plays a small scenario with a killed and a slow store in a process of its own,
ends it in one way while the faults are active, and compares with before: no process of
the run, no ledger, no lock (chaostoolkit-lib#189, #190; chaostoolkit#195, #258, #176).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

TEXT = """
name: two faults on a small cluster
cluster: {stores: 2, engines: 1, store_bytes: 16MiB}
load: {rate_per_s: 1, sessions: 4, max_input_tokens: 3072, after: 10s}
timeline:
  - together:
      - {fault: pause, target: store-1}
      - {fault: bandwidth, target: store-0, kb_per_s: 50}
    at: 8s
    for: LASTS
abort: [ABORT]
steady_state: {recovery_slo: 200s}
judge: [O1, O4, O11]
"""
QUIET = "{wrong_bytes: 0}"
LEFT_S = 15.0


@pytest.fixture
def chaos(tmp_path):
    """`chaos(ABORT, LASTS)` starts a run; its state and results are in tmp_path."""
    started = []
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path),
        "MOONQUAKE_HOST_STATE": str(tmp_path / "run"),
        "MOONQUAKE_TOXIPROXY": "",
        "TOXIPROXY_URL": "",
    }

    def start(abort=QUIET, lasts="20s", command="run", *more, text=TEXT):
        path = tmp_path / "s.yaml"
        path.write_text(text.replace("ABORT", abort).replace("LASTS", lasts))
        words = [str(path)] if command == "run" else []
        if command == "run":
            words += ["--time-scale", "0.1", "--results", str(tmp_path / "results")]
        log = (tmp_path / f"log-{command}").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "chaos", command, *words, *more],
            stdout=log,
            stderr=log,
            env=environment,
            cwd=Path(__file__).parents[3],
        )
        log.close()
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def active(tmp_path, process) -> None:
    """Waits until both faults are in place."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if told(tmp_path).count(" for 0.0 s") and "bandwidth" in told(tmp_path):
            return
        time.sleep(0.05)
    pytest.fail(f"no fault became active:\n{told(tmp_path)}")


def told(tmp_path) -> str:
    path = tmp_path / "log-run"
    return path.read_text() if path.exists() else ""


def left(tmp_path) -> list[str]:
    """Processes of this run that live, and files of its state that are there."""
    marker = f"XDG_RUNTIME_DIR={tmp_path}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if marker in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(command.decode())
            except OSError:
                continue
    state = tmp_path / f"moonquake-{os.getuid()}"
    return found + [str(path) for path in state.glob("*") if path.suffix != ".lock"]


def clean(tmp_path) -> list[str]:
    """What is left once everything had its time to end."""
    deadline = time.monotonic() + LEFT_S
    while (found := left(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def verdict(tmp_path):
    (path,) = (tmp_path / "results" / "scenarios").glob("2*/verdict.json")
    return json.loads(path.read_text())


def test_a_run_that_comes_to_its_end(chaos, tmp_path) -> None:
    assert chaos().wait(100) == 0, told(tmp_path)

    assert clean(tmp_path) == []
    assert verdict(tmp_path)["verdict"] == "PASS"


def test_a_deviation_that_aborts(chaos, tmp_path) -> None:
    """A limit that cannot hold trips at once: reverted first, and FAIL."""
    process = chaos("{hit_rate: 100%, samples: 1}", "100s")

    assert process.wait(100) == 1, told(tmp_path)
    assert clean(tmp_path) == []
    assert "hit_rate below" in json.dumps(verdict(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal(chaos, tmp_path, number) -> None:
    process = chaos(QUIET, "300s")
    active(tmp_path, process)

    process.send_signal(number)

    assert process.wait(60) == 128 + number, told(tmp_path)
    assert clean(tmp_path) == []


def test_a_halt(chaos, tmp_path) -> None:
    process = chaos(QUIET, "300s")
    active(tmp_path, process)

    assert chaos(QUIET, "1s", "halt", "--reason", "an outage").wait(30) == 0

    assert process.wait(60) == 3, told(tmp_path)
    assert chaos(QUIET, "1s", "run").wait(30) == 2, "refused while it is halted"
    assert chaos(QUIET, "1s", "resume").wait(30) == 0
    assert clean(tmp_path) == []
    assert "an outage" in json.dumps(verdict(tmp_path))


def test_a_kill_and_recover(chaos, tmp_path) -> None:
    """Nobody undoes anything: roles and proxies die, recover clears the rest."""
    process = chaos(QUIET, "300s")
    active(tmp_path, process)

    process.kill()
    process.wait(10)

    assert chaos(QUIET, "1s", "recover").wait(30) == 0
    assert clean(tmp_path) == []
    assert chaos(QUIET, "1s", "status").wait(30) == 0


def test_a_store_that_restarts_while_it_is_slow_comes_back_clean(
    chaos, tmp_path
) -> None:
    """K8: the target's identity changes under the fault (Chaos Mesh#1884)."""
    pause = "{fault: pause, target: store-1}"
    restart = "{fault: restart, target: store-0, delay: 5s}"
    process = chaos(text=TEXT.replace(pause, restart))

    assert process.wait(100) == 0, told(tmp_path)
    assert clean(tmp_path) == []

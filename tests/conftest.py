"""What all tests share: `freeze`, lean children, and skips that nobody allowed.

`pytest --allowed-skips=FILE`: a skip whose reason the file does not have fails.

For machines that can run everything: a tier that is skipped there because a package is
missing would otherwise look like a pass. One regular expression a line, # for comments.
With `=`: before this file is read, pytest would take a word by itself for a test path.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

OPTION = "--allowed-skips"


@pytest.fixture
def freeze():
    """SIGSTOP that has arrived: what is behind it finds the process standing still.

    The signal alone is not enough: until its main thread has had its turn on the
    processor, the other threads of a process go on serving.
    """

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        deadline_s = time.monotonic() + 10
        stat = Path(f"/proc/{pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline_s, f"process {pid} does not stop"
            time.sleep(0.002)

    return stop


@pytest.fixture(scope="session", autouse=True)
def _lean_children():
    """Pytest processes that tests start do without hypothesis, which they do not use.

    Its plugin imports all of it for the summary: two thirds of what a small run costs.
    (`pytester` clears this variable: what runs by it names the option itself.)
    """
    words = os.environ.get("PYTEST_ADDOPTS", "").split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", " ".join([*words, "-p", "no:hypothesispytest"]))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="FILE", help="fail on skips with other reasons")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(OPTION)
    if path and not Path(path).is_file():
        raise pytest.UsageError(f"{OPTION} {path}: there is no such file")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    found = unexpected(session.config)
    if found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for reason, name in unexpected(config).items():
        terminalreporter.write_line(f"SKIPPED and not allowed to: {name}: {reason}")


def unexpected(config: pytest.Config) -> dict[str, str]:
    """Reasons that nobody allowed, each with one test that it skipped."""
    path = config.getoption(OPTION)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not path or reporter is None:
        return {}
    allowed = patterns(Path(path).read_text(encoding="utf-8"))
    skips = {reason_of(each): each.nodeid for each in reporter.stats.get("skipped", [])}
    return {
        reason: name
        for reason, name in skips.items()
        if not any(pattern.search(reason) for pattern in allowed)
    }


def patterns(text: str) -> list[re.Pattern[str]]:
    lines = (line.strip() for line in text.splitlines())
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def reason_of(report: Any) -> str:
    told = report.longrepr
    return str(told[2] if isinstance(told, tuple) else told).removeprefix("Skipped: ")

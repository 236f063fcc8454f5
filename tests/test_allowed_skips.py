"""A machine that runs every tier fails when one of them is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
SUITE = """
import pytest

def test_one():
    pytest.skip("no netem in this kernel")

@pytest.mark.skip("takes an hour")
def test_two():
    pass

def test_three():
    pass
"""


@pytest.fixture
def suite(pytester):
    tests = pytester.mkdir("tests")
    text = (Path(__file__).parent / "conftest.py").read_text()
    (tests / "conftest.py").write_text(text)
    (tests / "test_suite.py").write_text(SUITE)
    lean = "addopts = -p no:hypothesispytest"
    pytester.makeini(f"[pytest]\ntestpaths = tests\n{lean}\n")
    return pytester


@pytest.mark.parametrize("more", [(), ("-n", "2")])
@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ("# slow ones\ntakes an hour\nno netem\n", pytest.ExitCode.OK),
        ("takes an hour\n", pytest.ExitCode.TESTS_FAILED),
        ("", pytest.ExitCode.TESTS_FAILED),
    ],
)
def test_a_skip_that_is_not_allowed_fails(suite, allowed, code, more) -> None:
    path = suite.path / "skips"
    path.write_text(allowed)

    ended = suite.runpytest_subprocess(f"--allowed-skips={path}", *more)

    assert ended.ret == code
    if "netem" not in allowed:
        ended.stdout.fnmatch_lines(["*not allowed to*test_one*no netem in this kernel"])


def test_a_file_that_is_not_there_is_one_line(suite) -> None:
    ended = suite.runpytest_subprocess("--allowed-skips=nowhere")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*--allowed-skips nowhere: there is no such file*"])


def test_without_the_option_any_skip_will_do(suite) -> None:
    assert suite.runpytest_subprocess().ret == pytest.ExitCode.OK

"""Processes of Mooncake and engines, and their variables."""

from __future__ import annotations

from checks.facts import Facts
from checks.parse.services import environment, parse_environ, services


def test_an_empty_value_is_not_no_value():
    assert parse_environ("MC_GID_INDEX=\0A=b=c\0junk\0") == {
        "MC_GID_INDEX": "",
        "A": "b=c",
    }


def test_a_process_is_known_by_any_of_its_files(bench):
    files = {
        "/proc/9/limits": "x",
        "/proc/10/cmdline": "/usr/bin/mooncake_master\0-v\0",
    }
    found = services(Facts(bench.doc(files=files)))

    assert [s.pid for s in found] == [9, 10]
    assert (found[0].env, found[0].label) == (None, "process (9)")
    assert found[1].label == "mooncake_master (10)"


def test_paths_that_are_no_processes_are_passed_over(bench):
    files = {"/proc/self/environ": "A=1", "/proc/cmdline": "quiet"}

    assert services(Facts(bench.doc(files=files))) == ()


def test_flags_are_read_in_both_spellings(bench):
    line = "python\0--disaggregation-ib-device\0mlx5_0\0--port=1\0"
    (found,) = services(Facts(bench.doc(files={"/proc/9/cmdline": line})))

    assert found.option("--disaggregation-ib-device") == "mlx5_0"
    assert found.option("--port") == "1"
    assert found.option("--none") is None


def test_the_lowest_pid_wins_where_processes_differ(bench):
    files = {**bench.env(9, A="1"), **bench.env(10, A="2", B="3")}

    assert environment(Facts(bench.doc(files=files))) == {"A": "1", "B": "3"}

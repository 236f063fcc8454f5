"""RDMA namespaces: the tool's word, the kernel's, and that of the next boot."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.garbled import Garbled
from checks.parse.rdma_system import netns_mode, parse_system, persistent_mode

PARAMETER = "/sys/module/ib_core/parameters/netns_mode"


def facts(stdout="", rc=0, stderr="", **files):
    found = {"cmds": {"rdma -j system": {"rc": rc, "stdout": stdout, "stderr": stderr}}}
    return Facts({**found, "files": {p: {"text": t} for p, t in files.items()}})


def test_objects_and_lists_of_one_are_read():
    assert parse_system({"netns": "shared", "copy-on-fork": True}) == "shared"
    assert parse_system([{"netns": "exclusive"}]) == "exclusive"


@pytest.mark.parametrize(
    "loaded", [{}, [], {"netns": "sha"}, {"netns": None}, "shared"]
)
def test_anything_else_is_refused(loaded):
    with pytest.raises(Garbled):
        parse_system(loaded)


@pytest.mark.parametrize("stdout", ['{"netns":"exclus', "netns exclus", "[", ""])
def test_a_cut_answer_is_not_replaced_by_the_parameter(stdout):
    with pytest.raises(Unread):
        netns_mode(facts(stdout, **{PARAMETER: "Y\n"}))


def test_a_tool_that_cannot_tell_is_replaced_by_the_parameter():
    old = facts(rc=1, stderr='Unknown object "system"', **{PARAMETER: "N\n"})

    assert netns_mode(old) == "exclusive"
    assert netns_mode(Facts({"files": {PARAMETER: {"text": "Y\n"}}})) == "shared"


def test_the_last_option_counts_and_comments_do_not():
    one = "/etc/modprobe.d/a.conf"
    text = (
        "# options ib_core netns_mode=1\n"
        "options ib_core netns_mode=1\n"
        "options ib_core send_queue_size=9 netns_mode=0\n"
    )

    assert persistent_mode(facts(**{one: text})) == "exclusive"
    assert persistent_mode(facts(**{one: "options mlx5_core debug=1\n"})) == ""

"""The kernel's log in every shape it is collected in."""

from __future__ import annotations

import json

import pytest

from checks.facts import Facts, Unread
from checks.parse.kernel_log import kernel_log

MESSAGE = "mlx5_core 0000:1a:00.0: Link down"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("dmesg -J", json.dumps({"dmesg": [{"pri": 6, "time": 12.5, "msg": MESSAGE}]})),
        ("dmesg", f"[   12.500000] {MESSAGE}\n"),
        (
            "journalctl -k -b -o json",
            json.dumps({"MESSAGE": MESSAGE, "_SOURCE_MONOTONIC_TIMESTAMP": "12500000"}),
        ),
        (
            "sudo -n /usr/bin/dmesg --json",
            json.dumps({"dmesg": [{"time": 12.5, "msg": MESSAGE}]}),
        ),
    ],
)
def test_the_same_message_is_read_from_every_source(bench, line, text):
    (found,) = kernel_log(Facts(bench.doc(cmds={line: text})))

    assert (found.t, found.text) == (12.5, MESSAGE)


def test_a_restricted_log_is_denied_not_empty(bench):
    entry = (1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")

    with pytest.raises(Unread) as refused:
        kernel_log(Facts(bench.doc(cmds={"dmesg -J": entry})))

    assert refused.value.kind == "denied"


def test_the_journal_is_asked_where_dmesg_is_denied(bench):
    cmds = {
        "dmesg -J": (
            1,
            "",
            "dmesg: read kernel buffer failed: Operation not permitted",
        ),
        "journalctl -k -b -o json": json.dumps({"MESSAGE": MESSAGE}),
    }

    assert kernel_log(Facts(bench.doc(cmds=cmds)))[0].text == MESSAGE


def test_json_that_is_cut_off_is_garbled(bench):
    text = json.dumps({"dmesg": [{"pri": 6, "time": 12.5, "msg": MESSAGE}]})[:-3]

    with pytest.raises(Unread) as refused:
        kernel_log(Facts(bench.doc(cmds={"dmesg -J": text})))

    assert refused.value.kind == "garbled"


def test_a_journal_that_shows_nothing_is_not_a_quiet_boot(bench):
    hint = "Hint: You are currently not seeing messages from other users.\n"
    line = "journalctl -k -b -o json -n 5000"

    with pytest.raises(Unread):
        kernel_log(Facts(bench.doc(cmds={line: (0, "", hint)})))
    with pytest.raises(Unread):
        kernel_log(Facts(bench.doc(cmds={"journalctl -k": "-- No entries --\n"})))
    chosen = "journalctl -k -b -p err -o json"
    assert kernel_log(Facts(bench.doc(cmds={chosen: ""}))) == ()

"""A collector's output that is not whole is told apart by how it is broken."""

from __future__ import annotations

import json

import pytest

from checks import collector
from checks.framing import NoDocument, decode

DOCUMENT = {"schema": "preflight.facts/1", "cmds": {"ip": {"stdout": "grün"}}}


def kind(raw):
    with pytest.raises(NoDocument) as caught:
        decode(raw)
    return caught.value.kind


def test_what_the_collector_frames_is_read_back():
    assert decode(collector.framed(DOCUMENT).encode()) == DOCUMENT


def test_a_large_document_is_compressed_and_read_back():
    large = {**DOCUMENT, "files": {"/x": {"text": "y" * (2 << 20)}}}
    raw = collector.framed(large)

    assert len(raw) < 1 << 16
    assert decode(raw.encode()) == large


def test_a_greeting_of_the_login_shell_is_passed_over():
    raw = "Welcome!\n\n" + collector.framed(DOCUMENT)

    assert decode(raw.encode()) == DOCUMENT


def test_output_cut_at_any_byte_is_never_a_document():
    raw = collector.framed(DOCUMENT).encode()
    needed = raw.rindex(b"###") + 3

    kinds = {kind(raw[:at]) for at in range(needed)}
    assert kinds <= {"empty", "truncated", "garbage"}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"schema": "pre', "truncated"),
        (b"###GZIP H4sIA", "truncated"),
        (b"bash: python3: command not found\n", "garbage"),
        (b"\xff\xfe\x00", "garbage"),
    ],
)
def test_each_kind_of_breakage_has_its_name(raw, expected):
    assert kind(raw) == expected


def test_a_changed_byte_is_seen():
    raw = collector.framed(DOCUMENT).replace("facts/1", "facts/2").encode()

    assert kind(raw) == "garbage"


def test_a_document_is_one_line_of_json_and_its_sum():
    line, end, rest = collector.framed(DOCUMENT).split("\n")

    assert json.loads(line) == DOCUMENT
    assert end.startswith("###END ")
    assert rest == ""

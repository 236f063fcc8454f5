"""Loading keeps what nodes say, and keeps what they say alike once."""

from __future__ import annotations

import json

from checks.documents import load_documents
from checks.facts import SCHEMA


def document(name, ms):
    said = {"rc": 0, "stdout": "the same words\n", "stderr": "", "ms": ms}
    return {
        "schema": SCHEMA,
        "collector": {},
        "node": {"hostname": name},
        "cmds": {"uname -r": said, "sampled": [said, said]},
        "files": {"/proc/cmdline": {"text": "quiet\n"}, "/sys": {"entries": ["a"]}},
    }


def test_documents_are_what_was_written_and_equal_parts_are_kept_once(tmp_path):
    written = [document("one", 3), document("two", 4)]
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(written), encoding="utf-8")

    loaded = load_documents([path])

    assert loaded == written
    one, two = loaded
    assert one["cmds"]["uname -r"]["stdout"] is two["cmds"]["uname -r"]["stdout"]
    assert one["files"]["/proc/cmdline"] is two["files"]["/proc/cmdline"]


def test_a_document_without_its_parts_is_left_as_it_is(tmp_path):
    path = tmp_path / "odd.json"
    odd = {"schema": SCHEMA, "cmds": {"uname -r": "?", "id": {"stdout": 3}}}
    path.write_text(json.dumps(odd), encoding="utf-8")

    assert load_documents([path]) == [odd]

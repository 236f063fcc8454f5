"""Cells of RFC 7047, and columns that were collected in parts."""

from __future__ import annotations

import json

import pytest

from checks.facts import Facts, Unread
from checks.parse.ovs_db import parse_cell, parse_table, rows

LIST = "ovs-vsctl --timeout=5 --format=json"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (9000, 9000),
        ("up", "up"),
        (["set", []], ()),
        (["set", [1, 2]], (1, 2)),
        (["map", [["hw-offload", "true"]]], {"hw-offload": "true"}),
        (["uuid", "d0ab"], "d0ab"),
        (["set", [["uuid", "a"], ["uuid", "b"]]], ("a", "b")),
    ],
)
def test_every_kind_of_cell_is_told_apart(cell, value):
    assert parse_cell(cell) == value


@pytest.mark.parametrize(
    "cell", [["set"], ["nonsense", []], ["map", [["a"]]], None, {"a": 1}, ["set", 3]]
)
def test_what_is_no_cell_is_garbled(cell):
    with pytest.raises(Unread):
        parse_cell(cell)


def test_the_order_of_the_headings_is_that_of_the_columns():
    (row,) = parse_table({"headings": ["mtu", "name"], "data": [[9000, "p0"]]}, "I")

    assert (row.name, row.number("mtu")) == ("p0", 9000)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"data": []},
        {"headings": ["a"], "data": [[1, 2]]},
        {"headings": ["a"], "data": ["x"]},
    ],
)
def test_a_listing_that_is_none_is_garbled(document):
    with pytest.raises(Unread):
        parse_table(document, "Interface")


def test_subsets_of_columns_are_put_together_by_name():
    one = json.dumps({"headings": ["name", "mtu"], "data": [["a", 1500], ["b", 9000]]})
    two = json.dumps({"headings": ["error", "name"], "data": [["x", "b"], ["", "a"]]})
    document = {
        "schema": "preflight.facts/1",
        "cmds": {
            f"{LIST} --columns=name,mtu list Interface": {"rc": 0, "stdout": one},
            f"{LIST} --columns=error,name list Interface": {"rc": 0, "stdout": two},
        },
    }

    found = {row.name: row for row in rows(Facts(document), "Interface")}

    assert found["b"].number("mtu") == 9000
    assert found["b"].word("error") == "x"


def test_a_column_that_was_not_collected_refuses_to_be_read():
    (row,) = parse_table({"headings": ["name"], "data": [["a"]]}, "Interface")

    with pytest.raises(Unread) as refused:
        row.word("error")

    assert refused.value.kind == "missing"


def test_a_set_of_one_is_bare_and_a_set_of_none_is_nothing():
    table = {"headings": ["tag", "ports"], "data": [[["set", []], ["uuid", "p"]]]}
    (row,) = parse_table(table, "Bridge")

    assert row.one("tag") is None
    assert row.items("ports") == ("p",)
    assert row.items("tag") == ()

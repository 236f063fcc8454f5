"""Tables of the Open vSwitch database: `ovs-vsctl --format=json list TABLE`.

One object with `headings` and `data`; the order of the headings is that of `--columns`.
Cells are those of RFC 7047, 5.1: a scalar is bare, a set of exactly one element is bare
too, an empty set is `["set",[]]`, a map is `["map",[[k,v],...]]`, a uuid is
`["uuid","..."]` and no set of two strings. Booleans in maps are strings.

Reading works on a stale database: it tells what vswitchd wrote last, also when vswitchd
has been dead since. A server that is down is rc 1, `database connection failed`.

Tables may be collected whole or in subsets of columns; subsets are put together by
`_uuid`, else by `name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

Scalar = str | int | float | bool
_SOURCE = "ovs-vsctl list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record; a column that was not collected refuses to be read."""

    table: str
    cells: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name, or the beginning of its uuid, or "" for the one root record."""
        named = self.cells.get("name")
        return named if isinstance(named, str) else str(self.cells.get("_uuid", ""))[:8]

    def one(self, column: str) -> Scalar | None:
        """A scalar; None for an empty set."""
        cell = self._cell(column)
        if isinstance(cell, tuple):
            if not cell:
                return None
            raise Garbled(f"{self.table}.{column}", "a set where one value is expected")
        if isinstance(cell, Mapping):
            raise Garbled(f"{self.table}.{column}", "a map where a value is expected")
        return cell  # type: ignore[no-any-return]

    def word(self, column: str) -> str:
        """A scalar as text; "" for an empty set."""
        value = self.one(column)
        return "" if value is None else str(value)

    def number(self, column: str) -> int | None:
        """A whole number; None for an empty set."""
        value = self.one(column)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise Garbled(f"{self.table}.{column}", f"no number: {value!r}")
        return value

    def items(self, column: str) -> tuple[Scalar, ...]:
        """The elements of a set, also of one with a single element."""
        cell = self._cell(column)
        if isinstance(cell, Mapping):
            raise Garbled(f"{self.table}.{column}", "a map where a set is expected")
        return cell if isinstance(cell, tuple) else (cell,)

    def map(self, column: str) -> Mapping[str, Scalar]:
        """A map; an empty set is an empty map."""
        cell = self._cell(column)
        if isinstance(cell, Mapping):
            return cell
        if cell == ():
            return {}
        raise Garbled(f"{self.table}.{column}", "no map")

    def knows(self, column: str) -> bool:
        """Whether the column was collected."""
        return column in self.cells

    def _cell(self, column: str) -> Any:
        if column not in self.cells:
            raise Unread("missing", f"{self.table}.{column}", "not collected")
        return self.cells[column]


def parse_table(document: Any, table: str) -> tuple[Row, ...]:
    """The records of one listing."""
    if not isinstance(document, Mapping):
        raise Garbled(f"{_SOURCE} {table}", "no object")
    headings, data = document.get("headings"), document.get("data")
    if not isinstance(headings, list) or not isinstance(data, list):
        raise Garbled(f"{_SOURCE} {table}", "no headings and data")
    found = []
    for record in data:
        if not isinstance(record, list) or len(record) != len(headings):
            raise Garbled(f"{_SOURCE} {table}", "a record does not fit the headings")
        cells = {
            str(heading): parse_cell(cell)
            for heading, cell in zip(headings, record, strict=True)
        }
        found.append(Row(table=table, cells=cells))
    return tuple(found)


def parse_cell(cell: Any) -> Any:
    """One cell: a scalar, a tuple for a set, a dict for a map, text for a uuid."""
    if not isinstance(cell, list):
        if isinstance(cell, str | int | float | bool):
            return cell
        raise Garbled(_SOURCE, f"no cell: {cell!r}"[:80])
    if len(cell) != 2:
        raise Garbled(_SOURCE, "a cell that is no pair")
    kind, inside = cell
    if kind in {"uuid", "named-uuid"}:
        return str(inside)
    if kind == "set" and isinstance(inside, list):
        return tuple(parse_cell(each) for each in inside)
    if kind == "map" and isinstance(inside, list):
        return _map(inside)
    raise Garbled(_SOURCE, f"a cell of unknown kind {kind!r}"[:80])


def _map(pairs: list[Any]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Garbled(_SOURCE, "a map with something that is no pair")
        found[str(parse_cell(pair[0]))] = parse_cell(pair[1])
    return found


@derived
def rows(facts: Facts, table: str) -> tuple[Row, ...]:
    """Every record of a table, as far as its columns were collected."""
    parsed = []
    refused: list[Unread] = []
    for result in facts.find("ovs-vsctl", "list", table):
        try:
            parsed.append(parse_table(result.json(), table))
        except Unread as error:
            refused.append(error)
    if parsed:
        return _merged(sorted(parsed, key=_columns, reverse=True))
    if refused:
        raise refused[0]
    raise Unread("missing", f"{_SOURCE} {table}", "not collected")


@derived
def row_samples(facts: Facts, table: str) -> tuple[tuple[float | None, Row], ...]:
    """Every sample of a table with one record, as (t, record), oldest first."""
    return tuple(
        (result.t, _only(parse_table(result.json(), table)))
        for result in facts.samples("ovs-vsctl", "list", table)
    )


def root(facts: Facts) -> Row:
    """The one record of the table Open_vSwitch."""
    return _only(rows(facts, "Open_vSwitch"))


def answers(facts: Facts) -> tuple[Result, ...]:
    """Every query of the database, whatever came of it."""
    queries = [
        result
        for words in ("list", "find", "get", "show", "list-br")
        for result in facts.find("ovs-vsctl", words)
    ]
    return tuple(queries)


def _only(found: tuple[Row, ...]) -> Row:
    if len(found) != 1:
        raise Garbled(f"{_SOURCE} Open_vSwitch", f"{len(found)} records, not one")
    return found[0]


def _columns(found: tuple[Row, ...]) -> int:
    return len(found[0].cells) if found else 0


def _merged(tables: list[tuple[Row, ...]]) -> tuple[Row, ...]:
    """Listings of one table put together; the one with most columns leads."""
    if len(tables) == 1:
        return tables[0]
    merged = [dict(row.cells) for row in tables[0]]
    name = tables[0][0].table if tables[0] else ""
    for other in tables[1:]:
        for row in other:
            same = _same(merged, row, alone=len(merged) == len(other) == 1)
            if same is None:
                merged.append(dict(row.cells))
            else:
                for column, cell in row.cells.items():
                    same.setdefault(column, cell)
            name = name or row.table
    return tuple(Row(table=name, cells=cells) for cells in merged)


def _same(
    merged: list[dict[str, Any]], row: Row, *, alone: bool
) -> dict[str, Any] | None:
    for column in ("_uuid", "name"):
        wanted = row.cells.get(column)
        if wanted is None:
            continue
        for cells in merged:
            if cells.get(column) == wanted:
                return cells
    return merged[0] if alone else None

"""Reads Ansible's INI form: `[group]`, `[group:children]`, `[group:vars]`, and hosts
with `key=value` behind them."""

from __future__ import annotations

import ast
import json
import re
import shlex
from typing import NoReturn

from inventory.errors import InventoryError
from inventory.hostrange import expand
from inventory.raw import Lined, RawInventory

MAX_LINE = 1 << 16
_SECTION = re.compile(r"\[(?P<name>[^\[\]:]+)(?::(?P<kind>[^\[\]:]+))?\]\s*(?:[#;].*)?")
_PORT = re.compile(r"(?P<name>.+):(?P<port>[0-9]{1,5})")
_IN_BRACKETS = re.compile(r"\[[^\]]*\]")


def read_ini(text: str, file: str) -> RawInventory:
    """The groups of an INI text.

    Raises:
        InventoryError: a line is none of those forms.
    """
    reader = _Reader(file)
    for number, line in enumerate(text.splitlines(), 1):
        reader.line = number
        if len(line) > MAX_LINE:
            reader.fail(f"the line is longer than {MAX_LINE} characters", "split it")
        stripped = line.strip()
        if stripped and stripped[0] not in "#;":
            reader.take(stripped)
    reader.check_groups()
    return reader.raw


class _Reader:
    """The section we are in, and what was read so far."""

    def __init__(self, file: str) -> None:
        self.raw = RawInventory(file=file)
        self.line = 0
        self._group = "ungrouped"
        self._kind = "hosts"
        self._spoken_of: dict[str, int] = {}
        self._declared = {"all", "ungrouped"}

    def take(self, line: str) -> None:
        if line.startswith("["):
            self._open(line)
        elif self._kind == "vars":
            self._take_variable(line)
        elif self._kind == "children":
            self._take_child(line)
        else:
            self._take_host(line)

    def check_groups(self) -> None:
        """Groups that were only spoken of are most likely misspelt."""
        for name, line in self._spoken_of.items():
            if name not in self._declared:
                self.line = line
                self.fail(f"there is no group {name}", f"write [{name}], or correct it")

    def fail(self, problem: str, fix: str, **place: str) -> NoReturn:
        raise InventoryError(
            problem, fix=fix, file=self.raw.file, line=self.line, **place
        )

    def _open(self, line: str) -> None:
        found = _SECTION.fullmatch(line)
        kind = (found["kind"] or "hosts") if found else ""
        if found is None or kind not in ("hosts", "children", "vars"):
            self.fail(
                f"{line[:80]} is not a section",
                "write [group], [group:children] or [group:vars]",
            )
        self._group, self._kind = found["name"].strip(), kind
        self.raw.group(self._group, self.line)
        if kind == "vars":
            self._spoken_of.setdefault(self._group, self.line)
        else:
            self._declared.add(self._group)

    def _take_child(self, line: str) -> None:
        name = line.split("#")[0].strip()
        self.raw.group(self._group, self.line).children[name] = self.line
        self.raw.group(name, self.line)
        self._spoken_of.setdefault(name, self.line)

    def _take_variable(self, line: str) -> None:
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            self.fail("the line is not key = value", "write one variable a line")
        variables = self.raw.group(self._group, self.line).variables
        if key.strip() in variables:
            self.fail("the variable stands twice", "say it once", field=key.strip())
        variables.put(key.strip(), _value(value.strip()), self.line)

    def _take_host(self, line: str) -> None:
        try:
            pattern, *words = shlex.split(line, comments=True)
        except ValueError as error:
            self.fail(f"the line cannot be split ({error})", "close the quote")
        pattern, variables = self._variables(pattern, words)
        try:
            names = expand(pattern)
        except ValueError as error:
            self.fail(str(error), "write a range like node[01:16]", host=pattern)
        for name in names:
            self.raw.add_host(self._group, name, self.line, variables)

    def _variables(self, pattern: str, words: list[str]) -> tuple[str, Lined]:
        """`name:2222 key=value` as the name and its variables."""
        variables = Lined(self.line)
        outside = _IN_BRACKETS.sub("", pattern)
        found = _PORT.fullmatch(pattern)
        if found and outside.count(":") == 1:
            pattern = found["name"]
            variables.put("ansible_port", int(found["port"]), self.line)
        for word in words:
            key, equals, value = word.partition("=")
            if not equals or not key:
                self.fail(
                    f"{word[:40]} is not key=value",
                    "write key=value, with quotes around blanks",
                    host=pattern,
                )
            if key in variables:
                self.fail("the variable stands twice", "say it once", field=key)
            variables.put(key, _value(value), self.line)
        return pattern, variables


def _value(text: str) -> object:
    """A Python or JSON literal where it is one, else the text itself."""
    for read in (ast.literal_eval, json.loads):
        try:
            return read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue  # then it is not a literal of this kind
    return text

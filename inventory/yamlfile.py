"""Reads Ansible's YAML form: groups at the top, each with hosts, children, vars.

PyYAML's safe loader with what an inventory needs more: lines, an error for a key that
stands twice, no sexagesimal numbers (a MAC address would become an integer), bounds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from inventory.errors import InventoryError
from inventory.hostrange import expand
from inventory.raw import Lined, LinedList, RawInventory, Vault

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NODES = 500_000
"""Values of a file, counting what an alias stands for each time."""
MAX_DEPTH = 48
_PARTS = ("hosts", "children", "vars")


def read_yaml(text: str, file: str) -> RawInventory:
    """The groups of a YAML text.

    Raises:
        InventoryError: it is not YAML, or not of that shape; with the line.
    """
    try:
        content = _content_of(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _not_yaml(error, file) from error
    raw = RawInventory(file=file)
    for name, body, line in _entries(content, "the file", file, 1):
        _read_group(raw, name, body, line)
    return raw


def _content_of(text: str) -> object:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        _bound(node)
        return loader.construct_document(node) if node is not None else None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Safe; mappings and lists know their lines."""


_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?$")
_KEPT = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, shape) for tag, shape in resolvers if tag in _KEPT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Iterator[Lined]:
    found = Lined(_line(node))
    yield found  # filled below, as PyYAML wants it for values that contain themselves
    _no_key_twice(node)
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, bool) or not isinstance(key, (str, int, float)):
            raise _Marked("a key must be a name", key_node)
        found.put(str(key), loader.construct_object(value_node), _line(key_node))


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> Iterator[LinedList]:
    found = LinedList()
    yield found
    for item in node.value:
        found.append(loader.construct_object(item))
        found.lines.append(_line(item))


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _vault(loader: _Loader, node: yaml.Node) -> Vault:
    del loader, node
    return Vault()


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:seq", _sequence)
_Loader.add_constructor("!unsafe", _scalar)
_Loader.add_constructor("!vault", _vault)
_Loader.add_constructor("!vault-encrypted", _vault)


class _Marked(yaml.MarkedYAMLError):
    """Our own complaint, in PyYAML's form."""

    def __init__(self, problem: str, node: yaml.Node) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)


def _no_key_twice(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        name = (key.tag, str(key.value))
        if name in seen and key.tag != "tag:yaml.org,2002:merge":
            raise _Marked(f"the key {key.value} stands twice in one mapping", key)
        seen.add(name)


def _bound(root: yaml.Node | None) -> None:
    """Ends what aliases would make endless or huge, before anything is built."""
    left = MAX_NODES
    open_nodes = [(root, 0)]
    while open_nodes:
        node, depth = open_nodes.pop()
        left -= 1
        if node is not None and (left < 0 or depth > MAX_DEPTH):
            raise _Marked("the file is nested too deep or stands for too much", node)
        if isinstance(node, yaml.MappingNode):
            open_nodes += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            open_nodes += [(part, depth + 1) for part in node.value]


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _not_yaml(error: Exception, file: str) -> InventoryError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error) or type(error).__name__
    return InventoryError(
        f"it is not the YAML of an inventory: {' '.join(problem.split())}",
        fix="correct the line; docs/inventory.md shows the form",
        file=file,
        line=mark.line + 1 if mark is not None else 0,
    )


def _read_group(raw: RawInventory, name: str, body: object, line: int) -> None:
    group = raw.group(name, line)
    for part, content, at in _entries(body, f"group {name}", raw.file, line):
        if part not in _PARTS:
            raise InventoryError(
                f"group {name} has an unknown part",
                fix="known are hosts, children and vars; variables go below vars",
                file=raw.file,
                line=at,
                field=part,
            )
        where = f"{part} of group {name}"
        for key, value, place in _entries(content, where, raw.file, at):
            if part == "vars":
                group.variables.put(key, value, place)
            elif part == "children":
                group.children[key] = place
                _read_group(raw, key, value, place)
            else:
                _read_hosts(raw, name, key, value, place)


def _read_hosts(
    raw: RawInventory, group: str, pattern: str, value: object, line: int
) -> None:
    variables = Lined(line)
    for key, content, at in _entries(value, f"host {pattern}", raw.file, line):
        variables.put(key, content, at)
    try:
        names = expand(pattern)
    except ValueError as error:
        raise InventoryError(
            str(error),
            fix="write a range like node[01:16]",
            file=raw.file,
            line=line,
            host=pattern,
        ) from error
    for name in names:
        raw.add_host(group, name, line, variables)


def _entries(
    content: object, what: str, file: str, line: int
) -> Iterator[tuple[str, Any, int]]:
    """Key, value and line of a mapping; nothing at all is an empty one."""
    if content is None:
        return
    if not isinstance(content, Lined):
        raise InventoryError(
            f"{what} is not a mapping",
            fix="write every name as a key: 'node-1:'",
            file=file,
            line=line,
            field=what,
            value=content,
        )
    for key in content:
        yield key, content[key], content.lines[key]

"""What an inventory file says, before anybody asks whether it makes sense.

Both formats are read into this: groups with hosts, children and variables. Every
mapping knows the lines of its keys, so that a later complaint can name the line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inventory.errors import InventoryError

MAX_NESTED = 32
"""Groups inside groups."""


class Lined(dict[str, Any]):
    """A mapping that knows where its keys stand, and how they were spelled there."""

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}
        self.written: dict[str, str] = {}

    def put(self, key: str, value: object, line: int, written: str = "") -> None:
        self[key] = value
        self.lines[key] = line
        self.written[key] = written or key

    def take(self, other: Lined, key: str) -> None:
        """The other's value of a key, with its line and its spelling."""
        self.put(key, other[key], other.lines[key], other.written[key])


class LinedList(list[Any]):
    """A list that knows where its items stand."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []


class Vault:
    """A value that Ansible Vault encrypted: we have no key and want none."""

    def __repr__(self) -> str:
        return "an encrypted value"


@dataclass(slots=True, kw_only=True)
class RawGroup:
    """One group: members, groups below it, and what holds for all of them."""

    name: str
    line: int = 0
    hosts: dict[str, int] = field(default_factory=dict)
    children: dict[str, int] = field(default_factory=dict)
    variables: Lined = field(default_factory=Lined)


@dataclass(slots=True, kw_only=True)
class RawInventory:
    """Groups, and the variables that a host was given by name, wherever that was."""

    file: str
    groups: dict[str, RawGroup] = field(default_factory=dict)
    hosts: dict[str, Lined] = field(default_factory=dict)

    def group(self, name: str, line: int) -> RawGroup:
        """The group of this name; created where it is first spoken of."""
        return self.groups.setdefault(name, RawGroup(name=name, line=line))

    def add_host(self, group: str, name: str, line: int, variables: Lined) -> None:
        """A host in a group; what it was told elsewhere must not be told otherwise."""
        self.group(group, line).hosts.setdefault(name, line)
        known = self.hosts.setdefault(name, Lined(line))
        for key in variables:
            if key in known and known[key] != variables[key]:
                raise InventoryError(
                    f"line {known.lines[key]} gives it another value",
                    fix="say it once",
                    file=self.file,
                    line=variables.lines[key],
                    host=name,
                    field=key,
                    value=variables[key],
                )
            known.take(variables, key)

    def depths(self) -> dict[str, int]:
        """How deep every group stands below `all`; the deeper one wins.

        Raises:
            InventoryError: a group contains itself, or they nest too deep.
        """
        depths = dict.fromkeys(self.groups, 1) | {"all": 0}
        for _ in range(MAX_NESTED):
            moved = False
            for parent in self.groups.values():
                for child in parent.children:
                    if depths[child] <= depths[parent.name]:
                        depths[child] = depths[parent.name] + 1
                        moved = True
            if not moved:
                return depths
        deepest = max(self.groups.values(), key=lambda group: depths[group.name])
        raise InventoryError(
            "the group contains itself, or groups nest too deep",
            fix=f"look at its parents; {MAX_NESTED} levels are allowed",
            file=self.file,
            line=deepest.line,
            field=deepest.name,
        )

    def members(self, depths: dict[str, int]) -> dict[str, dict[str, None]]:
        """All hosts of every group, those of groups below it included."""
        found: dict[str, dict[str, None]] = {}
        for name in sorted(depths, key=lambda name: -depths[name]):
            group = self.groups.get(name) or RawGroup(name=name)
            found[name] = dict.fromkeys(group.hosts)
            for child in group.children:
                found[name] |= found[child]
        return found

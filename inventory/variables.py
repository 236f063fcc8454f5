"""Which variables of an Ansible inventory are ours, and how groups and hosts combine.

A field may be written under its own name, with `moonquake_` before it (where Ansible
itself reads the file too), or as Ansible's connection variable. Nearer layers win as
in Ansible, with one comfort: `control`, `management`, `processes` and `expect` are
merged key by key and `rails` by name, so that a group says the devices and a host its
addresses.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from inventory.errors import InventoryError
from inventory.raw import Lined, LinedList, Vault
from inventory.schema import HostEntry, Inventory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = "moonquake_"
CONNECTION = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_ssh_private_key_file": "key_file",
    "ansible_private_key_file": "key_file",
    "ansible_become": "sudo",
    "ansible_python_interpreter": "python",
}
"""Ansible's names of our fields."""

HOST_FIELDS = frozenset(HostEntry.model_fields) - {"name", "groups"}
INVENTORY_FIELDS = frozenset(Inventory.model_fields) - {"file", "hosts", "groups"}
_ONLY_ALL = (INVENTORY_FIELDS - HOST_FIELDS) | {"ignore_vars"}
_OURS = {name: name for name in HOST_FIELDS | _ONLY_ALL} | {"role": "roles"}
_PATHS = frozenset({"key_file", "known_hosts", "lever"})
_BY_KEY = frozenset({"control", "management", "processes", "expect"})

_PASSWORDS = frozenset(
    {
        "ansible_password", "ansible_ssh_pass", "ansible_ssh_password",
        "ansible_become_password", "ansible_become_pass", "ansible_sudo_pass",
        "ansible_ssh_private_key_passphrase", "ansible_ssh_private_key",
    }
)  # fmt: skip
_SETTLED = {
    "ansible_connection": ("ssh", "paramiko", "paramiko_ssh", "smart"),
    "ansible_become_method": ("sudo",),
    "ansible_become_user": ("root",),
}
"""Variables of which we can do only some values."""

_DETOURS = ("proxycommand", "proxyjump", "-j ")
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
_ALIKE = 0.84
"""How alike a name must be to one of ours to be taken for a misspelling of it."""


class Variables:
    """Reads the variables of one file into layers of our fields."""

    def __init__(self, file: str, folder: Path, everybody: Lined) -> None:
        self._file = file
        self._folder = folder
        ignored = everybody.get("ignore_vars", everybody.get(f"{PREFIX}ignore_vars"))
        self._ignored = frozenset(ignored if isinstance(ignored, list) else ())
        self._everybody = self._fields(everybody, "")

    def of_all_hosts(self) -> Lined:
        """What `all` says of every host."""
        return _only(self._everybody, HOST_FIELDS)

    def of_inventory(self) -> Lined:
        """What `all` says of the inventory itself."""
        return _only(self._everybody, INVENTORY_FIELDS)

    def of_hosts(self, variables: Lined, *, whose: str, host: str = "") -> Lined:
        """What a group or a host says, by our names.

        Raises:
            InventoryError: a variable cannot be honoured, or belongs to `all`.
        """
        fields = self._fields(variables, host)
        for name in fields:
            if name in _ONLY_ALL:
                self._refuse(
                    fields,
                    name,
                    f"it holds for the whole inventory, and stands in {whose}",
                    "move it to the vars of all",
                    host,
                )
        return fields

    def _fields(self, variables: Lined, host: str) -> Lined:
        fields = Lined(variables.line)
        for name in variables:
            if name in self._ignored:
                continue
            field = self._field_of(variables, name, host)
            if not field:
                continue
            if field in fields:
                self._refuse(
                    variables,
                    name,
                    f"{fields.written[field]} says the same",
                    "keep one; list another program's variable in ignore_vars",
                    host,
                )
            self._evaluates_nothing(variables, name, host)
            value = self._prepared(field, variables[name])
            if value is not None or name not in CONNECTION:
                fields.put(field, value, variables.lines[name], name)
        return fields

    def _field_of(self, variables: Lined, name: str, host: str) -> str:
        """Our name of a variable; empty if it is none of ours."""
        if name.startswith("ansible_"):
            self._can_be_done(variables, name, host)
            return CONNECTION.get(name, "")
        plain = name.removeprefix(PREFIX)
        if plain in _OURS:
            return _OURS[plain]
        near = _misspelt(plain)
        if near or plain != name:
            fix = f"write {near[0]}" if near else "docs/inventory.md has every field"
            self._refuse(
                variables,
                name,
                "there is no such field",
                f"{fix}, or list the name in ignore_vars of all",
                host,
            )
        return ""

    def _can_be_done(self, variables: Lined, name: str, host: str) -> None:
        value = variables[name]
        if name in _PASSWORDS:
            self._refuse(
                variables,
                name,
                "passwords and keys do not belong into an inventory",
                "use a key file or an agent, and passwordless sudo",
                host,
                show=False,
            )
        if name in _SETTLED and value not in _SETTLED[name]:
            choice = " or ".join(_SETTLED[name])
            self._refuse(variables, name, "we cannot do that", f"use {choice}", host)
        if name in _ARGUMENTS and any(d in str(value).lower() for d in _DETOURS):
            self._refuse(
                variables,
                name,
                "hosts are reached directly, not through others",
                "run us where the host can be reached",
                host,
            )

    def _evaluates_nothing(self, variables: Lined, name: str, host: str) -> None:
        for value in _leaves(variables[name]):
            if isinstance(value, Vault):
                self._refuse(
                    variables,
                    name,
                    "it is encrypted, and we open no vaults",
                    "write what is no secret in plain",
                    host,
                )
            if isinstance(value, str) and ("{{" in value or "{%" in value):
                self._refuse(
                    variables,
                    name,
                    "templates are not evaluated",
                    "write the value itself",
                    host,
                )

    def _prepared(self, field: str, value: object) -> object:
        """Paths made absolute, rails as a list, an interpreter that is to be found."""
        if field in _PATHS and isinstance(value, str) and value:
            return self._folder / Path(value).expanduser()
        if field == "rails" and isinstance(value, Lined):
            return _listed(value)
        if field == "python" and isinstance(value, str) and value.startswith("auto"):
            return None
        return value

    def _refuse(
        self,
        variables: Lined,
        name: str,
        problem: str,
        fix: str,
        host: str,
        *,
        show: bool = True,
    ) -> NoReturn:
        raise InventoryError(
            problem,
            fix=fix,
            file=self._file,
            line=variables.lines[name],
            host=host,
            field=variables.written[name],
            value=variables[name] if show else None,
        )


def _misspelt(name: str) -> list[str]:
    """Our name that this one is most likely meant to be, if any."""
    swapped = [ours for ours in _OURS if sorted(ours) == sorted(name)]
    return swapped or difflib.get_close_matches(name, _OURS, n=1, cutoff=_ALIKE)


def merged(layers: Iterable[Lined], *, line: int) -> Lined:
    """The layers as one; later ones win."""
    result = Lined(line)
    for layer in layers:
        for name in layer:
            before = result.get(name)
            result.take(layer, name)
            if name in _BY_KEY and _are(dict, before, layer[name]):
                result[name] = _both(before, layer[name])
            elif name == "rails" and layer[name] and _are(list, before, layer[name]):
                result[name] = _rails(before, layer[name])
    return result


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)


def _both(before: object, after: object) -> Lined:
    result = Lined(after.line if isinstance(after, Lined) else 0)
    for part in (before, after):
        if isinstance(part, Lined):
            for key in part:
                result.take(part, key)
        elif isinstance(part, dict):
            for key, value in part.items():
                result.put(str(key), value, result.line)
    return result


def _rails(before: object, after: object) -> LinedList:
    """Rails of both, those of one name merged; a rail without a name stays apart."""
    result = LinedList()
    places: dict[object, int] = {}
    for part in (before, after):
        for rail in part if isinstance(part, list) else ():
            name = rail.get("name") if isinstance(rail, dict) else None
            if name is not None and name in places:
                result[places[name]] = _both(result[places[name]], rail)
                continue
            places[name] = len(result)
            result.append(rail)
    return result


def _listed(rails: Lined) -> LinedList:
    """`rail0: {device: eth1}` is `- {name: rail0, device: eth1}`."""
    result = LinedList()
    for name in rails:
        rail = Lined(rails.lines[name])
        rail.put("name", name, rails.lines[name])
        content = rails[name]
        for key in content if isinstance(content, Lined) else ():
            rail.take(content, key)
        result.append(rail if isinstance(content, (Lined, type(None))) else content)
        result.lines.append(rails.lines[name])
    return result


def _only(fields: Lined, names: frozenset[str]) -> Lined:
    result = Lined(fields.line)
    for name in fields:
        if name in names:
            result.take(fields, name)
    return result


def _leaves(value: object) -> Iterator[object]:
    """Everything in a value that is no container."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value

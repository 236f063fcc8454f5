"""From a file to a checked `Inventory`.

The file is Ansible's (YAML or INI), so that operators need not write their hosts down
twice. Variables that are neither ours nor of a connection are passed over; one that
looks like a misspelt field of ours is an error. Templates, vaults and passwords are
refused where they would matter: nothing is evaluated, nothing secret is read.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from inventory.complaint import complaint
from inventory.errors import InventoryError
from inventory.inifile import read_ini
from inventory.raw import Lined, RawInventory
from inventory.schema import MAX_HOSTS, HostEntry, Inventory
from inventory.variables import Variables, merged
from inventory.yamlfile import read_yaml

MAX_BYTES = 8 << 20
_YAML = (".yaml", ".yml", ".json")


def load(path: str | Path) -> Inventory:
    """The inventory of a file. Relative paths in it are relative to its folder.

    Raises:
        InventoryError: it cannot be read or is wrong; names file, line where it is
            known, host, field, value and what to do.
    """
    file = Path(path)
    return parse(_text_of(file), file)


def parse(text: str, file: Path) -> Inventory:
    """As `load`, of a text that was read already; `file` says what it is."""
    raw = (read_yaml if _is_yaml(text, file) else read_ini)(text, str(file))
    return _Building(raw, file.absolute().parent).inventory()


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise _unreadable(file, f"it is larger than {MAX_BYTES} bytes", "split it")
        text = content.decode("utf-8")
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
        raise _unreadable(file, problem, "name an inventory file") from error
    except UnicodeDecodeError as error:
        raise _unreadable(file, "it is not text in UTF-8", "convert it") from error
    if text.startswith("#!"):
        fix = f"ansible-inventory -i {file} --list --yaml > FILE.yaml, then name that"
        raise _unreadable(file, "it is a program; inventories are never run", fix)
    return text


def _unreadable(file: Path, problem: str, fix: str) -> InventoryError:
    return InventoryError(problem, fix=fix, file=str(file))


def _is_yaml(text: str, file: Path) -> bool:
    """By its suffix; a file without one is judged by its first line."""
    if file.suffix:
        return file.suffix.lower() in _YAML
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    return first == "---" or first.startswith("{") or first.endswith(":")


class _Building:
    """Puts groups, hosts and variables together."""

    def __init__(self, raw: RawInventory, folder: Path) -> None:
        self._raw = raw
        self._depths = raw.depths()
        self._members = raw.members(self._depths)
        self._members["all"] = dict.fromkeys(raw.hosts)
        everybody = raw.groups["all"].variables if "all" in raw.groups else Lined()
        self._variables = Variables(raw.file, folder, everybody)
        self._layers = {
            name: self._variables.of_hosts(group.variables, whose=f"group {name}")
            for name, group in raw.groups.items()
            if name != "all"
        }
        self._layers["all"] = self._variables.of_all_hosts()

    def inventory(self) -> Inventory:
        names = list(self._raw.hosts)
        if not 0 < len(names) <= MAX_HOSTS:
            raise InventoryError(
                f"it lists {len(names)} hosts",
                fix=f"list at least one and at most {MAX_HOSTS}",
                file=self._raw.file,
            )
        settings = self._variables.of_inventory()
        groups = {name: tuple(members) for name, members in self._members.items()}
        hosts = tuple(self._host(name) for name in names)
        try:
            return Inventory.model_validate(
                {**settings, "file": self._raw.file, "hosts": hosts, "groups": groups}
            )
        except ValidationError as error:
            raise complaint(error, settings, file=self._raw.file) from error

    def _host(self, name: str) -> HostEntry:
        own = self._raw.hosts[name]
        groups = self._groups_of(name)
        layers = [self._layers[group] for group in groups]
        layers.append(self._variables.of_hosts(own, whose=f"host {name}", host=name))
        values = merged(layers, line=own.line)
        content = {"address": name, **values, "name": name, "groups": tuple(groups)}
        try:
            return HostEntry.model_validate(content)
        except ValidationError as error:
            raise complaint(error, values, file=self._raw.file, host=name) from error

    def _groups_of(self, host: str) -> list[str]:
        """From the widest to the nearest; what a nearer one says wins."""
        names = [name for name in self._layers if host in self._members[name]]
        return sorted(names, key=lambda name: (self._depths[name], name))

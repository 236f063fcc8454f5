"""What an inventory says, checked: hosts, how to reach them, what may be done to them.

The loader fills these models from Ansible-shaped files; whoever builds them by hand
gets the same checks. Nothing in a value is ever given to a shell, and names that end
up in commands or paths are restricted here, so that a hostile value is refused before
anybody uses it.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from inventory.errors import InventoryError
from inventory.selection import select

PROTECTED = frozenset({"production", "prod", "live"})
"""Environments that are never broken unless an inventory says otherwise."""

MAX_HOSTS = 10_000
MAX_RAILS = 64


def _matching(pattern: str, example: str, *, empty: bool = True) -> AfterValidator:
    """A check that the whole text has this shape; the message shows an example.

    Empty means "not given", where a field has that.
    """
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if compiled.fullmatch(text) or (empty and not text):
            return text
        raise ValueError(f"is not of the shape of {example}")

    return AfterValidator(check)


def _address(text: str) -> str:
    """An IP address or a host name; nothing an option or a scope could hide in."""
    if is_ip(text):
        return text
    label = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    if len(text) <= 253 and re.fullmatch(rf"{label}(?:\.{label})*\.?", text, re.ASCII):
        return text
    raise ValueError("is neither an IP address nor a host name")


def is_ip(text: str) -> bool:
    """IPv4 or IPv6; a scope (`fe80::1%eth0`) may only name a device."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return (
        "%" not in text or re.fullmatch(r"[^%]+%[A-Za-z0-9_.-]{1,15}", text) is not None
    )


def _ip(text: str) -> str:
    if not text or is_ip(text):
        return text
    raise ValueError("is not an IP address")


def _path(text: str) -> str:
    if not text:
        return text
    if "\0" in text or "\n" in text or not text.startswith("/"):
        raise ValueError("is not an absolute path")
    return text


Name = Annotated[
    str,
    _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", "node-01.rack2", empty=False),
]
Label = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", "h800-8rail")]
Address = Annotated[str, AfterValidator(_address)]
Ip = Annotated[str, AfterValidator(_ip)]
AbsolutePath = Annotated[str, AfterValidator(_path)]
User = Annotated[str, _matching(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?", "ubuntu")]
Port = Annotated[int, Field(ge=1, le=65535)]
Device = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}", "eth0")]
Bdf = Annotated[
    str, _matching(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", "0000:3b:00.0")
]
Mac = Annotated[str, _matching(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", "52:54:00:12:34:56")]
Program = Annotated[
    str, _matching(r"/?[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,254}", "python3", empty=False)
]
Unit = Annotated[str, _matching(r"[A-Za-z0-9_][A-Za-z0-9:_.\\@-]{0,254}", "x.service")]
Container = Annotated[
    str, _matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", "mooncake-store")
]


class _Model(BaseModel):
    """Frozen, and nothing beside the fields it names."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False
    )


class Rail(_Model):
    """One NIC of the data plane, by what it is found with: device, PCI place or MAC."""

    name: Name
    device: Device = ""
    address: Ip = ""
    """Without a prefix; `10.0.0.1/24` is taken as address and subnet."""
    bdf: Bdf = ""
    mac: Mac = ""
    gpu: int | None = Field(default=None, ge=0, lt=1024)
    """Index of the GPU that this rail serves."""
    numa: int | None = Field(default=None, ge=-1, lt=1024)
    subnet: str = ""

    @model_validator(mode="before")
    @classmethod
    def _split_prefix(cls, value: Any) -> Any:
        return _split_prefix(value)

    @field_validator("bdf", "mac", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("subnet")
    @classmethod
    def _subnet_is_one(cls, value: str) -> str:
        return str(ipaddress.ip_network(value)) if value else ""

    @model_validator(mode="after")
    def _can_be_found(self) -> Rail:
        if not (self.device or self.bdf or self.mac):
            raise ValueError("a rail needs a device, a bdf or a mac to be found by")
        if self.address and self.subnet:
            network = ipaddress.ip_network(self.subnet)
            if ipaddress.ip_address(self.address) not in network:
                raise ValueError(f"address {self.address} is not in {self.subnet}")
        return self


class Plane(_Model):
    """A device and its address: the control plane, or the management plane."""

    device: Device = ""
    address: Ip = ""


class ProcessRule(_Model):
    """How a role that we did not start is found and acted on: exactly one way."""

    systemd: Unit = ""
    container: Container = ""
    pid_file: AbsolutePath = ""

    @model_validator(mode="after")
    def _exactly_one(self) -> ProcessRule:
        given = [
            name for name in ("systemd", "container", "pid_file") if getattr(self, name)
        ]
        if len(given) != 1:
            raise ValueError("needs exactly one of systemd, container, pid_file")
        return self


class HostEntry(_Model):
    """One host: how to reach it, what it carries, what may be done to it."""

    name: Name
    address: Address
    """Where SSH connects to: an IP address or a name."""
    port: Port = 22
    user: User = ""
    """Empty: the user who runs us."""
    key_file: Path | None = None
    """None: the agent's keys, then the usual files in ~/.ssh."""
    known_hosts: Path | None = None
    """None: ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts. Always checked."""
    python: Program = "python3"
    pythonpath: AbsolutePath = ""
    """Where the system that the harness starts is found on the host, when `python`
    does not have it installed."""
    sudo: bool = False
    """Commands that need root go through `sudo -n`; no password is ever sent."""
    groups: tuple[str, ...] = ()
    environment: Label = ""
    roles: tuple[Name, ...] = ()
    cohort: Label = ""
    """Hosts that should be alike; preflight compares only these with each other."""
    rails: tuple[Rail, ...] = Field(default=(), max_length=MAX_RAILS)
    control: Plane | None = None
    management: Plane | None = None
    chaos: Literal["allowed", "refused"] = "refused"
    manage: bool = False
    """True: the harness starts and ends the roles; False: they are only observed and
    broken, through `processes`."""
    processes: dict[Name, ProcessRule] = Field(default_factory=dict)
    scratch: AbsolutePath = ""
    """A mount of its own that faults may fill and slow down; without one they do not
    touch disks."""
    metrics_ports: tuple[Port, ...] = ()
    """TCP ports that no fault may cut, beside those of SSH and DNS."""
    expect: dict[str, Any] = Field(default_factory=dict)
    """What preflight must find on this host, above cohort and profile."""

    @field_validator("rails")
    @classmethod
    def _rails_differ(cls, rails: tuple[Rail, ...]) -> tuple[Rail, ...]:
        for field in ("name", "device", "bdf", "mac", "address"):
            values = [value for rail in rails if (value := getattr(rail, field))]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"two rails have the same {field}, {twice[0]}")
        return rails

    @field_validator("roles", mode="before")
    @classmethod
    def _one_role_is_a_list(cls, value: Any) -> Any:
        return (
            [part.strip() for part in value.split(",")]
            if isinstance(value, str)
            else value
        )

    def elevated(self, argv: list[str]) -> list[str]:
        """The command as root: through sudo where the inventory says so."""
        return ["sudo", "-n", "--", *argv] if self.sudo else list(argv)


class Inventory(_Model):
    """All hosts of one file, and what holds for all of them."""

    file: str = ""
    environment: Label = ""
    protected: frozenset[Label] = PROTECTED
    fault_ttl_max_s: float = Field(default=300.0, gt=0, le=3600)
    """The longest lease that a fault may have on these hosts."""
    lever: Path | None = None
    """A file on storage that all controllers share; halting the chaos writes it."""
    hosts: tuple[HostEntry, ...] = Field(min_length=1, max_length=MAX_HOSTS)
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Names of the hosts in each group, groups inside groups included."""

    @model_validator(mode="after")
    def _hosts_differ(self) -> Inventory:
        taken: dict[object, str] = {}
        for host in self.hosts:
            for what in _places_of(host):
                other = taken.setdefault(what, host.name)
                if other != host.name:
                    raise ValueError(f"hosts {other} and {host.name} share {what}")
        return self

    def host(self, name: str) -> HostEntry:
        """The host of this name.

        Raises:
            InventoryError: there is none.
        """
        for entry in self.hosts:
            if entry.name == name:
                return entry
        raise InventoryError(
            f"there is no host {name}", fix="name one that it lists", file=self.file
        )

    def limit(self, patterns: str) -> Inventory:
        """The same inventory with only the hosts that the patterns choose.

        `group`, `host`, `node-*`, several with commas, `!without`, `&only-those-in`.

        Raises:
            InventoryError: a name is unknown, or nothing is left.
        """
        names = [host.name for host in self.hosts]
        chosen = select(patterns, names, self.groups, file=self.file)
        hosts = tuple(host for host in self.hosts if host.name in chosen)
        groups = {
            group: tuple(name for name in members if name in chosen)
            for group, members in self.groups.items()
        }
        return self.model_copy(update={"hosts": hosts, "groups": groups})

    def with_role(self, role: str) -> tuple[HostEntry, ...]:
        return tuple(host for host in self.hosts if role in host.roles)

    def why_not(self, host: HostEntry) -> str:
        """Why nothing may be broken on this host; empty when it may.

        A host must be opted in, must say in which environment it stands, and neither
        that nor any of its groups may be protected.
        """
        if host.chaos != "allowed":
            return f"{host.name} is not opted in: chaos is refused; set chaos: allowed"
        if not host.environment:
            return f"{host.name} names no environment; set environment in all.vars"
        for name in (host.environment, self.environment, *host.groups):
            if name.lower() in {entry.lower() for entry in self.protected}:
                return f"{host.name} is in {name}, which is protected"
        return ""


def _split_prefix(value: Any) -> Any:
    """`address: 10.0.0.1/24` says the subnet as well."""
    if not isinstance(value, dict) or not isinstance(value.get("address"), str):
        return value
    address, slash, _ = value["address"].partition("/")
    if not slash:
        return value
    network = ipaddress.ip_interface(value["address"]).network
    return {"subnet": str(network), **value, "address": address}


def _places_of(host: HostEntry) -> list[str]:
    """What only one host can have: its name, its SSH endpoint, its addresses."""
    planes = [plane.address for plane in (host.control, host.management) if plane]
    rails = [f"{r.address} on {r.name}" for r in host.rails if r.address]
    return [
        f"the name {host.name}",
        f"the SSH address {host.address} port {host.port}",
        *(f"the address {address}" for address in (*planes, *rails) if address),
    ]

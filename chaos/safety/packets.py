"""Would these nftables commands hit this packet? A small interpreter, pure.

It reads the script that is going to be run, not what a builder meant, and follows each
protected flow through every chain. It knows the few words that our tables use; a word
it does not know makes the whole script unknown, and unknown is refused. Whatever of a
flow is not known (any peer, any port) may be matched by any rule: may is enough to be
refused, only a certain `accept` saves a flow from the rules after it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PORTS = {"ssh": 22, "domain": 53, "ntp": 123}
_TOKEN = re.compile(r'"[^"]*"|[{}.,;=]|[^\s{},;="]+')
_HOOKS = {"input": "in", "output": "out", "prerouting": "in", "postrouting": "out"}
_TABLE = re.compile(r"moonquake_[A-Za-z0-9_]+")


class Unknown(ValueError):
    """A word or a shape that this interpreter does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Packets that must get through; what is None may be anything."""

    label: str
    direction: str
    device: str | None = None
    remote: str | None = None
    local: str | None = None
    protocol: str | None = None
    local_port: int | None = None
    remote_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """One comparison: fields joined by dots, against rows of values."""

    fields: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    set_name: str = ""


@dataclass(slots=True, kw_only=True)
class _Rule:
    terms: list[_Term] = field(default_factory=list)
    sometimes: bool = False
    verdict: str = ""


@dataclass(slots=True, kw_only=True)
class _Chain:
    direction: str
    rules: list[_Rule] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Ruleset:
    """What the scripts read so far would leave in the kernel."""

    names: Mapping[str, str] = field(default_factory=dict)
    chains: dict[str, _Chain] = field(default_factory=dict)
    sets: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)

    def read(self, script: str) -> None:
        """Takes one script in.

        Raises:
            Unknown: Something in it is not of our own making.
        """
        for line in script.splitlines():
            if line.strip():
                self._line(_TOKEN.findall(line))

    def hits(self, flow: Flow) -> str:
        """The chain in which a packet of this flow may be lost, "" when in none."""
        for name, chain in self.chains.items():
            if chain.direction == flow.direction and self._lost(chain, flow):
                return name
        return ""

    def _line(self, words: list[str]) -> None:
        if len(words) < 4 or words[2] != "inet" or not _TABLE.fullmatch(words[3]):
            raise Unknown(" ".join(words))
        verb, what, table, rest = words[0], words[1], words[3], words[4:]
        match verb, what:
            case ("add", "table") | ("delete", "table") if not rest:
                return
            case "add", "counter" if len(rest) == 1:
                return
            case "add", "set" if _declares(rest):
                self.sets.setdefault(f"{table} {rest[0]}", set())
            case "add", "chain":
                self._chain(table, rest)
            case "add", "rule":
                self._chain_of(table, rest[0]).rules.append(_rule(rest[1:]))
            case ("add", "element") | ("delete", "element"):
                rows = self.sets.setdefault(f"{table} {rest[0]}", set())
                found, more = _rows(rest[1:])
                if more:
                    raise Unknown(" ".join(more))
                rows.update(found)
            case _:
                raise Unknown(" ".join(words))

    def _chain(self, table: str, rest: list[str]) -> None:
        """Only filters that let pass what no rule of theirs drops."""
        text = " ".join(rest[1:])
        shape = re.fullmatch(
            r"\{ type filter hook (\w+) priority -?\d+ ; policy accept ; \}", text
        )
        if shape is None or shape[1] not in _HOOKS:
            raise Unknown(text)
        name = f"{table} {rest[0]}"
        self.chains.setdefault(name, _Chain(direction=_HOOKS[shape[1]]))

    def _chain_of(self, table: str, name: str) -> _Chain:
        try:
            return self.chains[f"{table} {name}"]
        except KeyError:
            raise Unknown(f"chain {name}") from None

    def _lost(self, chain: _Chain, flow: Flow) -> bool:
        table = next(name for name, c in self.chains.items() if c is chain)
        for rule in chain.rules:
            matched = self._matches(rule, flow, table.partition(" ")[0])
            if matched is False or not rule.verdict:
                continue
            if rule.verdict != "accept":
                return True
            if matched is True and not rule.sometimes:
                return False
        return False

    def _matches(self, rule: _Rule, flow: Flow, table: str) -> bool | None:
        """True, False, or None: it may."""
        found: bool | None = True
        for term in rule.terms:
            rows: Sequence[tuple[str, ...]] = term.rows
            if term.set_name:
                if f"{table} {term.set_name}" not in self.sets:
                    raise Unknown(f"set @{term.set_name}")
                rows = sorted(self.sets[f"{table} {term.set_name}"])
            answer = _any(
                _all(_compare(f, v, flow, self.names) for f, v in _pairs(term, row))
                for row in rows
            )
            found = _all((found, answer))
        return found


def _declares(rest: list[str]) -> bool:
    """A set without elements of its own, and nothing behind it."""
    return rest.count("}") == 1 and rest[-1] == "}" and "elements" not in rest


def _pairs(term: _Term, row: tuple[str, ...]) -> list[tuple[str, str]]:
    if len(row) != len(term.fields):
        raise Unknown(" . ".join(row))
    return list(zip(term.fields, row, strict=True))


def _all(answers: Iterable[bool | None]) -> bool | None:
    found = list(answers)
    if False in found:
        return False
    return None if None in found else True


def _any(answers: Iterable[bool | None]) -> bool | None:
    found = list(answers)
    if True in found:
        return True
    return None if None in found else False


_NO_RESET = ["tcp", "flags", "&", "rst", "=", "=", "0"]
"""Of segments that are no RST: a condition that some packets of any flow meet."""
_STATEMENTS = ("counter", "numgen", "limit", "drop", "accept", "reject")
_FIELDS_OF_TWO = {
    ("ip", "saddr"),
    ("ip", "daddr"),
    ("ip6", "saddr"),
    ("ip6", "daddr"),
    ("tcp", "sport"),
    ("tcp", "dport"),
    ("udp", "sport"),
    ("udp", "dport"),
    ("meta", "l4proto"),
}


def _rule(words: list[str]) -> _Rule:
    rule = _Rule()
    while words:
        if words[: len(_NO_RESET)] == _NO_RESET:
            rule.sometimes = True
            words = words[len(_NO_RESET) :]
        elif words[0] in _STATEMENTS:
            words = _statement(rule, words)
        else:
            words = _term(rule, words)
    return rule


def _statement(rule: _Rule, words: list[str]) -> list[str]:
    """One statement off the front; what limits it makes it happen sometimes."""
    match words:
        case ["counter", "name", _, *rest]:
            return rest
        case ["counter", *rest]:
            return rest
        case ["numgen", "random", "mod", _, "<", _, *rest]:
            rule.sometimes = True
            return rest
        case ["limit", "rate", "over", rate, _, "burst", _, _, *rest]:
            return _limit(rule, rate, rest)
        case ["limit", "rate", "over", rate, _, *rest]:
            return _limit(rule, rate, rest)
        case ["reject", "with", "tcp", "reset"] | ["reject"] | ["drop"]:
            rule.verdict = "drop"
            return []
        case ["accept"]:
            rule.verdict = "accept"
            return []
    raise Unknown(" ".join(words))


def _limit(rule: _Rule, rate: str, rest: list[str]) -> list[str]:
    if not rate.isdigit() or int(rate) == 0:
        raise Unknown(f"a rate of {rate}, which lets nothing through")
    rule.sometimes = True
    return rest


def _term(rule: _Rule, words: list[str]) -> list[str]:
    fields: list[str] = []
    while True:
        if words[:1] in (["iifname"], ["oifname"]):
            fields.append(words[0])
            words = words[1:]
        elif tuple(words[:2]) in _FIELDS_OF_TWO:
            fields.append(f"{words[0]} {words[1]}")
            words = words[2:]
        else:
            raise Unknown(" ".join(words))
        if words[:1] != ["."]:
            break
        words = words[1:]
    if not words:
        raise Unknown("a field without a value")
    if words[0].startswith("@"):
        rule.terms.append(_Term(fields=tuple(fields), set_name=words[0][1:]))
        return words[1:]
    rows, rest = _rows(words, width=len(fields))
    rule.terms.append(_Term(fields=tuple(fields), rows=tuple(rows)))
    return rest


def _rows(words: list[str], width: int = 0) -> tuple[list[tuple[str, ...]], list[str]]:
    """Values in braces, or one bare row; timeouts of elements do not matter."""
    if words[:1] != ["{"]:
        return [tuple(words[: 2 * width : 2])], words[2 * width - 1 :]
    if "}" not in words:
        raise Unknown(" ".join(words))
    close = words.index("}")
    rows: list[tuple[str, ...]] = []
    for text in _split(words[1:close]):
        if "timeout" in text:
            text = text[: text.index("timeout")]
        if len(text) % 2 == 0 or any(word != "." for word in text[1::2]):
            raise Unknown(" ".join(text))
        rows.append(tuple(text[::2]))
    return rows, words[close + 1 :]


def _split(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == ",":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _compare(
    name: str, value: str, flow: Flow, names: Mapping[str, str]
) -> bool | None:
    """Whether one field of a packet of this flow has this value."""
    arriving = flow.direction == "in"
    if name in ("iifname", "oifname"):
        if (name == "iifname") != arriving:
            return False
        return _same_device(value.strip('"'), flow.device, names)
    protocol, _, part = name.partition(" ")
    if part == "l4proto":
        return None if flow.protocol is None else _protocol(value) == flow.protocol
    ours = part in (("daddr", "dport") if arriving else ("saddr", "sport"))
    if part.endswith("addr"):
        return _same_address(value, flow.local if ours else flow.remote)
    port = _same_port(value, flow.local_port if ours else flow.remote_port)
    same = None if flow.protocol is None else flow.protocol == protocol
    return _all((same, port))


def _protocol(value: str) -> str:
    return {"ipv6-icmp": "icmpv6", "6": "tcp", "17": "udp", "58": "icmpv6"}.get(
        value, value
    )


def _same_device(
    value: str, device: str | None, names: Mapping[str, str]
) -> bool | None:
    """A trailing star is a pattern; a device may be called by several names."""
    if value.endswith("*"):
        if device is None:
            return None
        called = [n for n, real in names.items() if real == device]
        return any(n.startswith(value[:-1]) for n in [*called, device])
    if names and value not in names:
        raise Unknown(f"device {value}")
    return None if device is None else names.get(value, value) == device


def _same_address(value: str, address: str | None) -> bool | None:
    wanted = _range(value)
    if address is None:
        return None
    number = plain_address(address)
    low, high = wanted
    return low.version == number.version and int(low) <= int(number) <= int(high)


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def plain_address(text: str) -> _Address:
    """An address; an IPv4 one in IPv6 clothes is what it is underneath."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _range(value: str) -> tuple[_Address, _Address]:
    try:
        if "-" in value:
            low, _, high = value.partition("-")
            return plain_address(low), plain_address(high)
        if "/" not in value:
            return plain_address(value), plain_address(value)
        network = ipaddress.ip_network(value, strict=False)
        return _plain_network(network)
    except ValueError:
        raise Unknown(f"address {value}") from None


def _plain_network(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network,
) -> tuple[_Address, _Address]:
    low, high = network.network_address, network.broadcast_address
    return plain_address(str(low)), plain_address(str(high))


def _same_port(value: str, port: int | None) -> bool | None:
    low, _, high = value.partition("-")
    try:
        first = _PORTS.get(low) or int(low)
        last = (_PORTS.get(high) or int(high)) if high else first
    except ValueError:
        raise Unknown(f"port {value}") from None
    return None if port is None else first <= port <= last

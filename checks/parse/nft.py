"""`nft -j list ruleset`: chains with their rules and sets, as far as filters matter.

A rule is a list of expressions: matches, statements without effect on the packet, and
at most one verdict at its end. What iptables-nft wrote and nft cannot show is `xt`.
Tables of iptables-legacy are not in it. JSON that is cut off does not parse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

SOURCE = "nft -j list ruleset"
Key = tuple[str, str, str]
"""Family, table, and the name of a chain or set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A chain; `hook` and `policy` are "" for one that others jump to."""

    key: Key
    kind: str
    hook: str
    policy: str
    device: str

    @property
    def label(self) -> str:
        return " ".join(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruleset:
    """Everything by its key."""

    chains: Mapping[Key, Chain]
    rules: Mapping[Key, Sequence[Sequence[Mapping[str, Any]]]]
    sets: Mapping[Key, Sequence[Any]]


def parse_ruleset(rows: Any) -> Ruleset:
    """The ruleset, from the JSON as it was loaded."""
    every = rows.get("nftables") if isinstance(rows, Mapping) else None
    if not isinstance(every, list):
        raise Garbled(SOURCE, "no list called nftables")
    chains: dict[Key, Chain] = {}
    rules: dict[Key, list[Sequence[Mapping[str, Any]]]] = {}
    sets: dict[Key, Sequence[Any]] = {}
    try:
        for row in every:
            if "chain" in row:
                chain = _chain(row["chain"])
                chains[chain.key] = chain
            elif "rule" in row:
                told = row["rule"]
                rules.setdefault(_key(told, "chain"), []).append(list(told["expr"]))
            elif "set" in row:
                sets[_key(row["set"], "name")] = tuple(row["set"].get("elem", ()))
    except (TypeError, KeyError, AttributeError) as error:
        raise Garbled(SOURCE, f"a row of another form: {error!r}") from None
    return Ruleset(chains=chains, rules=rules, sets=sets)


@derived
def ruleset(facts: Facts) -> Ruleset:
    return parse_ruleset(facts.result("nft").json())


def _key(told: Mapping[str, Any], name: str) -> Key:
    return str(told["family"]), str(told["table"]), str(told[name])


def _chain(told: Mapping[str, Any]) -> Chain:
    return Chain(
        key=_key(told, "name"),
        kind=str(told.get("type", "")),
        hook=str(told.get("hook", "")),
        policy=str(told.get("policy", "accept" if "hook" in told else "")),
        device=str(told.get("dev", "")),
    )

"""What the running vswitchd says: `ovs-appctl version|bond/show|lacp/show|...`.

Up to 2.14 a leg of a bond is a `slave`, from 2.15 on a `member` (NEWS of 2.15). A bond
may say `lacp_status: negotiated` while one of its members is disabled: only the
members tell. In `lacp/show` a good member is `current attached`; `expired` and
`defaulted` have no partner that answers.

`dpctl/show` counts since the datapath was made: `  lookups: hit:0 missed:0 lost:0`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOND = re.compile(r"^---- (\S+) ----$")
_MEMBER = re.compile(r"^(?:member|slave) (\S+): (\w+)$")
_MAY = re.compile(r"^\s+may_enable: (true|false)$")
_LACP_STATUS = re.compile(r"^lacp_status: (negotiated|configured)$")
_LACP_MEMBER = re.compile(r"^(?:member|slave): (\S+): (\w+(?: \w+)*)$")
_PARTNER = re.compile(r"^\s+partner sys_id: (\S+)$")
_LOOKUPS = re.compile(r"^\s*lookups: hit:(\d+) missed:(\d+) lost:(\d+)\s*$")
_FLOWS = re.compile(
    r"^\s*flows\s*:\s*\(current (\d+)\) \(avg (\d+)\) \(max (\d+)\) \(limit (\d+)\)$"
)
_VERSION = re.compile(r"^ovs-vswitchd \(Open vSwitch\) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One leg of a bond as `bond/show` tells it."""

    bond: str
    name: str
    state: str
    may_enable: bool
    speaks_lacp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LacpMember:
    """One leg of a bond as `lacp/show` tells it."""

    bond: str
    name: str
    state: str
    partner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookups:
    """Counters of all datapaths together, and which datapaths they are."""

    hit: int
    missed: int
    lost: int
    datapaths: tuple[str, ...]


def parse_bonds(text: str) -> tuple[Member, ...]:
    """Members of all bonds. Every one must tell `may_enable`, else it is cut off."""
    found: list[Member] = []
    bond, member, state, speaks = "", "", "", False
    for line in text.splitlines():
        header, leg, may = _BOND.match(line), _MEMBER.match(line), _MAY.match(line)
        if (header or leg) and member:
            raise Garbled("bond/show", f"member {member} does not tell may_enable")
        if header:
            bond, speaks = header[1], False
        elif _LACP_STATUS.match(line):
            speaks = True
        elif leg:
            member, state = leg[1], leg[2]
        elif may and member:
            found.append(
                Member(
                    bond=bond,
                    name=member,
                    state=state,
                    may_enable=may[1] == "true",
                    speaks_lacp=speaks,
                )
            )
            member = ""
    if member or not bond or not any(each.bond == bond for each in found):
        raise Garbled("bond/show", "it ends inside a bond")
    return tuple(found)


def parse_lacp(text: str) -> tuple[LacpMember, ...]:
    """Members of all bonds that speak LACP; every one must tell its partner."""
    found: list[LacpMember] = []
    bond, member, state = "", "", ""
    for line in text.splitlines():
        header, leg = _BOND.match(line), _LACP_MEMBER.match(line)
        partner = _PARTNER.match(line)
        if (header or leg) and member:
            raise Garbled("lacp/show", f"member {member} does not tell its partner")
        if header:
            bond = header[1]
        elif leg:
            member, state = leg[1], leg[2]
        elif partner and member:
            found.append(
                LacpMember(bond=bond, name=member, state=state, partner=partner[1])
            )
            member = ""
    if member or (bond and not any(each.bond == bond for each in found)):
        raise Garbled("lacp/show", "it ends inside a bond")
    return tuple(found)


def parse_lookups(text: str) -> Lookups:
    """`dpctl/show`: lookups of every datapath, added up."""
    sums = [0, 0, 0]
    lines = text.splitlines(keepends=True)
    seen = 0
    for line in lines:
        match = _LOOKUPS.match(line)
        if match is None:
            continue
        if len(lines) > 1 and not line.endswith("\n"):
            raise Garbled("dpctl/show", "it ends inside a number")
        seen += 1
        sums = [
            total + int(number)
            for total, number in zip(sums, match.groups(), strict=False)
        ]
    names = tuple(line.strip()[:-1] for line in lines if re.match(r"^\S.*:\s*$", line))
    if not seen or (names and len(names) != seen):
        raise Garbled("dpctl/show", "no line with lookups")
    return Lookups(hit=sums[0], missed=sums[1], lost=sums[2], datapaths=names)


def parse_flow_limits(text: str) -> tuple[tuple[int, int], ...]:
    """`upcall/show`: (flows now, limit) of every datapath."""
    found = [
        (int(match[1]), int(match[4]))
        for match in map(_FLOWS.match, text.splitlines())
        if match
    ]
    if not found:
        raise Garbled("upcall/show", "no line with flows and their limit")
    return tuple(found)


def parse_version(text: str, program: str = "ovs-vswitchd") -> str:
    """`ovs-vswitchd (Open vSwitch) 3.1.0`."""
    match = _VERSION.search(text)
    if match is None:
        raise Garbled(f"{program} version", f"no version in {text.strip()[:60]!r}")
    return match[1]


def asked(facts: Facts, *words: str) -> tuple[Result, ...]:
    """The newest run of every such question to vswitchd, not to another daemon."""
    return tuple(r for r in facts.find("ovs-appctl", *words) if _is_vswitchd(r))


def samples(facts: Facts, *words: str) -> tuple[Result, ...]:
    """Every sample of such a question to vswitchd, oldest first."""
    found = facts.samples("ovs-appctl", *words)
    if not _is_vswitchd(found[0]):
        raise Unread("missing", f"ovs-appctl {' '.join(words)}", "not collected")
    return found


@derived
def bonds(facts: Facts) -> tuple[Member, ...]:
    """Members of all bonds; Unread also where it printed nothing."""
    return parse_bonds(_text(facts, "bond/show"))


@derived
def lacp(facts: Facts) -> Mapping[tuple[str, str], LacpMember]:
    """Members that speak LACP by (bond, member); empty where no bond does."""
    result = _best(facts, "lacp/show").ended()
    if result.rc == 0 and not result.stdout.strip():
        return {}
    return {(each.bond, each.name): each for each in parse_lacp(result.text())}


def _text(facts: Facts, *words: str) -> str:
    return _best(facts, *words).text()


def _best(facts: Facts, *words: str) -> Result:
    found = asked(facts, *words)
    if not found:
        raise Unread("missing", f"ovs-appctl {' '.join(words)}", "not collected")
    whole = [r for r in found if r.rc == 0 and not (r.timed_out or r.truncated)]
    return (whole or list(found))[0]


def _is_vswitchd(result: Result) -> bool:
    target = result.reading.option("-t", "--target")
    return not target or "ovs-vswitchd" in target

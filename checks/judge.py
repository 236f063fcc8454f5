"""judge(documents, profile) -> Report: pure, and the same for any order of the nodes.

Order of references: the profile, then the majority of like nodes, then the invariants
built into the rules. A failed requirement makes its dependants SKIP, blocked by the
root cause; a check that `follows` a failed one stays bad but is no root cause.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from checks.cohort import Baseline, Cohort, baseline, cohorts
from checks.cycles import without_collector
from checks.facts import Facts, Unread
from checks.finding import Finding, Outcome, Status, Waived, bad, ok, skip, unknown
from checks.hearing import Heard, Hearing, Reads, key_of, told_of_own_fault
from checks.node import Node
from checks.profile import Expect, Profile, Waiver, matches
from checks.report import Report
from checks.rules import all_rules
from checks.rules.declare import Judged, NotHere, Rule, Subject
from checks.shares import MOST_JOBS, shared_out

if TYPE_CHECKING:
    from checks.rails import RailName

REACHABLE = "meta-reachable"
FEW_NODES = 64
"""Fewer are judged sooner by one process than a second one is started."""
Previous = Mapping[tuple[str, str, str], str]
"""Values of a saved baseline by (node, check, compare key)."""


def judge(
    documents: Sequence[Mapping[str, Any] | Facts],
    profile: Profile | None = None,
    *,
    rules: Sequence[Rule] | None = None,
    nics: Sequence[str] = (),
    rails: Mapping[str, Sequence[RailName]] | None = None,
    expect: Mapping[str, Expect] | None = None,
    previous: Previous | None = None,
    today: dt.date = dt.date.min,
    processes: int = 1,
) -> Report:
    """Judges facts documents, one a node.

    Args:
        documents: of schema `preflight.facts/1`, in any order; as `Facts` when they
            are judged several times, so that they are parsed once.
        profile: golden values; None prescribes nothing.
        rules: instead of all rules that the profile does not disable.
        nics: names of devices, as `--nics` gives them.
        rails: names of rails by hostname, as the inventory gives them.
        expect: what single nodes must hold, by hostname; wins over the profile.
        previous: a saved baseline; what changed since is a warning.
        today: decides which waivers have expired; by default none.
        processes: how many may judge a fleet; the report does not depend on it.
    """
    profile = profile or Profile()
    given = _Given(nics=tuple(nics), rails=rails or {}, expect=expect or {})
    nodes = _nodes(documents, profile, given)
    chosen = [
        rule
        for rule in (all_rules() if rules is None else rules)
        if rule.id not in profile.disable
    ]
    court = _Court(
        nodes=nodes,
        rules=chosen,
        profile=profile,
        previous=previous or {},
        kept=frozenset(id(each) for each in documents if isinstance(each, Facts)),
    )
    with without_collector():
        court.sit(processes)
        return _reported(court, today)


def _reported(court: _Court, today: dt.date) -> Report:
    findings, profile = court.findings, court.profile
    _collapse(findings, court.rules)
    expired = _waive(findings, profile.waivers, today)
    findings.sort(key=attrgetter("node", "rule.id", "subject"))
    return Report(
        nodes=tuple(node.name for node in court.nodes),
        cohorts={c.name: tuple(n.name for n in c.nodes) for c in court.cohorts},
        findings=tuple(findings),
        profile=profile,
        expired=tuple(expired),
        own_faults=tuple(sorted(court.own_faults)),
    )


def _nodes(
    documents: Sequence[Mapping[str, Any] | Facts],
    profile: Profile,
    given: _Given,
) -> tuple[Node, ...]:
    """Nodes by name; two documents of one name are told apart, not dropped."""
    every = [d if isinstance(d, Facts) else Facts(d) for d in documents]
    counts = Counter(facts.said("hostname") for facts in every)
    ordered = sorted(every, key=lambda facts: _place(facts, counts))
    seen: dict[str, int] = {}
    nodes = []
    for facts in ordered:
        hostname = facts.said("hostname") or "unnamed"
        seen[hostname] = seen.get(hostname, 0) + 1
        name = hostname if seen[hostname] == 1 else f"{hostname}#{seen[hostname]}"
        facts.name = name
        nodes.append(
            Node(
                name=name,
                facts=facts,
                profile=profile.expecting(given.expect.get(hostname, {})),
                nics=given.nics,
                rail_names=tuple(given.rails.get(hostname, ())),
            )
        )
    return tuple(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What command line and inventory say besides the profile."""

    nics: tuple[str, ...]
    rails: Mapping[str, Sequence[RailName]]
    expect: Mapping[str, Expect]


def _place(facts: Facts, counts: Mapping[str, int]) -> tuple[str, str]:
    """Where a node stands; several of one name are ordered by all that they say."""
    name = facts.said("hostname")
    if counts[name] < 2:
        return name, ""
    text = json.dumps(facts.document, sort_keys=True, default=str)
    return name, hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class _Court:
    """Hears nodes and fleet, compares, and keeps what was found."""

    nodes: tuple[Node, ...]
    rules: Sequence[Rule]
    profile: Profile
    previous: Previous
    kept: frozenset[int]
    """Identities of facts that the caller holds: what is derived of them is kept."""
    findings: list[Finding] = field(default_factory=list)
    own_faults: list[str] = field(default_factory=list)
    cohorts: tuple[Cohort, ...] = ()
    reachable: tuple[Node, ...] = ()
    hearing: Hearing = field(init=False)

    def __post_init__(self) -> None:
        self.reachable = tuple(n for n in self.nodes if not _is_lost(n))
        self.hearing = Hearing(
            rules={rule.id: rule for rule in self.rules}, severity=self.profile.severity
        )

    def sit(self, processes: int) -> None:
        """Hears everybody; the same comes of it with any number of processes."""
        jobs = _parts(self.reachable, processes)
        alone = [rule for rule in self.rules if rule.scope != "fleet"]

        def hear(job: int) -> list[Heard]:
            return [self._hear_node(node, alone) for node in jobs[job]]

        every = shared_out(
            len(jobs),
            hear,
            helpers=min(processes, len(jobs)) - 1,
            encode=self.hearing.packed,
            decode=lambda job, packed: self.hearing.unpacked(
                packed, [node.name for node in jobs[job]]
            ),
            meanwhile=self._hear_together,
        )
        for node in self.reachable:
            self._forget(node)
        heard = [one for part in every for one in part]
        for one in heard:
            self.findings += one.findings
            self.own_faults += one.own_faults
        self._compare_all(heard)

    def _hear_node(self, node: Node, rules: Sequence[Rule]) -> Heard:
        heard = self.hearing.hear(node, rules)
        self._forget(node)
        return heard

    def _forget(self, node: Node) -> None:
        if id(node.facts) not in self.kept:
            node.facts.forget()

    def _hear_together(self) -> None:
        """What needs all nodes: their cohorts, the fleet, and those who are lost."""
        self.cohorts = cohorts(self.reachable)
        for rule in self.rules:
            self._hear_lost(rule)
            if rule.scope == "fleet":
                self._hear_fleet(rule)

    def _hear_lost(self, rule: Rule) -> None:
        for node in self.nodes:
            if not _is_lost(node):
                continue
            if rule.id == REACHABLE:
                heard = self.hearing.hear(node, [rule])
                self.findings += heard.findings
                self.own_faults += heard.own_faults
                continue
            self._add(rule, node, Subject(item=None), skip("not collected"), ())
            self.findings[-1].blocked_by = (REACHABLE,)

    def _compare_all(self, heard: Sequence[Heard]) -> None:
        said = {node.name: one for node, one in zip(self.reachable, heard, strict=True)}
        for rule in self.rules:
            if rule.scope != "cohort":
                continue
            for cohort in self.cohorts:
                answers = [
                    (node, *answer)
                    for node in cohort.nodes
                    for answer in said[node.name].answers[rule.id]
                ]
                self._compare_cohort(rule, answers)

    def _compare_cohort(
        self,
        rule: Rule,
        answers: Sequence[tuple[Node, Subject[Any], Outcome | str, Reads]],
    ) -> None:
        votes: dict[str, list[tuple[str, str]]] = {}
        for node, subject, answer, _ in answers:
            if isinstance(answer, str):
                votes.setdefault(key_of(subject), []).append((node.name, answer))
        bases = {key: baseline(cast) for key, cast in votes.items()}
        alike: dict[tuple[int, str, str], Outcome] = {}
        for node, subject, answer, reads in answers:
            if isinstance(answer, Outcome):
                self._add(rule, node, subject, answer, reads)
                continue
            key = key_of(subject)
            same = (id(node.profile), key, answer)
            if same not in alike:
                alike[same] = _compare(rule, node.profile, key, answer, bases[key])
            outcome = self._since(rule, node, key, answer, alike[same])
            self._add(rule, node, subject, outcome, reads, answer, bases[key])

    def _since(
        self, rule: Rule, node: Node, key: str, value: str, outcome: Outcome
    ) -> Outcome:
        """What has changed since the saved baseline, where nothing else is wrong."""
        if not self.previous or outcome.status not in {Status.PASS, Status.SKIP}:
            return outcome
        before = self.previous.get((node.name, rule.id, key))
        if before is None or node.profile.allowed(rule.id, key) is not None:
            return outcome
        if before != value:
            return bad(value, f"{before} (saved baseline)", severity="W")
        if outcome.status is Status.SKIP:
            return ok(value, f"{before} (saved baseline)")
        return outcome

    def _hear_fleet(self, rule: Rule) -> None:
        spoken: set[str] = set()
        for verdict, reads in self._ask_all(rule):
            spoken.add(verdict.node.name)
            subject = Subject(
                item=None,
                label=verdict.subject,
                key=verdict.key,
                touches=verdict.touches,
            )
            source = verdict.source or reads
            self._add(rule, verdict.node, subject, verdict.outcome, source)
        for node in self.reachable:
            if node.name not in spoken:
                nothing = unknown("nothing to judge was found on this node")
                self._add(rule, node, Subject(item=None), nothing, ())

    def _ask_all(self, rule: Rule) -> list[tuple[Judged, tuple[str, ...]]]:
        try:
            return [(verdict, rule.needs) for verdict in rule.decide(self.reachable)]
        except (Unread, NotHere) as error:
            outcome = skip(error) if isinstance(error, NotHere) else unknown(error)
        except Exception as error:
            told = told_of_own_fault(error)
            self.own_faults.append(f"{rule.id} on the fleet: {told}")
            outcome = unknown(f"our own fault: {told}")
        return [(Judged(node=node, outcome=outcome), ()) for node in self.reachable]

    def _add(
        self,
        rule: Rule,
        node: Node,
        subject: Subject[Any],
        outcome: Outcome,
        reads: Reads,
        value: str | None = None,
        base: Baseline | None = None,
    ) -> None:
        found = self.hearing.finding(
            rule, node.name, subject, outcome, reads, value, base
        )
        self.findings.append(found)


def _parts(nodes: Sequence[Node], processes: int) -> list[Sequence[Node]]:
    """The nodes in order, in parts: one for each process to take several of them."""
    count = len(nodes)
    jobs = min(count, MOST_JOBS) if processes > 1 and count >= FEW_NODES else 1
    return [nodes[at * count // jobs : (at + 1) * count // jobs] for at in range(jobs)]


def _is_lost(node: Node) -> bool:
    """Nothing came back from it: unreachable, hung, cut off."""
    return bool(node.facts.collector.get("error"))


def _compare(
    rule: Rule, profile: Profile, key: str, value: str, base: Baseline
) -> Outcome:
    """What profile or peers say of a value; the same for each who holds it."""
    allowed = profile.allowed(rule.id, key)
    if allowed is None:
        return _against_peers(value, base)
    wanted = " or ".join(allowed)
    if matches(value, allowed):
        return ok(value, f"{wanted} (profile)")
    return bad(value, f"{wanted} (profile)")


def _against_peers(value: str, base: Baseline) -> Outcome:
    if base.nodes < 2:
        return skip(f"{value}: no like node to compare with")
    if base.unanimous:
        return ok(value, f"as on {base.nodes} like nodes")
    if base.majority is None:
        return bad(value, f"peers disagree: {base.histogram}", severity="W")
    total = sum(base.counts.values())
    told = f"{base.majority} ({base.counts[base.majority]} of {total})"
    return ok(value, told) if value == base.majority else bad(value, told)


def _collapse(findings: list[Finding], rules: Sequence[Rule]) -> None:
    """Turns dependants of what failed into SKIP, and symptoms into non-roots.

    Causes are on the same node: where nothing is bad or blocked, nothing changes.
    """
    troubled = {f.node for f in findings if f.bad or f.blocked_by}
    at: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if finding.node in troubled:
            at.setdefault((finding.node, finding.id), []).append(finding)
    for rule in _in_order(rules):
        if not (rule.requires or rule.follows):
            continue
        for node in sorted(troubled):
            for finding in at.get((node, rule.id), ()):
                _block(finding, rule, at)


def _block(
    finding: Finding, rule: Rule, at: Mapping[tuple[str, str], list[Finding]]
) -> None:
    roots = _roots(finding, rule.requires, at, Status.FAIL)
    if roots:
        finding.status = Status.SKIP
        finding.blocked_by = roots
        return
    if finding.bad:
        finding.blocked_by = _roots(finding, rule.follows, at, Status.FAIL, Status.WARN)


def _roots(
    finding: Finding,
    causes: Sequence[str],
    at: Mapping[tuple[str, str], list[Finding]],
    *statuses: Status,
) -> tuple[str, ...]:
    """Ids of the root causes among these checks that concern the finding."""
    roots: set[str] = set()
    for cause in causes:
        for other in at.get((finding.node, cause), ()):
            if other.touches and not other.touches & finding.touches:
                continue
            if other.blocked_by:
                roots |= set(other.blocked_by)
            elif other.status in statuses:
                roots.add(other.id)
    return tuple(sorted(roots - {finding.id}))


def _in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Rules after those they require or follow; a cycle ends where it closes."""
    by_id = {rule.id: rule for rule in rules}
    done: dict[str, Rule] = {}
    open_: set[str] = set()

    def visit(rule: Rule) -> None:
        if rule.id in done or rule.id in open_:
            return
        open_.add(rule.id)
        for name in (*rule.requires, *rule.follows):
            if name in by_id:
                visit(by_id[name])
        done[rule.id] = rule

    for rule in rules:
        visit(rule)
    return list(done.values())


def _waive(
    findings: Iterable[Finding], waivers: Sequence[Waiver], today: dt.date
) -> list[str]:
    """Applies waivers; tells those that have expired."""
    live = [waiver for waiver in waivers if waiver.until >= today]
    for finding in findings:
        if not finding.bad:
            continue
        for waiver in live:
            if _covers(waiver, finding):
                finding.waived = Waived(
                    was=finding.status,
                    until=waiver.until.isoformat(),
                    reason=waiver.reason,
                )
                finding.status = Status.SKIP
                break
    return [
        f"{waiver.id} {waiver.node} {waiver.subject}".strip()
        + f": expired on {waiver.until.isoformat()} ({waiver.reason})"
        for waiver in waivers
        if waiver.until < today
    ]


def _covers(waiver: Waiver, finding: Finding) -> bool:
    return (
        waiver.id in {"*", finding.id}
        and waiver.node in {"", finding.node}
        and waiver.subject in {"", finding.subject}
    )

"""What nodes answer to rules about them, heard in one process or in several.

A rule about one node, and a rule of likeness before its values are compared, ask one
node alone. So nodes can be heard anywhere and in any order: what comes of it depends on
nothing but their own facts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from checks.facts import Unread
from checks.finding import (
    SEVERITIES,
    Finding,
    Outcome,
    Severity,
    Status,
    skip,
    unknown,
)
from checks.rules.declare import NotHere, Rule, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from checks.cohort import Baseline
    from checks.node import Node

Reads = tuple[str, ...]
Answer = tuple[Subject[Any], Outcome | str, Reads]
"""A subject, what was said of it (a value is still to be compared), what was read."""
_STATUSES = tuple(Status)
_SEVERITIES = tuple(Severity)
_STATUS_AT: Mapping[Status | None, int] = {
    None: -1,
    **{status: at for at, status in enumerate(_STATUSES)},
}
_SEVERITY_AT: Mapping[Severity | None, int] = {
    None: -1,
    **{severity: at for at, severity in enumerate(_SEVERITIES)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one node said: findings, and answers by rule that wait for its peers."""

    findings: list[Finding] = field(default_factory=list)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    own_faults: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Hearing:
    """Asks nodes and writes findings."""

    rules: Mapping[str, Rule]
    severity: Mapping[str, str]
    """The letters that the profile gives to checks."""
    _sources: dict[Reads, Reads] = field(default_factory=dict)

    def hear(self, node: Node, rules: Sequence[Rule]) -> Heard:
        """Asks one node; `rules` are those of scope node and cohort."""
        heard = Heard()
        for rule in rules:
            answers = self._ask(rule, node, heard.own_faults)
            if rule.scope == "cohort":
                heard.answers[rule.id] = answers
                continue
            for subject, said, reads in answers:
                outcome = unknown(said) if isinstance(said, str) else said
                found = self.finding(rule, node.name, subject, outcome, reads)
                heard.findings.append(found)
        return heard

    def _ask(self, rule: Rule, node: Node, own_faults: list[str]) -> list[Answer]:
        """Every subject of a rule on a node with its answer and what was read."""
        safely = partial(_safely, own_faults, rule, node)
        found, reads = node.facts.credited(partial(safely, partial(_listed, rule)))
        if isinstance(found, Outcome):
            return [(Subject(item=None), found, reads)]
        if not found:
            nothing = unknown("nothing to judge was found on this node")
            return [(Subject(item=None), nothing, reads)]
        answers: list[Answer] = []
        for subject in found:
            ask = partial(safely, partial(_decided, rule, subject))
            said, read = node.facts.credited(ask)
            # What was read to find the subjects is the evidence where it told all.
            answers.append((subject, said, read or reads))
        return answers

    def finding(
        self,
        rule: Rule,
        node: str,
        subject: Subject[Any],
        outcome: Outcome,
        reads: Reads,
        value: str | None = None,
        base: Baseline | None = None,
    ) -> Finding:
        """An outcome as a line of the report."""
        severity = self._severity(rule, outcome)
        return Finding(
            rule=rule,
            node=node,
            subject=subject.label,
            status=severity.status if outcome.status is None else outcome.status,
            severity=severity,
            observed=outcome.observed,
            expected=outcome.expected,
            source=self._sources.setdefault(reads, reads),
            touches=subject.touches,
            own_why=outcome.why,
            own_fix=outcome.fix,
            peers=base.histogram if base and base.nodes > 1 else "",
            value=outcome.value if value is None else value,
            key=key_of(subject),
        )

    def _severity(self, rule: Rule, outcome: Outcome) -> Severity:
        if outcome.severity is Severity.INFO:
            return Severity.INFO
        letter = self.severity.get(rule.id)
        if letter is not None:
            return SEVERITIES[letter]
        return outcome.severity or rule.severity

    def packed(self, every: Sequence[Heard]) -> list[Any]:
        """What several nodes said, as numbers and text that `marshal` takes."""
        return [
            (
                [_packed_finding(each) for each in heard.findings],
                [
                    (id_, [_packed_answer(each) for each in answers])
                    for id_, answers in heard.answers.items()
                ],
                heard.own_faults,
            )
            for heard in every
        ]

    def unpacked(self, packed: Sequence[Any], names: Sequence[str]) -> list[Heard]:
        """The inverse of `packed`, for the nodes of these names."""
        return [
            Heard(
                findings=[self._finding_of(name, each) for each in findings],
                answers={id_: [*map(_answer_of, each)] for id_, each in answers},
                own_faults=own_faults,
            )
            for name, (findings, answers, own_faults) in zip(names, packed, strict=True)
        ]

    def _finding_of(self, node: str, packed: Any) -> Finding:
        id_, subject, key, touches, status, severity, *told = packed
        observed, expected, source, own_why, own_fix, value = told
        return Finding(
            rule=self.rules[id_],
            node=node,
            subject=subject,
            status=_STATUSES[status],
            severity=_SEVERITIES[severity],
            observed=observed,
            expected=expected,
            source=self._sources.setdefault(source, source),
            touches=touches,
            own_why=own_why,
            own_fix=own_fix,
            value=value,
            key=key,
        )


def key_of(subject: Subject[Any]) -> str:
    """By what a subject is compared with like ones on other nodes."""
    return subject.key or subject.label


def told_of_own_fault(error: Exception) -> str:
    """A rule of ours broke: never a verdict, never hidden."""
    return f"{type(error).__name__}: {error}"


def _listed(rule: Rule, node: Node) -> list[Subject[Any]]:
    return list(rule.over(node))


def _decided(rule: Rule, subject: Subject[Any], node: Node) -> Any:
    return rule.decide(node, subject.item)


def _safely(
    own_faults: list[str], rule: Rule, node: Node, ask: Callable[[Node], Any]
) -> Any:
    try:
        return ask(node)
    except NotHere as error:
        return skip(error)
    except Unread as error:
        return unknown(error)
    except Exception as error:
        told = told_of_own_fault(error)
        own_faults.append(f"{rule.id} on {node.name}: {told}")
        return unknown(f"our own fault: {told}")


def _packed_finding(finding: Finding) -> tuple[Any, ...]:
    return (
        finding.rule.id,
        finding.subject,
        finding.key,
        finding.touches,
        _STATUS_AT[finding.status],
        _SEVERITY_AT[finding.severity],
        finding.observed,
        finding.expected,
        finding.source,
        finding.own_why,
        finding.own_fix,
        finding.value,
    )


def _packed_answer(answer: Answer) -> tuple[Any, ...]:
    subject, said, reads = answer
    if not isinstance(said, str):
        said = (
            _STATUS_AT[said.status],
            said.observed,
            said.expected,
            _SEVERITY_AT[said.severity],
            said.why,
            said.fix,
            said.value,
        )  # type: ignore[assignment]
    return subject.label, subject.key, subject.touches, said, reads


def _answer_of(packed: Any) -> Answer:
    label, key, touches, said, reads = packed
    subject = Subject(item=None, label=label, key=key, touches=touches)
    return subject, said if isinstance(said, str) else _outcome_of(*said), reads


def _outcome_of(
    status: int,
    observed: str,
    expected: str,
    severity: int,
    why: str,
    fix: tuple[str, ...],
    value: str | None,
) -> Outcome:
    return Outcome(
        status=None if status < 0 else _STATUSES[status],
        observed=observed,
        expected=expected,
        severity=None if severity < 0 else _SEVERITIES[severity],
        why=why,
        fix=fix,
        value=value,
    )

"""The healthy cohort judges clean, and every check above info finds its one fault."""

from __future__ import annotations

import random

import pytest

from checks.facts import Facts
from checks.finding import Severity, Status
from checks.hearing import Hearing
from checks.judge import judge
from checks.rules import all_rules

NEVER_ON_A_HEALTHY_NODE = {"meta-reachable"}
"""Checks without a mutant here: an unreachable node has no facts to change."""


@pytest.fixture(scope="module")
def told():
    """What untouched nodes said to rules about one node, by their facts."""
    return {}


@pytest.fixture
def parsed(healthy, told, monkeypatch):
    """Mutated documents for `judge`; nodes that are untouched are heard only once.

    What a node says depends on its own facts alone, and is handed over as by another
    process (see `test_the_report_does_not_depend_on_the_number_of_processes`).
    """
    genuine, untouched = Hearing.hear, set()

    def hear(hearing, node, rules):
        if node.facts not in untouched:
            return genuine(hearing, node, rules)
        key = (node.facts, node.name, tuple(rule.id for rule in rules))
        if key not in told:
            told[key] = hearing.packed([genuine(hearing, node, rules)])
        (heard,) = hearing.unpacked(told[key], [node.name])
        return heard

    def make(mutant):
        documents = healthy.parsed(healthy.mutated(mutant))
        untouched.update(each for each in documents if isinstance(each, Facts))
        return documents

    monkeypatch.setattr(Hearing, "hear", hear)
    return make


def test_the_healthy_cohort_has_no_fail_and_no_warn(healthy):
    report = judge(healthy.documents())

    assert report.own_faults == ()
    assert [
        (f.id, f.node, f.subject, f.observed) for f in report.findings if f.bad
    ] == []


def test_every_check_passes_somewhere_on_the_healthy_cohort(healthy):
    report = judge(healthy.documents())

    passed = {f.id for f in report.findings if f.status is Status.PASS}
    assert sorted({rule.id for rule in all_rules()} - passed) == []


def test_the_healthy_cohort_has_nothing_unknown_and_is_ready(healthy):
    report = judge(healthy.documents())

    unknown = {
        (f.id, f.observed) for f in report.findings if f.status is Status.UNKNOWN
    }
    assert sorted(unknown) == []
    assert report.exit_code(strict=True) == 0


def test_a_single_fault_is_one_root_cause_at_its_place(healthy, parsed, mutant):
    report = judge(parsed(mutant))

    assert report.own_faults == ()
    roots = [(f.id, f.node, f.subject, f.status.value) for f in report.roots]
    expected = (mutant.check, mutant.node, healthy.subject(mutant), mutant.status)
    assert roots == [expected]


def test_every_check_of_warning_or_above_has_a_mutant(all_mutants):
    mutated = {mutant.check for mutant in all_mutants}

    judged = {rule.id for rule in all_rules() if rule.severity is not Severity.INFO}
    assert sorted(judged - mutated - NEVER_ON_A_HEALTHY_NODE) == []


def test_the_order_of_nodes_never_changes_the_report(healthy, all_mutants):
    documents = healthy.mutated(all_mutants[0])
    told = judge(documents).to_json()
    rng = random.Random(7)

    for _ in range(3):
        rng.shuffle(documents)
        assert judge(documents).to_json() == told

"""Output that is cut off is never a wrong PASS of a check that reads it.

Two oracles. With the true length beside it (`bytes`, as the collector writes it), cut
output must be worth no more than no output at all: a check that does not PASS without
the command must not PASS with a part of it. Without the length, a fault that is named
when the output is whole must not turn into PASS when it is cut.

Every line end and 200 offsets of everything take an hour of one processor:
`scripts/soak truncation` does that; here a few seeded cuts of everything are made.
"""

from __future__ import annotations

import copy
import os
import random

import pytest

from checks.facts import Facts
from checks.finding import Status
from checks.judge import judge
from checks.rules import all_rules

pytestmark = pytest.mark.timeout(300)
AT, PEER = 7, 8
QUICK, FULL = 4, 200
full = pytest.mark.skipif(
    not os.environ.get("MOONQUAKE_SOAK"),
    reason="takes an hour: scripts/soak truncation (MOONQUAKE_SOAK=1)",
)


def cuts(text, offsets, seed):
    """Every line end, and seeded offsets inside; all shorter than the text."""
    ends = [at + 1 for at, letter in enumerate(text) if letter == "\n"]
    rng = random.Random(seed)
    inside = [rng.randrange(len(text)) for _ in range(offsets)] if text else []
    limit = len(ends) if offsets >= FULL else offsets
    every = {0, *rng.sample(ends, min(limit, len(ends))), *inside}
    return sorted(at for at in every if at < len(text.rstrip("\n")))


def readers(documents):
    """Rules by the command that they read on the node in question."""
    found = {}
    report = judge(documents)
    for finding in report.findings:
        if finding.node == f"node-{AT:02d}":
            for line in finding.source:
                if line in documents[0]["cmds"]:
                    found.setdefault(line, {})[finding.id] = finding.rule
    return {line: list(rules.values()) for line, rules in found.items()}


def passes(documents, rules):
    """Which (check, subject) pairs PASS on the node, with nothing of ours broken."""
    report = judge(documents, rules=rules)
    assert report.own_faults == ()
    return {
        (f.id, f.subject)
        for f in report.findings
        if f.status is Status.PASS and f.node == f"node-{AT:02d}"
    }


def with_entry(documents, line, entry):
    first = dict(documents[0])
    first["cmds"] = {k: v for k, v in first["cmds"].items() if k != line}
    if entry is not None:
        first["cmds"][line] = entry
    return [first, *documents[1:]]


def cut_entry(entry, at, *, measured):
    """The entry with its (last sample's) output cut; `bytes` stays or goes."""
    entry = copy.deepcopy(entry)
    one = entry[-1] if isinstance(entry, list) else entry
    one["stdout"] = one["stdout"].encode()[:at].decode(errors="ignore")
    if not measured:
        for each in entry if isinstance(entry, list) else [entry]:
            each.pop("bytes", None)
    return entry


def whole(entry):
    return (entry[-1] if isinstance(entry, list) else entry)["stdout"]


def measured_cuts_are_worth_nothing(healthy, offsets):
    peer = Facts(healthy.document(PEER))  # parsed once for all cuts
    documents = [healthy.document(AT), peer]
    wrong = []
    for line, rules in sorted(readers(documents).items()):
        entry = documents[0]["cmds"][line]
        allowed = passes(with_entry(documents, line, None), rules)
        for at in cuts(whole(entry), offsets, line):
            cut = cut_entry(entry, at, measured=True)
            more = passes(with_entry(documents, line, cut), rules) - allowed
            wrong += [(line, at, *pair) for pair in sorted(more)]
    return wrong


def test_a_measured_cut_is_worth_no_more_than_nothing(healthy):
    assert measured_cuts_are_worth_nothing(healthy, QUICK) == []


@full
@pytest.mark.timeout(3600)
def test_a_measured_cut_at_every_line_end_is_worth_no_more_than_nothing(healthy):
    assert measured_cuts_are_worth_nothing(healthy, FULL) == []


def unmeasured_cuts_that_hide(healthy, mutant, offsets):
    """Cuts of what the check reads that turn the named fault into PASS."""
    if mutant.fleet or mutant.log:
        return []
    mutated = healthy.mutated(mutant)
    at_node = next(d for d in mutated if d["node"]["hostname"] == mutant.node)
    parsed = zip(mutated, healthy.parsed(mutated), strict=True)
    peers = [peer for document, peer in parsed if document is not at_node][:3]
    rules = [rule for rule in all_rules() if rule.id == mutant.check]
    subject = healthy.subject(mutant)

    def verdict(document):
        report = judge([document, *peers], rules=rules)
        assert report.own_faults == ()
        return {
            (f.subject, f.status): f
            for f in report.findings
            if f.node == mutant.node and f.subject == subject
        }

    (finding,) = verdict(at_node).values()
    wrong = []
    for line in [each for each in finding.source if each in at_node["cmds"]]:
        entry = at_node["cmds"][line]
        for at in cuts(whole(entry), offsets, line):
            (document, *_) = with_entry(
                [at_node], line, cut_entry(entry, at, measured=False)
            )
            if (subject, Status.PASS) in verdict(document):
                wrong.append((line, at))
    return wrong


def test_an_unmeasured_cut_never_hides_a_fault(healthy, mutant):
    assert unmeasured_cuts_that_hide(healthy, mutant, QUICK) == []


@full
@pytest.mark.timeout(3600)
def test_an_unmeasured_cut_at_every_line_end_never_hides_a_fault(healthy, mutant):
    assert unmeasured_cuts_that_hide(healthy, mutant, FULL) == []

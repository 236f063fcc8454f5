"""What the judge does with the answers of rules: collapsing, comparing, waiving."""

from __future__ import annotations

import datetime as dt
import gc
import json

import pytest

from checks.cohort import baseline
from checks.finding import bad, ok, skip, unknown
from checks.judge import FEW_NODES, judge
from checks.profile import Profile
from checks.rules.declare import (
    Judged,
    NotHere,
    Subject,
    check,
    compared,
    fleetwide,
)

ABOUT = {
    "group": "test",
    "why": "because",
    "fix": ("mend it",),
    "source": ("test",),
    "needs": ("/f",),
}


def plain(name, answer, severity="E", **more):
    """A rule that gives one answer, or what a function of the node gives."""

    @check(name, severity=severity, **ABOUT, **more)
    def decide(node, item):
        return answer(node, item) if callable(answer) else answer

    return decide


def likeness(name, severity="E", over=None):
    """Compares the file /f between nodes."""
    more = {} if over is None else {"over": over}

    @compared(name, severity=severity, **ABOUT, **more)
    def decide(node, item):
        return node.facts.line("/f")

    return decide


def nodes(bench, *values, **node):
    return [
        bench.doc(f"node-{n}", files={} if v is None else {"/f": v}, **node)
        for n, v in enumerate(values)
    ]


def told(report):
    return [(f.id, f.node, f.status.value) for f in report.findings]


def statuses(report):
    return {f.node: f.status.value for f in report.findings}


@pytest.mark.parametrize(
    ("severity", "status"), [("C", "FAIL"), ("E", "FAIL"), ("W", "WARN"), ("I", "PASS")]
)
def test_severity_decides_what_a_bad_answer_is(bench, severity, status):
    report = judge([bench.doc()], rules=[plain("a", bad("x", "y"), severity)])

    assert report.findings[0].status == status


def test_a_rule_that_saw_no_subject_is_unknown_never_pass(bench):
    report = judge([bench.doc()], rules=[plain("a", ok("x"), over=lambda node: [])])

    assert told(report) == [("a", "node-a", "UNKNOWN")]


def test_an_unread_fact_is_unknown_with_the_reason(bench):
    rule = plain("a", lambda node, _: ok(node.facts.line("/f")))
    files = {"/f": {"errno": "EACCES"}}

    (finding,) = judge([bench.doc(files=files)], rules=[rule]).findings

    assert (finding.status, finding.observed) == ("UNKNOWN", "/f: EACCES")
    assert finding.source == ("/f",)


def test_a_question_that_does_not_arise_is_skip(bench):
    def decide(node, _):
        raise NotHere("no such thing on this node")

    assert told(judge([bench.doc()], rules=[plain("a", decide)])) == [
        ("a", "node-a", "SKIP")
    ]


def test_a_rule_that_breaks_is_unknown_and_told_as_our_own_fault(bench):
    def decide(node, _):
        raise KeyError("surprise")

    report = judge([bench.doc()], rules=[plain("a", decide)])

    assert told(report) == [("a", "node-a", "UNKNOWN")]
    assert report.own_faults == ("a on node-a: KeyError: 'surprise'",)


def test_dependants_of_a_failure_are_skipped_and_name_the_root_through_the_chain(bench):
    rules = [
        plain("c", bad("x", "y"), requires=("b",)),
        plain("b", ok("fine"), requires=("a",)),
        plain("a", bad("x", "y")),
    ]

    report = judge([bench.doc()], rules=rules)

    assert told(report) == [
        ("a", "node-a", "FAIL"),
        ("b", "node-a", "SKIP"),
        ("c", "node-a", "SKIP"),
    ]
    assert [f.blocked_by for f in report.findings] == [(), ("a",), ("a",)]
    assert [f.id for f in report.roots] == ["a"]


@pytest.mark.parametrize("answer", [ok("x"), unknown("x"), skip("x")])
def test_only_a_failure_blocks(bench, answer):
    rules = [plain("a", answer), plain("b", ok("fine"), requires=("a",))]

    assert told(judge([bench.doc()], rules=rules))[1] == ("b", "node-a", "PASS")


def test_a_warning_blocks_nothing(bench):
    rules = [plain("a", bad("x", "y"), "W"), plain("b", ok("fine"), requires=("a",))]

    assert told(judge([bench.doc()], rules=rules))[1] == ("b", "node-a", "PASS")


def test_a_failed_port_blocks_only_what_touches_it(bench):
    def over(node):
        return [
            Subject(item=n, label=n, touches=frozenset({n, f"net-{n}"}))
            for n in ("mlx5_0", "mlx5_1")
        ]

    def one_is_bad(node, name):
        return bad("x", "y") if name == "mlx5_1" else ok("x")

    rules = [
        plain("a", one_is_bad, over=over),
        plain("b", ok("fine"), over=over, requires=("a",)),
        plain("node-wide", ok("fine"), requires=("a",)),
    ]
    report = judge([bench.doc()], rules=rules)

    assert {(f.id, f.subject): f.status.value for f in report.findings} == {
        ("a", "mlx5_0"): "PASS",
        ("a", "mlx5_1"): "FAIL",
        ("b", "mlx5_0"): "PASS",
        ("b", "mlx5_1"): "SKIP",
        ("node-wide", ""): "PASS",
    }


def test_a_symptom_stays_bad_but_is_no_root_cause(bench):
    rules = [plain("a", bad("x", "y")), plain("b", bad("x", "y"), follows=("a",))]

    report = judge([bench.doc()], rules=rules)

    assert told(report)[1] == ("b", "node-a", "FAIL")
    assert [f.id for f in report.roots] == ["a"]


def test_rules_that_wait_for_each_other_do_not_hang(bench):
    rules = [plain("a", ok("x"), requires=("b",)), plain("b", ok("x"), requires=("a",))]

    assert len(judge([bench.doc()], rules=rules).findings) == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "1", "1", "2"], ["PASS", "PASS", "PASS", "FAIL"]),
        (["1", "1", "2"], ["PASS", "PASS", "FAIL"]),
        (["1", "2"], ["WARN", "WARN"]),
        (["1", "1", "2", "2"], ["WARN"] * 4),
        (["1", "2", "3"], ["WARN"] * 3),
        (["1", "1"], ["PASS", "PASS"]),
        (["1"], ["SKIP"]),
        (["1", "1", "1", None], ["PASS", "PASS", "PASS", "UNKNOWN"]),
        (["1", "2", None, None], ["WARN", "WARN", "UNKNOWN", "UNKNOWN"]),
    ],
)
def test_an_outlier_is_named_by_a_majority_of_at_least_three(bench, values, expected):
    report = judge(nodes(bench, *values), rules=[likeness("a")])

    assert [f.status.value for f in report.findings] == expected


def test_a_difference_of_mere_information_never_warns(bench):
    report = judge(nodes(bench, "1", "1", "1", "2"), rules=[likeness("a", "I")])

    assert set(statuses(report).values()) == {"PASS"}


def test_nodes_of_other_roles_are_not_compared(bench):
    like = nodes(bench, "1", "1", "1", role="store")
    other = bench.doc("node-9", files={"/f": "2"}, role="engine")

    report = judge([*like, other], rules=[likeness("a")])

    assert statuses(report)["node-9"] == "SKIP"


def test_the_cohort_of_the_inventory_wins(bench):
    like = nodes(bench, "1", "1", "1", role="store", cohort="x")
    other = bench.doc("node-9", files={"/f": "2"}, role="engine", cohort="x")

    assert statuses(judge([*like, other], rules=[likeness("a")]))["node-9"] == "FAIL"


def test_a_node_that_does_not_tell_its_role_joins_the_only_cohort_that_fits(bench):
    like = nodes(bench, "1", "1", "1", role="store")
    silent = bench.doc("node-9", files={"/f": "2"})

    assert statuses(judge([*like, silent], rules=[likeness("a")]))["node-9"] == "FAIL"


def test_expectations_of_the_profile_win_over_the_peers(bench):
    profile = Profile.model_validate({"expect": {"a": ["2", "/3.*/", ">=10"]}})
    documents = nodes(bench, "1", "1", "1", "2", "33", "12")

    report = judge(documents, profile, rules=[likeness("a")])

    assert list(statuses(report).values()) == ["FAIL"] * 3 + ["PASS"] * 3


def test_the_inventorys_expectations_of_one_node_win_over_the_profile(bench):
    profile = Profile.model_validate({"expect": {"a": "1"}})
    expect = {"node-1": {"a": ("2",)}}

    report = judge(
        nodes(bench, "1", "2"), profile, rules=[likeness("a")], expect=expect
    )

    assert set(statuses(report).values()) == {"PASS"}


def test_what_changed_on_all_nodes_together_is_seen_against_a_baseline(bench):
    previous = {(f"node-{n}", "a", ""): "1" for n in range(3)}

    report = judge(
        nodes(bench, "2", "2", "2"), rules=[likeness("a")], previous=previous
    )

    assert set(statuses(report).values()) == {"WARN"}
    assert "1 (saved baseline)" in report.findings[0].expected


def test_a_fleet_rule_that_says_nothing_of_a_node_leaves_it_unknown(bench):
    @fleetwide("a", severity="C", **ABOUT)
    def decide(every):
        yield Judged(node=every[0], outcome=ok("x"))

    assert statuses(judge(nodes(bench, "1", "2"), rules=[decide])) == {
        "node-0": "PASS",
        "node-1": "UNKNOWN",
    }


WAIVER = {"id": "a", "node": "node-a", "until": "2026-12-31", "reason": "ticket 7"}


def test_a_waiver_skips_the_finding_and_says_so(bench):
    profile = Profile.model_validate({"waivers": [WAIVER]})
    rules = [plain("a", bad("x", "y")), plain("b", ok("fine"))]

    report = judge([bench.doc()], profile, rules=rules, today=dt.date(2026, 12, 31))

    assert report.findings[0].status == "SKIP"
    assert report.findings[0].to_json()["waived"] == {
        "was": "FAIL",
        "until": "2026-12-31",
        "reason": "ticket 7",
    }
    assert (report.exit_code(), report.summary()["waived"]) == (0, 1)


def test_a_waiver_that_expired_waives_nothing_and_is_told(bench):
    profile = Profile.model_validate({"waivers": [WAIVER]})

    report = judge(
        [bench.doc()],
        profile,
        rules=[plain("a", bad("x", "y"))],
        today=dt.date(2027, 1, 1),
    )

    assert report.exit_code() == 1
    assert "expired on 2026-12-31" in report.expired[0]


def test_the_profile_may_change_a_severity_and_leave_a_check_out(bench):
    profile = Profile.model_validate({"severity": {"a": "W"}, "disable": ["b"]})
    rules = [plain("a", bad("x", "y")), plain("b", bad("x", "y"))]

    assert told(judge([bench.doc()], profile, rules=rules)) == [("a", "node-a", "WARN")]


@pytest.mark.parametrize(
    ("answers", "strict", "code"),
    [
        ([ok("x")], False, 0),
        ([ok("x"), (bad("x", "y"), "W")], False, 0),
        ([ok("x"), (bad("x", "y"), "W")], True, 1),
        ([ok("x"), bad("x", "y")], False, 1),
        ([unknown("x"), bad("x", "y")], False, 1),
        ([ok("x"), unknown("x")], False, 3),
        ([ok("x"), (unknown("x"), "W")], False, 0),
        ([skip("x")], False, 3),
        ([(unknown("x"), "W")], False, 3),
    ],
)
def test_exit_codes(bench, answers, strict, code):
    rules = [
        plain(f"r{at}", *(each if isinstance(each, tuple) else (each,)))
        for at, each in enumerate(answers)
    ]

    assert judge([bench.doc()], rules=rules).exit_code(strict=strict) == code


def test_an_optional_check_may_stay_unknown(bench):
    profile = Profile.model_validate({"optional": ["b"]})
    rules = [plain("a", ok("x")), plain("b", unknown("x"))]

    assert judge([bench.doc()], profile, rules=rules).exit_code() == 0


def test_nothing_to_judge_is_not_ready():
    assert judge([]).exit_code() == 3


def test_two_documents_of_one_hostname_are_both_judged(bench):
    report = judge(
        [bench.doc("n", boot_id="2"), bench.doc("n", boot_id="1")],
        rules=[plain("a", ok("x"))],
    )

    assert [f.node for f in report.findings] == ["n", "n#2"]


@pytest.mark.parametrize(
    "entry",
    [
        {"rc": 127, "stdout": "", "stderr": "not found"},
        {"errno": "ENOENT"},
        {"rc": 0, "stdout": "x", "timeout": True},
        {"rc": 1, "stdout": "", "stderr": "rdma: Operation not permitted"},
        {"rc": 0, "stdout": ""},
    ],
)
def test_where_nothing_could_be_read_nothing_passes_and_the_exit_is_3(bench, entry):
    lines = ("rdma -j -d link", "ip -j -d addr", "dmesg -J")
    document = bench.doc(
        cmds=dict.fromkeys(lines, entry),
        files={"/sys/class/infiniband": {"errno": "EACCES"}},
        collector={"duration_ms": 10},
    )

    report = judge([document])

    assert {f.status.value for f in report.findings} <= {"UNKNOWN", "SKIP"}
    assert report.exit_code() == 3


@pytest.mark.parametrize("junk", [None, 7, "text", [], {"ip -j rule": 3, "/f": None}])
def test_junk_in_a_document_is_unknown_and_never_a_traceback(junk):
    document = {
        "schema": "preflight.facts/1",
        "node": junk,
        "cmds": junk,
        "files": junk,
    }

    report = judge([document])

    assert report.own_faults == ()
    assert not [f for f in report.findings if f.bad]


def test_a_majority_needs_more_than_half_of_the_values_and_three_nodes():
    votes = [("n1", "a"), ("n1", "a"), ("n2", "a"), ("n3", "b")]

    assert baseline(votes).majority == "a"
    assert baseline(votes[:3]).majority is None
    assert baseline([*votes, ("n4", "b"), ("n4", "b")]).majority is None
    assert baseline(votes).histogram == "a x3, b x1"


def test_the_report_does_not_depend_on_the_number_of_processes(healthy, all_mutants):
    faults = [mutant for mutant in all_mutants if not mutant.fleet][:24]
    documents = [
        document
        for at, mutant in enumerate(faults)
        for document in _renamed(healthy.mutated(mutant)[5:8], at)
    ]
    assert len(documents) > FEW_NODES

    told = [judge(documents, processes=count).to_json() for count in (1, 2, 3)]

    assert told[0]["summary"]["FAIL"] > 0
    assert json.dumps(told[0]) == json.dumps(told[1]) == json.dumps(told[2])


def _renamed(documents, at):
    return [
        {**each, "node": {**each["node"], "hostname": f"{at}-{number}"}}
        for number, each in enumerate(documents)
    ]


def test_the_collector_of_cycles_rests_only_while_judging(bench):
    judge([bench.doc()])
    assert gc.isenabled()
    gc.disable()
    try:
        judge([bench.doc()])
        assert not gc.isenabled()
    finally:
        gc.enable()

"""The fleet of the benchmark is a healthy one, also where its numbers are great."""

from __future__ import annotations

from benchmarks.preflight import NODES, _fleet_of, _healthy
from checks.finding import Status
from checks.judge import judge


def test_nodes_of_the_great_fleet_say_what_healthy_nodes_say():
    healthy = _healthy()
    cohort = healthy.Healthy()
    plans = _fleet_of(healthy, NODES)

    report = judge([cohort._document(plans[at]) for at in (0, 300, NODES - 1)])

    told = {
        (finding.id, finding.node, finding.observed)
        for finding in report.findings
        if finding.status not in (Status.PASS, Status.SKIP)
        and not finding.id.startswith("act-")  # its neighbours are not here
    }
    assert report.own_faults == ()
    assert told == set()

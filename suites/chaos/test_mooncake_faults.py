"""Mooncake under the faults an operator meets, in three columns.

Bare, by its own client; behind HiCache's protection; and the reference system under the
same fault. What is expected of each stands in `suites/conformance/`, never here: what
fails as it is known to fail is told and is not red, what does not match is a finding.
Read it with `chaos report --conformance`.

    pytest suites/chaos/test_mooncake_faults.py --system mooncake

Mooncake's own waits are of 30 and 60 s. `--mooncake-profile tuned` shortens those that
can be shortened; faults of the network need `--target netns`, and `--slow`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.conformance.compare import compare_all, judgements_of
from chaos.conformance.faults import FAULTS, fault_of
from chaos.conformance.profile import load_profiles
from chaos.conformance.results import record
from chaos.conformance.side_by_side import columns_of, reference, reference_column
from chaos.judge.validity import judge_evidence
from chaos.systems.base import ClusterSpec
from chaos.systems.mooncake import why_not
from chaos.targets.place import Place

PROFILES = Path(__file__).parent.parent / "conformance"
HERE = [fault.name for fault in FAULTS if not fault.on_hosts]
ON_HOSTS = [fault.name for fault in FAULTS if fault.on_hosts]


@pytest.fixture(scope="module")
def references(chaos_run):
    """The reference system's own clusters, in the same kind of place."""
    options = chaos_run.options
    place = Place(
        kind=options.target,
        inventory=options.inventory,
        fault_ttl_s=options.fault_ttl_s,
    )
    with reference(
        chaos_run.report.path,
        ledger=chaos_run.clusters.ledger,
        place=place,
        command="side by side",
        seed=options.seed,
    ) as clusters:
        yield clusters


@pytest.fixture
def side_by_side(request, chaos_run, cluster_of, inject, judge, history, references):
    """Measures one fault in all columns and lays what was found before the judge."""
    options = chaos_run.options
    if options.system != "mooncake":
        pytest.skip("it compares Mooncake with others: say --system mooncake")
    if why_not():
        pytest.skip(why_not())
    command = chaos_run.reproduce(request.node.nodeid)
    spec = ClusterSpec(time_scale=options.time_scale, seed=options.seed)

    def measure(name):
        fault = fault_of(name)
        rows = columns_of(fault, cluster_of, inject, reproduce=command)
        chaos_run.clusters.stop_cluster()
        own, receipts = reference_column(fault, references, spec, reproduce=command)
        references.stop_cluster()
        judge(judge_evidence(receipts))
        record(history, [*rows, *own])
        found = compare_all([*rows, *own], load_profiles(PROFILES))
        judge(judgements_of(found))
        return found

    return measure


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", HERE)
def test_a_fault_of_a_process_costs_what_is_expected(side_by_side, fault):
    assert side_by_side(fault)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ON_HOSTS)
def test_a_fault_of_the_network_costs_what_is_expected(side_by_side, chaos_run, fault):
    if chaos_run.options.target == "local":
        pytest.skip("it acts on the network of hosts: say --target netns")
    assert side_by_side(fault)

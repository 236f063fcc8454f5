from __future__ import annotations

from chaos.faults import failpoint


def test_hits_since_the_injection_are_the_effect(cluster, control) -> None:
    cluster.hits["store-0", "store.read"] = 7
    fault = failpoint(cluster, control, "store-0", "store.read", "return(-800)")
    fault.inject()
    assert fault.probe().effect == 0

    cluster.hits["store-0", "store.read"] = 10

    assert fault.probe().effect == 3


def test_a_role_that_was_replaced_counts_from_zero(cluster, control) -> None:
    cluster.hits["store-0", "store.read"] = 7
    fault = failpoint(cluster, control, "store-0", "store.read", "return(-800)")
    fault.inject()

    cluster.hits["store-0", "store.read"] = 2

    assert fault.probe().effect == 2


def test_undoing_switches_this_failpoint_off_and_no_other(cluster, control) -> None:
    cluster.start_role("store-0")
    cluster.set_failpoint("store-0", "defect.x", "on")
    fault = failpoint(cluster, control, "store-0", "store.read", "return(-800)")
    fault.inject()
    assert "return(-800)" in fault.verify_reverted()

    fault.revert()

    assert fault.verify_reverted() == ""
    assert cluster.failpoints["store-0", "defect.x"] == "on"


def test_a_role_that_is_gone_took_its_failpoints_with_it(cluster, control) -> None:
    fault = failpoint(cluster, control, "store-0", "store.read", "pause")
    fault.inject()

    fault.revert()

    assert fault.verify_reverted() == ""

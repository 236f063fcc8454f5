from __future__ import annotations

from chaos.safety.limits import (
    BlastLimits,
    FaultWindow,
    Topology,
    host_refusals,
    refusals,
)


def window(role, begin_s, end_s, *, down=True, group="", name=""):
    return FaultWindow(
        name=name or f"kill({role})",
        roles=frozenset({role}),
        down=frozenset({role}) if down else frozenset(),
        begin_s=begin_s,
        end_s=end_s,
        group=group,
    )


def topology(*masters, host_of=str):
    return Topology(masters=frozenset(masters), host_of=host_of)


def told(windows, limits=None, place=None):
    found = refusals(windows, limits or BlastLimits(), place or topology("m-0"))
    return [str(refusal) for refusal in found]


def test_one_store_down_at_a_time_is_allowed() -> None:
    assert told([window("store-0", 0, 10), window("store-1", 10, 20)]) == []


def test_a_second_host_down_is_refused_with_both_numbers() -> None:
    (refusal,) = told([window("store-0", 0, 10), window("store-1", 9.9, 20)])

    assert "2 hosts are down at 9.9 s (store-0, store-1)" in refusal
    assert "max_nodes_down is 1" in refusal
    assert "raise max_nodes_down to 2" in refusal


def test_a_slow_host_is_not_down() -> None:
    slow = window("store-1", 0, 10, down=False)

    assert told([window("store-0", 0, 10), slow]) == []


def test_two_roles_of_one_host_count_once() -> None:
    same = topology("m-0", host_of=lambda role: "h0")
    windows = [
        window("store-0", 0, 10, group="g"),
        window("engine-0", 0, 10, group="g"),
    ]

    assert told(windows, place=same) == []


def test_an_instant_fault_inside_another_window_counts() -> None:
    (refusal,) = told([window("store-0", 0, 10), window("store-1", 5, 5)])

    assert "2 hosts" in refusal


def test_the_only_master_may_not_be_taken_down_unsaid() -> None:
    (refusal,) = told([window("m-0", 0, 10)])

    assert "1 of 1 masters are down at 0 s (m-0): the quorum is lost" in refusal
    assert "allow_quorum_loss: true" in refusal


def test_quorum_loss_is_allowed_when_it_is_said() -> None:
    assert told([window("m-0", 0, 10)], BlastLimits(allow_quorum_loss=True)) == []


def test_a_minority_of_masters_may_be_down_a_majority_not() -> None:
    masters = topology("m-0", "m-1", "m-2")
    two = BlastLimits(max_nodes_down=2)

    assert told([window("m-0", 0, 9)], two, masters) == []
    (refusal,) = told([window("m-0", 0, 9), window("m-1", 3, 9)], two, masters)
    assert "2 of 3 masters" in refusal


def test_half_of_the_masters_is_no_quorum() -> None:
    (refusal,) = told([window("m-0", 0, 9)], place=topology("m-0", "m-1"))

    assert "the quorum is lost" in refusal


def test_two_faults_on_a_host_must_be_composed() -> None:
    slow = window("store-0", 5, 15, down=False, name="latency(store-0)")
    dead = window("store-0", 0, 10)

    (refusal,) = told([dead, slow])
    assert "kill(store-0) and latency(store-0) are on store-0" in refusal
    assert "`together`" in refusal


def test_composed_faults_may_share_a_host() -> None:
    windows = [
        window("store-0", 0, 10, group="step-0"),
        window("store-0", 0, 10, group="step-0", down=False, name="latency"),
    ]

    assert told(windows) == []


def test_a_fault_that_ends_as_the_next_begins_does_not_meet_it() -> None:
    assert told([window("store-0", 0, 10), window("store-0", 10, 20)]) == []


def test_hosts_that_did_not_opt_in_are_refused_by_name() -> None:
    reasons = {"node-1": "", "node-2": "node-2 is in prod, which is protected"}

    found = host_refusals(reasons, reasons.__getitem__)

    assert [refusal.problem for refusal in found] == [reasons["node-2"]]

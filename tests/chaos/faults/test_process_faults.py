"""kill, pause and restart, on real processes."""

from __future__ import annotations

import pytest

from chaos.errors import UsageError
from chaos.faults import kill, pause, restart
from chaos.safety.identity import state_of


def test_a_killed_role_is_gone_and_comes_back_as_another_process(
    cluster, control
) -> None:
    before = cluster.start_role("store-0")
    fault = kill(cluster, control, "store-0")

    fault.inject()

    assert cluster.process("store-0") is None
    assert fault.probe().effect == 1
    fault.revert()
    assert fault.verify_reverted() == ""
    assert cluster.process("store-0").pid != before.pid


def test_what_is_not_running_cannot_be_killed_or_paused(cluster, control) -> None:
    for make in (kill, pause, restart):
        fault = make(cluster, control, "store-9")
        with pytest.raises(UsageError, match="not running"):
            fault.inject()

        fault.revert()
        assert fault.verify_reverted() == ""
        assert cluster.process("store-9") is None


def test_a_kill_that_was_never_injected_has_no_effect(cluster, control) -> None:
    cluster.start_role("store-0")

    assert kill(cluster, control, "store-0").probe().effect == 0


def test_a_kill_whose_role_does_not_start_again_says_what_is_left(
    cluster, control
) -> None:
    cluster.start_role("store-0")
    fault = kill(cluster, control, "store-0")
    fault.inject()
    cluster.refuse_start = True

    with pytest.raises(RuntimeError, match="does not start"):
        fault.revert()
    assert fault.verify_reverted() == "store-0 is not running"


def test_a_paused_role_is_in_state_t_until_it_is_continued(cluster, control) -> None:
    process = cluster.start_role("store-0")
    fault = pause(cluster, control, "store-0")

    fault.inject()

    assert state_of(process.pid) == "T"
    assert fault.probe().effect == 1
    fault.revert()
    assert fault.verify_reverted() == ""
    assert state_of(process.pid) != "T"


def test_undoing_a_pause_tolerates_a_target_that_died_meanwhile(
    cluster, control
) -> None:
    cluster.start_role("store-0")
    fault = pause(cluster, control, "store-0")
    fault.inject()
    cluster.running["store-0"].kill()
    cluster.running["store-0"].wait()

    fault.revert()

    assert fault.verify_reverted() == ""
    assert fault.probe().effect == 0


@pytest.mark.parametrize("orderly", [True, False])
def test_a_restart_replaces_the_process(cluster, control, orderly) -> None:
    before = cluster.start_role("store-0")
    fault = restart(cluster, control, "store-0", orderly=orderly)

    fault.inject()

    assert cluster.process("store-0").pid != before.pid
    assert fault.probe().effect == 1
    fault.revert()
    assert fault.verify_reverted() == ""


def test_a_plan_names_the_process_and_does_nothing(cluster, control) -> None:
    process = cluster.start_role("store-0")

    steps = pause(cluster, control, "store-0").plan()

    assert f"pid {process.pid}" in steps[0]
    assert state_of(process.pid) != "T"

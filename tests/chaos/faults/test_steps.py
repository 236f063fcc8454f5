"""Steps: the spelling of the agent's protocol, and what an operator reads of it."""

from __future__ import annotations

import pytest

from chaos.faults.steps import (
    Step,
    command,
    end,
    holds,
    operation,
    run,
    signal,
    start,
    words,
)
from chaos.hosts.agent import check_steps

STEPS = [
    Step(do=run("ip", "link", "set", "dev", "rail0", "down"), verify=command("true")),
    Step(do=signal(7, 9, "STOP"), undo=signal(7, 9, "CONT")),
    Step(do=start("flap", ["python3", "-c", "pass"]), undo=end("flap")),
    Step(do=operation("fill", path="/s/f", leave_bytes=0, max_bytes=1)),
    Step(do=operation("listen", name="l", address="127.0.0.1", port=7)),
    Step(do=operation("memory", name="m", bytes=1, oom_score_adj=1000)),
]


@pytest.mark.parametrize("step", STEPS)
def test_the_agent_understands_every_step(step) -> None:
    assert check_steps([step.to_json()]) == [step.to_json()]


def test_a_command_reads_as_it_would_be_typed() -> None:
    told = words(run("nft", "-f", "-", stdin="add table inet x\nadd y\n"))

    assert told == "nft -f - <<< 'add table inet x ; add y'"
    assert words(run("ip", "link", "set", "a b")) == "ip link set 'a b'"


def test_an_operation_reads_with_its_fields() -> None:
    assert words(signal(7, 9, "STOP")) == "signal pid=7 start_ticks=9 signal=STOP"


@pytest.mark.parametrize(
    ("rc", "stdout", "expected"),
    [(0, "up", True), (1, "up", False), (0, "down", False), (0, "up, stuck", False)],
)
def test_a_check_holds_by_code_and_by_what_is_said(rc, stdout, expected) -> None:
    check = command("x", rc=0, has="up", lacks="stuck")

    assert holds(check, rc, stdout) is expected


def test_all_that_a_step_may_run_is_known() -> None:
    step = Step(do=run("a"), undo=run("b"), renew=run("c"))

    assert [action["run"][0] for action in step.actions] == ["a", "b", "c"]

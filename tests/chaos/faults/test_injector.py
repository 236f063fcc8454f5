from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from chaos.errors import ResidualFault
from chaos.faults.base import Evidence
from chaos.faults.injector import Injector
from chaos.safety.ledger import FaultState, read_ledger


@dataclass
class FakeFault:
    """Writes what is done to it into a shared log."""

    target: str
    log: list[str] = field(default_factory=list)
    effect: float = 1.0
    stuck: int = 0
    inject_error: Exception | None = None
    probe_error: Exception | None = None
    kind = "fake"

    def plan(self) -> list[str]:
        return [f"break {self.target}"]

    def inject(self) -> None:
        self.log.append(f"inject {self.target}")
        if self.inject_error is not None:
            raise self.inject_error

    def probe(self) -> Evidence:
        if self.probe_error is not None:
            raise self.probe_error
        return Evidence(measure="fakes", effect=self.effect)

    def revert(self) -> None:
        self.log.append(f"revert {self.target}")
        self.stuck -= 1

    def verify_reverted(self) -> str:
        return "still there" if self.stuck > 0 else ""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def inject(cluster, control, ledger, clock):
    return Injector(
        lambda: cluster, lambda: control, ledger, clock=clock, wait=clock.wait
    )


def states(ledger) -> list[FaultState]:
    import json

    rows = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    return [FaultState(row["state"]) for row in rows if row["row"] == "fault"]


def test_a_fault_walks_through_every_state_on_disk(inject, ledger) -> None:
    with inject(FakeFault("a")):
        pass

    assert states(ledger) == [
        FaultState.PLANNED,
        FaultState.ARMED,
        FaultState.ACTIVE,
        FaultState.REVERTING,
        FaultState.REVERTED,
    ]


def test_the_ledger_knows_a_fault_before_it_happens(inject, ledger) -> None:
    seen: list[FaultState] = []

    class Watching(FakeFault):
        def inject(self) -> None:
            (fault,) = read_ledger(ledger.path).faults.values()
            seen.append(fault.state)

    with inject(Watching("a")):
        pass

    assert seen == [FaultState.ARMED]


def test_a_receipt_has_the_instants_and_the_evidence(inject, clock) -> None:
    clock.now = 5.0
    injection = inject(FakeFault("a"))
    clock.now = 7.0
    with injection as receipt:
        clock.now = 9.0

    assert (receipt.planned_at_s, receipt.injected_at_s) == (5.0, 7.0)
    assert receipt.reverted_at_s == 9.0
    assert receipt.had_effect
    assert inject.without_effect == []


def test_the_strongest_evidence_is_kept(inject) -> None:
    fault = FakeFault("a", effect=0.0)
    injection = inject(fault)
    with injection as receipt:
        fault.effect = 8.0
        injection.sample()
        fault.effect = 3.0

    assert receipt.evidence is not None
    assert receipt.evidence.effect == 8.0


def test_a_fault_without_effect_is_told(inject) -> None:
    with inject(FakeFault("a", effect=0.0)) as receipt:
        pass

    assert inject.without_effect == [receipt]


def test_a_probe_that_breaks_is_no_evidence_and_no_crash(inject) -> None:
    with inject(FakeFault("a", probe_error=OSError("gone"))) as receipt:
        pass

    assert not receipt.had_effect
    assert receipt.evidence is not None
    assert "gone" in receipt.evidence.detail


def test_faults_are_undone_in_reverse_order(inject) -> None:
    log: list[str] = []
    for name in "abc":
        inject(FakeFault(name, log)).start()

    inject.revert_all()

    assert log[3:] == ["revert c", "revert b", "revert a"]


def test_together_breaks_several_and_undoes_them_in_reverse(inject) -> None:
    log: list[str] = []
    pair = [inject(FakeFault(name, log)) for name in "ab"]
    with inject.together(*pair) as receipts:
        assert [receipt.target for receipt in receipts] == ["a", "b"]

    assert log == ["inject a", "inject b", "revert b", "revert a"]


def test_what_was_never_injected_is_never_undone(inject) -> None:
    log: list[str] = []
    inject(FakeFault("a", log))

    inject.revert_all()

    assert log == []


def test_a_failing_body_still_undoes_and_keeps_its_own_error(inject, ledger) -> None:
    log: list[str] = []
    with pytest.raises(ZeroDivisionError), inject(FakeFault("a", log)):
        1 / 0  # noqa: B018

    assert log == ["inject a", "revert a"]
    assert states(ledger)[-1] is FaultState.REVERTED


def test_an_undo_that_fails_after_a_failing_body_is_a_note_on_its_error(inject) -> None:
    with (
        pytest.raises(ZeroDivisionError) as failed,
        inject(FakeFault("a", stuck=10_000)),
    ):
        1 / 0  # noqa: B018

    assert "still there" in failed.value.__notes__[0]
    assert len(inject.residual) == 1


def test_an_injection_that_fails_half_way_is_undone_at_once(inject, ledger) -> None:
    log: list[str] = []
    fault = FakeFault("a", log, inject_error=OSError("half way"))

    with pytest.raises(OSError, match="half way"):
        inject(fault).start()

    assert log == ["inject a", "revert a"]
    assert states(ledger)[-1] is FaultState.REVERTED


def test_undoing_is_tried_again_until_it_holds(inject, ledger) -> None:
    log: list[str] = []
    with inject(FakeFault("a", log, stuck=3)):
        pass

    assert log.count("revert a") == 3
    assert states(ledger)[-1] is FaultState.REVERTED


def test_what_is_left_after_the_deadline_is_residual(inject, ledger, clock) -> None:
    injection = inject(FakeFault("a", stuck=10_000))
    injection.start()

    with pytest.raises(ResidualFault, match="still there"):
        injection.stop()

    assert clock.now <= inject.revert_deadline_s + 1
    assert states(ledger)[-1] is FaultState.RESIDUAL
    assert [receipt.residual for receipt in inject.residual] == ["still there"]


def test_one_fault_that_stays_does_not_keep_the_others_in(inject) -> None:
    log: list[str] = []
    inject(FakeFault("a", log)).start()
    inject(FakeFault("b", log, stuck=10_000)).start()

    with pytest.raises(ExceptionGroup):
        inject.revert_all()

    assert log[-1] == "revert a"


def test_a_fault_is_injected_at_most_once(inject) -> None:
    injection = inject(FakeFault("a"))
    injection.start()

    with pytest.raises(RuntimeError, match="before"):
        injection.start()
    inject.revert_all()


def test_stopping_twice_undoes_once(inject) -> None:
    log: list[str] = []
    injection = inject(FakeFault("a", log))
    injection.start()
    injection.stop()
    injection.stop()

    assert log.count("revert a") == 1


def test_named_faults_are_built_on_the_current_cluster(inject, cluster) -> None:
    cluster.start_role("store-0")

    with inject.kill("store-0") as receipt:
        assert cluster.process("store-0") is None

    assert (receipt.kind, receipt.target) == ("kill", "store-0")
    assert cluster.process("store-0") is not None


def test_observers_hear_of_every_change(cluster, control, ledger) -> None:
    heard: list[str] = []
    inject = Injector(
        lambda: cluster,
        lambda: control,
        ledger,
        observer=lambda event, receipt: heard.append(f"{event} {receipt.target}"),
    )
    with inject(FakeFault("a")):
        pass

    assert heard == ["injected a", "reverting a", "reverted a"]


def test_what_nothing_helped_against_is_not_tried_for_ever(inject, clock) -> None:
    fault = FakeFault("a", stuck=1000)

    def give_up() -> str:
        fault.log.append("verify")
        raise ResidualFault(fault="fake", target="a", reason="restart it by hand")

    fault.verify_reverted = give_up
    injection = inject(fault)
    injection.start()

    with pytest.raises(ResidualFault, match="restart it by hand"):
        injection.stop()
    assert fault.log.count("verify") == 1


def test_how_a_fault_was_undone_stands_in_receipt_and_ledger(inject, ledger) -> None:
    fault = FakeFault("a")
    fault.undone = "removed by restarting the proxy server"

    with inject(fault) as receipt:
        pass

    (found,) = read_ledger(ledger.path).faults.values()
    assert receipt.parameters["undone"] == fault.undone
    assert (found.state, found.detail) == (FaultState.REVERTED, fault.undone)


@dataclass
class Interrupted(FakeFault):
    """A signal arrives while it is read or undone, as `pytest.exit` raises it."""

    signals: list[str] = field(default_factory=list)

    def probe(self) -> Evidence:
        self._arrive("probe")
        return super().probe()

    def revert(self) -> None:
        self._arrive("revert")
        super().revert()

    def _arrive(self, where: str) -> None:
        if where in self.signals:
            self.signals.remove(where)
            raise pytest.exit.Exception("SIGTERM", returncode=143)


@pytest.mark.parametrize("where", ["probe", "revert"])
def test_a_signal_while_a_fault_is_undone_ends_the_run_after_the_undoing(
    inject, ledger, where
) -> None:
    fault = Interrupted("a")
    injection = inject(fault)
    injection.start()
    fault.signals.append(where)

    with pytest.raises(pytest.exit.Exception):
        injection.stop()

    assert fault.log == ["inject a", "revert a"]
    assert states(ledger)[-1] is FaultState.REVERTED
    assert injection.receipt.residual == ""


def test_a_signal_while_evidence_is_read_is_no_missing_evidence(inject) -> None:
    fault = Interrupted("a", signals=["probe"])

    with pytest.raises(pytest.exit.Exception):
        inject(fault).start()

    inject.revert_all()
    assert fault.log == ["inject a", "revert a"]


def test_a_signal_outranks_the_error_of_a_test(inject) -> None:
    fault = Interrupted("a")

    def body() -> None:
        with inject(fault):
            fault.signals.append("revert")
            raise ValueError("the test's own")

    with pytest.raises(pytest.exit.Exception):
        body()

    assert fault.log[-1] == "revert a"


@pytest.mark.parametrize("error", [pytest.exit.Exception("TERM"), KeyboardInterrupt()])
def test_a_signal_while_all_is_undone_keeps_no_fault_in(
    inject, monkeypatch, error
) -> None:
    first, last = inject(FakeFault("first")), inject(FakeFault("last"))
    first.start()
    last.start()

    def stop() -> None:
        raise error

    monkeypatch.setattr(last, "stop", stop)
    with pytest.raises(type(error)):
        inject.revert_all()

    assert not first.active


@pytest.mark.parametrize("state", [FaultState.ARMED, FaultState.ACTIVE])
@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.exit.Exception])
def test_a_signal_right_behind_a_row_of_the_start_leaves_no_fault_open(
    inject, ledger, monkeypatch, state, error
) -> None:
    """The handler raises between any two steps of the main thread."""
    _interrupt_behind(ledger, monkeypatch, state, error)

    with pytest.raises(error):
        inject(FakeFault("a")).start()
    inject.revert_all()

    assert read_ledger(ledger.path).open_faults == []


@pytest.mark.parametrize("state", [FaultState.REVERTING, FaultState.REVERTED])
@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.exit.Exception])
def test_a_signal_right_behind_a_row_of_the_end_leaves_no_fault_open(
    inject, ledger, monkeypatch, state, error
) -> None:
    injection = inject(FakeFault("a"))
    injection.start()
    _interrupt_behind(ledger, monkeypatch, state, error)

    with pytest.raises(error):
        injection.stop()
    inject.revert_all()

    assert read_ledger(ledger.path).open_faults == []
    assert not injection.active


def test_a_signal_right_before_the_last_row_leaves_no_fault_open(
    inject, ledger, monkeypatch
) -> None:
    injection = inject(FakeFault("a"))
    injection.start()
    write, due = ledger.fault, [KeyboardInterrupt]

    def fault(name, state, **more):
        if state is FaultState.REVERTED and due:
            raise due.pop()
        write(name, state, **more)

    monkeypatch.setattr(ledger, "fault", fault)
    with pytest.raises(KeyboardInterrupt):
        injection.stop()
    inject.revert_all()

    assert read_ledger(ledger.path).open_faults == []


def _interrupt_behind(ledger, monkeypatch, wanted, error) -> None:
    write, due = ledger.fault, [error("signal")]

    def fault(name, state, **more):
        write(name, state, **more)
        if state is wanted and due:
            raise due.pop()

    monkeypatch.setattr(ledger, "fault", fault)

"""The engine behind the `inject` fixture: every fault walks the same path.

planned (row on disk) -> armed (row on disk) -> injected -> evidence -> reverting ->
verified reverted, or residual. Faults are undone in reverse order, whatever happened in
between; what cannot be undone within its deadline is residual and stops the session.
An error of the undoing never hides the error that led to it.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

import chaos.faults as build
from chaos.errors import ResidualFault
from chaos.faults.base import Evidence, Receipt
from chaos.safety.ledger import FaultState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from chaos.faults.base import Fault
    from chaos.faults.toxic import ToxicControl
    from chaos.safety.ledger import Ledger
    from chaos.systems.base import Cluster, Link

    Links = str | Link | Iterable[str | Link]
    Observer = Callable[[str, Receipt], None]
    Guard = Callable[[Fault, list[Fault]], None]

REVERT_DEADLINE_S = 15.0
_RETRY_S = 0.05
SIGNALLED: Final = pytest.exit.Exception
"""What a signal raises, wherever it arrives: an `Exception`, and never ours to keep."""
_numbers = itertools.count(1)


class Injection:
    """One fault of one test: a context manager, or `start` and `stop` by hand."""

    def __init__(self, fault: Fault, owner: Injector) -> None:
        self.fault = fault
        self._owner = owner
        self.receipt = Receipt(
            fault_id=f"{fault.kind}-{next(_numbers)}",
            kind=fault.kind,
            target=fault.target,
            planned_at_s=owner.clock(),
        )
        self.receipt.parameters["plan"] = fault.plan()
        self._record(FaultState.PLANNED, "; ".join(fault.plan())[:1000])

    @property
    def active(self) -> bool:
        receipt = self.receipt
        return receipt.injected_at_s is not None and receipt.reverted_at_s is None

    def start(self) -> Receipt:
        """Injects the fault, once. A fault that fails half-way is undone at once."""
        if self.receipt.injected_at_s is not None:
            message = f"{self.receipt.fault_id} was injected before"
            raise RuntimeError(message)
        self._owner.admit(self)
        self.receipt.injected_at_s = self._owner.clock()
        try:
            # from the first row on somebody undoes it: a signal may come at any time
            self._owner.started(self)
            self._record(FaultState.ARMED)
            self.fault.inject()
        except BaseException as error:
            self._undo_after(error)
            raise
        self._record(FaultState.ACTIVE)
        self.sample()
        self._owner.notify("injected", self.receipt)
        return self.receipt

    def sample(self) -> Evidence:
        """Reads the effect now and keeps the strongest evidence seen so far."""
        try:
            evidence = self.fault.probe()
        except SIGNALLED:
            raise
        except Exception as error:  # no evidence is a verdict, not a crash
            evidence = Evidence(measure="none", effect=0.0, detail=repr(error))
        best = self.receipt.evidence
        if best is None or evidence.effect >= best.effect:
            self.receipt.evidence = evidence
        return evidence

    def stop(self) -> Receipt:
        """Takes the last evidence and undoes the fault; a second call does nothing.

        Raises:
            ResidualFault: Something of the fault is still there after the deadline.
        """
        try:
            return self._stop()
        except SIGNALLED as error:  # what was begun is ended first
            self._undo_after(error)
            raise

    def _stop(self) -> Receipt:
        if not self.active:
            return self.receipt
        self.sample()
        self.receipt.reverting_at_s = self._owner.clock()
        self._record(FaultState.REVERTING)
        self._owner.notify("reverting", self.receipt)
        residual = self._revert()
        reverted_at_s = self._owner.clock()
        self.receipt.residual = residual
        undone = getattr(self.fault, "undone", "")  # how, of faults that can tell
        if undone:
            self.receipt.parameters["undone"] = undone
        state = FaultState.RESIDUAL if residual else FaultState.REVERTED
        self._record(state, residual or undone)
        self.receipt.reverted_at_s = reverted_at_s  # over once that is on disk
        self._owner.notify(state.value, self.receipt)
        if residual:
            receipt = self.receipt
            raise ResidualFault(
                fault=receipt.kind, target=receipt.target, reason=residual
            )
        return self.receipt

    def __enter__(self) -> Receipt:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._undo_after(error)

    def _undo_after(self, error: BaseException) -> None:
        """Undoes the fault on the way of an error, which stays the first one.

        But for a signal: it ends the run, whatever the test had to say.
        """
        try:
            self.stop()
        except SIGNALLED:
            raise
        except Exception as second:
            error.add_note(f"and then: {second}")

    def _revert(self) -> str:
        """Reverts and verifies until nothing is left or the deadline has passed."""
        owner = self._owner
        deadline = owner.clock() + owner.revert_deadline_s
        while True:
            residual, final = self._revert_once()
            if not residual or final or owner.clock() >= deadline:
                return residual
            owner.wait(_RETRY_S)

    def _revert_once(self) -> tuple[str, bool]:
        """What is left, and whether trying again is of no use."""
        try:
            self.fault.revert()
            return self.fault.verify_reverted(), False
        except ResidualFault as error:  # it went all the way, the last resort included
            return str(error), True
        except SIGNALLED:
            raise
        except Exception as error:  # reported as residual, with its reason
            return f"{type(error).__name__}: {error}", False

    def _record(self, state: FaultState, detail: str = "") -> None:
        receipt = self.receipt
        self._owner.ledger.fault(
            receipt.fault_id,
            state,
            kind=receipt.kind,
            target=receipt.target,
            detail=detail,
        )


class Injector:
    """Builds faults on the cluster of a test and undoes them all in the end.

    Cluster and proxy client (None on hosts) are asked for when a fault is built: a test
    may change to a cluster of another shape.
    """

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        control: Callable[[], ToxicControl | None],
        ledger: Ledger,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        revert_deadline_s: float = REVERT_DEADLINE_S,
        observer: Observer | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.ledger = ledger
        self.clock = clock
        self.wait = wait
        self.revert_deadline_s = revert_deadline_s
        self._cluster = cluster
        self._control = control
        self._observer = observer
        self._guard = guard
        self._started: list[Injection] = []

    @property
    def receipts(self) -> list[Receipt]:
        """Of every fault that was injected, in order."""
        return [injection.receipt for injection in self._started]

    @property
    def residual(self) -> list[Receipt]:
        return [receipt for receipt in self.receipts if receipt.residual]

    @property
    def without_effect(self) -> list[Receipt]:
        """Faults that are over and of which nothing was seen: INCONCLUSIVE."""
        return [receipt for receipt in self.receipts if not receipt.had_effect]

    def __call__(self, fault: Fault) -> Injection:
        """Any fault object, also one of a suite's own."""
        return Injection(fault, self)

    def kill(self, role: str) -> Injection:
        return self._build(build.kill, role)

    def pause(self, role: str) -> Injection:
        return self._build(build.pause, role)

    def restart(self, role: str, *, orderly: bool = False) -> Injection:
        return self._build(build.restart, role, orderly=orderly)

    def nic_down(self, store: str, rail: str = "rail0") -> Injection:
        return self._build(build.nic_down, store, rail)

    def flap(
        self,
        store: str,
        rail: str = "rail0",
        *,
        down_s: float = 0.5,
        up_s: float = 0.5,
    ) -> Injection:
        return self._build(build.flap, store, rail, down_s=down_s, up_s=up_s)

    def partition(self, role: str, *, from_: str = "", plane: str = "") -> Injection:
        return self._build(build.partition, role, from_=from_, plane=plane)

    def latency(self, links: Links, latency_ms: int, jitter_ms: int = 0) -> Injection:
        return self._build(build.latency, links, latency_ms, jitter_ms)

    def bandwidth(self, links: Links, kb_per_s: int) -> Injection:
        return self._build(build.bandwidth, links, kb_per_s)

    def loss(self, links: Links, percent: float) -> Injection:
        return self._build(build.loss, links, percent)

    def corrupt(self, links: Links, percent: float) -> Injection:
        return self._build(build.corrupt, links, percent)

    def reset(self, links: Links) -> Injection:
        return self._build(build.reset, links)

    def blackhole(self, links: Links) -> Injection:
        return self._build(build.blackhole, links)

    def tap(self, links: Links) -> Injection:
        return self._build(build.tap, links)

    def failpoint(self, role: str, name: str, spec: str) -> Injection:
        return self._build(build.failpoint, role, name, spec)

    def reorder(self, links: Links, percent: float, latency_ms: int = 10) -> Injection:
        return self._build(build.reorder, links, percent, latency_ms)

    def clock_step(self, role: str, step_s: float) -> Injection:
        return self._build(build.clock_step, role, step_s)

    def memory(self, role: str, size_bytes: int) -> Injection:
        return self._build(build.memory, role, size_bytes)

    def memory_limit(self, role: str, limit_bytes: int) -> Injection:
        return self._build(build.memory_limit, role, limit_bytes)

    def cpu(self, role: str, workers: int = 1) -> Injection:
        return self._build(build.cpu, role, workers)

    def disk_full(self, role: str, leave_bytes: int = 0) -> Injection:
        return self._build(build.disk_full, role, leave_bytes)

    def slow_disk(self, role: str, kb_per_s: int) -> Injection:
        return self._build(build.slow_disk, role, kb_per_s)

    def port_taken(self, role: str) -> Injection:
        return self._build(build.port_taken, role)

    @contextmanager
    def together(self, *injections: Injection) -> Iterator[list[Receipt]]:
        """Several faults at once; undone in reverse order."""
        with ExitStack() as stack:
            yield [stack.enter_context(injection) for injection in injections]

    def revert_all(self) -> None:
        """Undoes what is still active, newest first, all of it, whatever fails.

        Raises:
            ExceptionGroup: What could not be undone, one error a fault.
            BaseException: The run was told to end meanwhile; all the others were
                undone first.
        """
        errors: list[Exception] = []
        ended: BaseException | None = None
        for injection in reversed(self._started):
            try:
                injection.stop()
            except (SIGNALLED, KeyboardInterrupt) as error:
                ended = ended or error
            except Exception as error:
                errors.append(error)
        if ended is not None:
            raise ended
        if errors:
            message = f"{len(errors)} faults were left behind"
            raise ExceptionGroup(message, errors)

    def admit(self, injection: Injection) -> None:
        """Asks the guard whether one more fault may start; it raises when not."""
        if self._guard is not None:
            active = [each.fault for each in self._started if each.active]
            self._guard(injection.fault, active)

    def started(self, injection: Injection) -> None:
        """Called by an injection just before it acts."""
        self._started.append(injection)

    def notify(self, event: str, receipt: Receipt) -> None:
        if self._observer is not None:
            self._observer(event, receipt)

    def _build(self, make: Callable[..., Fault], *args: Any, **kw: Any) -> Injection:
        return self(make(self._cluster(), self._control(), *args, **kw))

"""A stage outside of pytest: cluster, injector, load and results for `chaos run`.

What the plugin's fixtures are to a suite. One bench keeps its cluster from scenario to
scenario while they ask for the same shape; every scenario has results of its own.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.breakers import note_breakers
from chaos.clusters import Clusters
from chaos.driver import LoadDriver
from chaos.errors import NotHere
from chaos.faults.injector import REVERT_DEADLINE_S, Injector
from chaos.judge.validity import judge_evidence, judge_leases
from chaos.report.run import RunReport
from chaos.run import proxy_flavour
from chaos.safety.halt import HostLever, LeverPoll, Levers, LocalLever
from chaos.scenario.judges import judge_played
from chaos.scenario.player import Stage, play
from chaos.steady import SteadyState
from chaos.targets.place import Place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.faults.base import Receipt
    from chaos.judge.verdict import Judgement, Verdict
    from chaos.load.sample import Sample
    from chaos.report.document import Document
    from chaos.report.live import LiveLine
    from chaos.safety.halt import Lever
    from chaos.safety.ledger import Ledger
    from chaos.scenario.player import Played
    from chaos.scenario.schedule import Schedule
    from chaos.scenario.schema import Scenario
    from chaos.systems.base import Cluster

_UNCOUNTED = frozenset({"tap"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What the operator chose for all scenarios of a run."""

    system: str = "refimpl"
    place: Place = field(default_factory=Place)
    time_scale: float = 0.1
    results: str = "results"
    defects: tuple[str, ...] = ()
    unreported: frozenset[Verdict] = frozenset()
    """Runs that end like this get no reports: a soak throws their results away."""

    @property
    def again(self) -> list[str]:
        """The options that make a run what it was, beside its seed."""
        words = ["--time-scale", f"{self.time_scale:g}"]
        words += [word for name in self.defects for word in ("--defect", name)]
        if self.system != "refimpl":
            words += ["--system", self.system]
        if not self.place.local:
            words += ["--target", self.place.kind]
        if self.place.inventory:
            words += ["--inventory", self.place.inventory, "--arm"]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One scenario, judged: its document, and where the results are."""

    document: Document
    played: Played | None
    path: Path


class Bench:
    """Plays scenarios one after the other; nothing starts before the first one.

    Args:
        options: where and how.
        levers: beside those of the hosts of a cluster.
        live: the line that shows what is going on, None for silence.
        logs: where roles log, instead of the results of the first scenario.
    """

    def __init__(
        self,
        options: BenchOptions,
        *,
        levers: Sequence[Lever] | None = None,
        live: LiveLine | None = None,
        logs: Path | None = None,
    ) -> None:
        self.options = options
        self._logs = logs
        self._levers = list(levers) if levers is not None else [LocalLever()]
        self._live = live
        self._clusters: Clusters | None = None
        self._cluster: Cluster | None = None
        self._report: RunReport | None = None

    @property
    def ledger(self) -> Ledger | None:
        return self._clusters.ledger if self._clusters is not None else None

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    @property
    def clusters(self) -> Clusters:
        """Made on demand; logs of the roles go to the results of the first scenario."""
        if self._clusters is None:
            assert self._report is not None
            self._clusters = Clusters(
                system=self.options.system,
                run_dir=self._logs or self._report.path,
                command=shlex.join(sys.argv),
                place=self.options.place,
            )
        return self._clusters

    def run(self, scenario: Scenario, schedule: Schedule, name: str) -> Result:
        """Plays and judges one scenario; its faults are undone whatever happens.

        An error of the harness is written down in the results and raised.
        """
        report = self._report = self._open(schedule)
        report.history.test = name
        injector: Injector | None = None
        played: Played | None = None
        began_s = time.monotonic()
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._quiet)
                injector = self._injector(scenario, schedule)
                stack.callback(injector.revert_all)
                played = self._play(scenario, schedule, injector, name)
            note_breakers(report.history, self.cluster, since_s=began_s)
            self._conclude(name, report, injector, judge_played(played, self.cluster))
        except BaseException as error:
            self._failed(name, report, injector, error)
            raise
        document = report.close(unreported=self.options.unreported)
        assert document is not None
        return Result(document=document, played=played, path=report.path)

    def close(self) -> None:
        """Stops the cluster and gives everything back."""
        clusters, self._clusters, self._cluster = self._clusters, None, None
        if clusters is not None:
            clusters.close()

    # -- inside --------------------------------------------------------------------

    def _open(self, schedule: Schedule) -> RunReport:
        options = self.options
        return RunReport.open(
            options.results,
            "scenarios",
            schedule.seed,
            time_scale=options.time_scale,
            system=options.system,
            target=options.place.kind,
            options=options.again,
            command=("chaos", "run"),
        )

    def _injector(self, scenario: Scenario, schedule: Schedule) -> Injector:
        """An injector on a cluster of the scenario's shape, empty and healthy."""
        spec = scenario.cluster.spec(
            time_scale=self.options.time_scale,
            seed=schedule.seed,
            defects=self.options.defects,
        )
        clusters = self.clusters
        self._cluster = None
        self._cluster = clusters.get(spec)
        self._require(scenario)
        return Injector(
            lambda: self.cluster,
            lambda: clusters.control,
            clusters.ledger,
            observer=self._on_fault,
            revert_deadline_s=REVERT_DEADLINE_S,
        )

    def _require(self, scenario: Scenario) -> None:
        """Plays nothing where the target lacks what the scenario names.

        Raises:
            NotHere: With the target's own reason.
        """
        target = self.clusters.target
        assert target is not None
        there = target.capabilities
        if self.options.place.local:
            flavour = proxy_flavour()
            there |= {flavour if flavour == "toxiproxy" else "embedded_proxy"}
        for capability in scenario.requires:
            if capability not in there:
                reason = target.why_not(capability) or "no such thing is known"
                raise NotHere(
                    capability=capability,
                    target=self.options.place.kind,
                    reason=reason,
                )

    def _play(
        self, scenario: Scenario, schedule: Schedule, injector: Injector, name: str
    ) -> Played:
        report = self._report
        assert report is not None
        report.history.limits(self.cluster.limits)
        if self._live is not None:
            self._live.test(name)
        stage = Stage(
            cluster=self.cluster,
            inject=injector,
            load=LoadDriver(
                lambda: self.cluster, history=report.history, on_sample=self._on_sample
            ),
            steady=SteadyState(lambda: self.cluster),
        )
        levers = Levers([*self._levers, *host_levers(self.cluster)])
        return play(scenario, schedule, stage, lever=LeverPoll(levers))

    def _conclude(
        self,
        name: str,
        report: RunReport,
        injector: Injector,
        judged: list[Judgement],
    ) -> None:
        """Everything on disk: judgements, receipts, and what was left behind."""
        report.add_test(name)
        counted = [r for r in injector.receipts if r.kind not in _UNCOUNTED]
        evidence = [judge_evidence(counted)] if counted else []
        for judgement in (*judged, *evidence, *self._leases(injector)):
            report.add_judgement(name, judgement)
        self._receipts(name, report, injector)

    def _leases(self, injector: Injector) -> list[Judgement]:
        """A play on hosts that healed behind our back proves nothing."""
        target = self.clusters.target
        hosts = getattr(target, "hosts", None)
        if hosts is None or not injector.receipts:
            return []
        broken: tuple[str, ...] = getattr(target, "broken_promises", ())
        return [judge_leases(broken, len(hosts.all))]

    def _failed(
        self,
        name: str,
        report: RunReport,
        injector: Injector | None,
        error: BaseException,
    ) -> None:
        """The results of a play that broke: why, and what is left."""
        report.add_test(name)
        first = str(error).strip().splitlines() or [""]
        report.add_error(name, f"{type(error).__name__}: {first[0][:200]}")
        if injector is not None:
            self._receipts(name, report, injector)
        report.close(aborted=type(error).__name__)

    def _receipts(self, name: str, report: RunReport, injector: Injector) -> None:
        for receipt in injector.receipts:
            report.add_receipt(receipt, name)
        for receipt in injector.residual:
            what = f"{receipt.kind}({receipt.target}): {receipt.residual}"
            report.add_residual(what)

    def _quiet(self) -> None:
        if self._live is not None:
            self._live.clear()

    def _on_sample(self, arm: str, sample: Sample) -> None:
        assert self._report is not None
        self._report.record(f"ttft-{arm}", sample.intended_s, sample.ttft_s)
        if self._live is not None:
            self._live.sample(sample)

    def _on_fault(self, event: str, receipt: Receipt) -> None:
        assert self._report is not None
        name = f"{receipt.kind}({receipt.target})"
        if event == "injected":
            self._report.history.fault("begin", receipt)
            if self._live is not None:
                self._live.fault(name)
        elif event in ("reverted", "residual"):
            self._report.history.fault("end", receipt)
            if self._live is not None:
                self._live.healed(name)


def host_levers(cluster: Cluster) -> list[Lever]:
    """The lever on every host of a cluster; none on the local target."""
    if cluster.hosts is None:
        return []
    return [HostLever.of_agent(host.name, host.agent) for host in cluster.hosts.all]

"""One run of the suites in one process: seed, results, signals, clusters, summary.

Under xdist the controller owns the seed, the results directory and the summary; every
worker owns a run of its own, with a cluster of its own, and attaches to the results.

This module is imported by every pytest that has us installed: what costs time to import
(HTTP, rich, histograms) is imported where it is used.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from chaos.errors import NotHere, ProcessFailed, UsageError
from chaos.faults.injector import Injector
from chaos.report.document import reproduce
from chaos.report.live import LiveLine
from chaos.safety.signals import SignalGuard
from chaos.steady import SteadyState
from chaos.systems.base import ClusterSpec, Observed
from chaos.targets.local import LocalTarget
from chaos.targets.place import Place
from chaos.ticker import Ticker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pytest

    from chaos.case import Case
    from chaos.clusters import Clusters
    from chaos.driver import LoadDriver
    from chaos.faults.base import Fault, Receipt
    from chaos.history.history import History
    from chaos.hosts.host import Hosts
    from chaos.load.sample import Sample
    from chaos.options import Options
    from chaos.report.document import Document
    from chaos.report.run import RunReport
    from chaos.safety.halt import LeverWatch, Pulled
    from chaos.systems.base import Cluster
    from chaos.targets.base import Target

_SUITES = ("suites", "chaos")
_TOLD = "moonquake"
_NAME_WIDTH = 36
_NOT_ARMED = "say --arm to run this on other machines"
_FIXES = {
    "toxiproxy": "set MOONQUAKE_TOXIPROXY (scripts/build-toxiproxy DIR builds one) or"
    " TOXIPROXY_URL",
    "embedded_proxy": "unset MOONQUAKE_TOXIPROXY and TOXIPROXY_URL",
}


class ChaosRun:
    """Everything of a run that lives longer than one test.

    Making one costs nothing and touches nothing; `arm` installs the signal handlers;
    processes start when the first cluster is asked for, results when there are some.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        given: dict[str, Any] = getattr(config, "workerinput", {})
        told = given.get(_TOLD, {})
        self.config = config
        self.worker = str(given.get("workerid", ""))
        self.options = options
        if "seed" in told:
            self.options = replace(options, seed=int(told["seed"]))
        self.armed = False
        self.wanted_from_the_start = bool(
            options.given or told.get("directory") or _names_suites(config)
        )
        self._directory = str(told.get("directory", ""))
        self._nodes: list[Any] = []
        self._guard = SignalGuard(workers=self._worker_pids)
        self._stream: IO[str] | None = None
        self._live: LiveLine | None = None
        self._ticker: Ticker | None = None
        self._report: RunReport | None = None
        self._clusters: Clusters | None = None
        self._cluster: Cluster | None = None
        self.planned: list[str] = []
        self._lever: LeverWatch | None = None
        self._halted = ""
        self._broke_something = False
        self._broken_promises: list[str] = []
        self._test_began_s = 0.0
        self._cluster_is_used = False

    # -- life of the run ---------------------------------------------------------

    def arm(self) -> None:
        """Takes the signals over; refuses a run that could not mean anything.

        Raises:
            UsageError: a setting would skip teardown, something required is missing, or
                somebody halted all runs.
        """
        _refuse_thread_method(self.config)
        self._obey_lever()
        self._refuse_what_is_missing()
        self.armed = True
        self._guard.install()
        if not self.worker:
            # A copy of standard output from before pytest captures it.
            self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
            width = shutil.get_terminal_size().columns
            self._live = LiveLine(self._stream, tty=self._color, width=width)
            if self._color:
                self._ticker = Ticker(self._live.tick)

    def write_junit(self) -> None:
        """Has pytest write `junit.xml` into the results, unless it goes elsewhere."""
        option = self.config.option
        if not (self.worker or option.collectonly or option.xmlpath):
            option.xmlpath = str(self.report.path / "junit.xml")

    def stop_clusters(self) -> None:
        """Ends roles and proxy. Safe to call twice."""
        clusters, self._clusters, self._cluster = self._clusters, None, None
        if clusters is not None:
            clusters.close()

    def session_ended(self) -> None:
        """Stops everything; a worker hands its part of the results over."""
        self.stop_clusters()
        if self.worker and self._report is not None:
            self._report.close()

    def finish(self, exit_status: int) -> Document | None:
        """Writes the results, in the process that owns them."""
        if self._report is None or self.worker:
            return None
        return self._report.close(aborted=self._aborted(exit_status))

    def close(self) -> None:
        """The last way out: everything that is still open, whatever happened."""
        try:
            if self._lever is not None:
                self._lever.stop()
            self.stop_clusters()
        finally:
            self._guard.uninstall()
            if self._ticker is not None:
                self._ticker.stop()
            if self._report is not None:
                self._report.close(aborted=self._aborted(0))
            if self._stream is not None:
                self._stream.close()
                self._stream = None

    # -- what pytest asks --------------------------------------------------------

    @property
    def report(self) -> RunReport:
        """The results of this run, or this worker's part of them."""
        if self._report is None:
            self._report = self._open_report()
        return self._report

    def header(self) -> list[str]:
        """What a reader needs to run the same again."""
        options = self.options
        defects = f", defects {', '.join(options.defects)}" if options.defects else ""
        through = f"proxy {proxy_flavour()}"
        if options.target != "local":
            through = f"healing by itself within {options.fault_ttl_s:g} s"
        lines = [
            f"chaos: seed {options.seed}, time scale {options.time_scale:g}, target"
            f" {options.target}, system {self._system_name}, {through}{defects}"
        ]
        if options.plans_only:
            lines.append(f"chaos: nothing is started or broken: {_NOT_ARMED}")
        return lines

    @property
    def _system_name(self) -> str:
        options = self.options
        if options.system != "mooncake":
            return options.system
        return f"mooncake ({options.mooncake_profile})"

    def summary(self, exit_status: int, width: int) -> str:
        """The closing table, "" when nothing was judged in this run."""
        from chaos.report.terminal import render

        document = self.finish(exit_status)
        if document is None:
            return ""
        return f"{render(document, color=self._color, width=width)}" + (
            f"results in {self.report.path}\n{self._told_report}"
        )

    @property
    def _told_report(self) -> str:
        page = self.report.path / "report.html"
        return f"report in {page}\n" if page.is_file() else ""

    @property
    def leaves_slow_out(self) -> bool:
        """Slow suites wait to be asked for: by --slow, -m, or their very name."""
        asked = self.options.slow or self.config.getoption("markexpr", "")
        return not (asked or any("::" in arg for arg in self.config.args))

    @property
    def capabilities(self) -> frozenset[str]:
        if self.options.target != "local":
            return self._running_target.capabilities
        real = {"toxiproxy"} if proxy_flavour() == "toxiproxy" else {"embedded_proxy"}
        return LocalTarget.CAPABILITIES | real

    def why_not(self, capability: str) -> str:
        """Why the target cannot do something, "" when it can."""
        if capability in self.capabilities:
            return ""
        if self.options.target == "local":
            return _FIXES.get(capability, "no such thing is known")
        return self._running_target.why_not(capability)

    def missing(self, error: NotHere) -> bool:
        """Whether what is not here was required: a failure then, else a skip."""
        return error.capability in self.options.require

    @property
    def _running_target(self) -> Target:
        """The target of the running cluster; of a small one when none runs yet."""
        target = self.clusters.target
        if target is None:
            self.cluster(stores=1, engines=0)
            target = self.clusters.target
        assert target is not None
        return target

    def _refuse_what_is_missing(self) -> None:
        """A run that requires a capability must not pass by skipping all its tests.

        What hosts can do is known when they are there: see `missing` for them.
        """
        if self.options.target != "local":
            return
        try:
            missing = sorted(self.options.require - self.capabilities)
        except ProcessFailed as error:
            raise UsageError(str(error)) from error
        if missing:
            problem = (
                f"the {self.options.target} target has no {', '.join(missing)} here"
            )
            fix = _FIXES.get(missing[0], "run without --require")
            raise UsageError(f"required: {problem}", fix)

    def plan(self, sources: Iterable[Path]) -> None:
        """Says what the tests of these files would do, where they must not do it.

        Raises:
            UsageError: The inventory cannot be used.
        """
        options = self.options
        if not options.plans_only or self.worker:
            return
        from chaos.suite_plan import plan_suites

        found = plan_suites(
            self._place,
            system=options.system,
            time_scale=options.time_scale,
            sources=sources,
        )
        self.planned = [*found.lines(), "", f"nothing was done: {_NOT_ARMED}"]

    def expect(self, items: Iterable[pytest.Item]) -> None:
        """Marks what a system that is not ours is known not to hold.

        Raises:
            UsageError: The file of expectations makes no sense.
        """
        options = self.options
        if options.system == "refimpl":
            return
        from chaos.expected import expect
        from chaos.systems.mooncake.package import version

        expect(
            items,
            system=options.system,
            version=version(),
            target=options.target,
            settings=options.mooncake_profile,
        )

    def for_worker(self) -> dict[str, Any]:
        """What an xdist worker must know: one seed, one results directory."""
        told: dict[str, Any] = {"seed": self.options.seed}
        if self.armed:
            told["directory"] = str(self.report.path)
        return {_TOLD: told}

    def add_worker(self, node: Any) -> None:
        self._nodes.append(node)

    def refuse_thread_timeouts(self, items: Iterable[pytest.Item]) -> None:
        """A marker may choose the thread method as well as an option may."""
        for item in items:
            marker = item.get_closest_marker("timeout")
            if marker is not None and marker.kwargs.get("method") == "thread":
                raise _thread_method(item.nodeid)

    def reproduce(self, nodeid: str) -> str:
        """The one command that runs this test again, as it was."""
        return reproduce(nodeid, seed=self.options.seed, options=self._again())

    def test_begins(self, nodeid: str) -> None:
        """Later events of the history and the live line belong to this test."""
        self.report.history.test = nodeid
        self._test_began_s, self._cluster_is_used = time.monotonic(), False
        self._broke_something = False
        self._broken_promises.clear()
        if self._live is not None:
            if self._stream is not None and not self._color:
                self._stream.write("\n")  # pytest's line of dots is not finished
            self._live.test(_short_name(nodeid))

    def judge_leases(self, case: Case) -> None:
        """A test on hosts that healed behind our back proves nothing.

        Also on hosts of a cluster that the test has left for another one.
        """
        self._note_promises()
        target = self._clusters.target if self._clusters is not None else None
        hosts = target.hosts if target is not None else None
        if not case.receipts or (hosts is None and not self._broken_promises):
            return
        from chaos.judge.validity import judge_leases

        broken = tuple(dict.fromkeys(self._broken_promises))
        case.docket(judge_leases(broken, len(hosts.all) if hosts is not None else 0))

    def _note_promises(self) -> None:
        """Remembers what hosts did not hold; a target forgets it when it is closed."""
        target = self._clusters.target if self._clusters is not None else None
        if target is not None and self._broke_something:
            self._broken_promises += getattr(target, "broken_promises", ())

    def _note_breakers(self) -> None:
        """What the breakers of this test's cluster did, before they forget it."""
        if self._cluster is not None and self._cluster_is_used:
            from chaos.breakers import note_breakers

            note_breakers(self.history, self._cluster, since_s=self._test_began_s)

    def insist_on_the_end(self) -> None:
        """A signal ends the run with its test at the latest, whoever swallowed it."""
        self._guard.insist()

    def test_ended(self, case: Case, error: str) -> None:
        """Puts a concluded case on disk, so that it survives whatever comes next."""
        if self._ticker is not None:
            self._ticker.stop()
        if self._live is not None:
            self._live.clear()
        report = self.report
        self._note_breakers()
        report.add_test(case.nodeid)
        for judgement in case.docket.judgements:
            report.add_judgement(case.nodeid, judgement)
        for receipt in case.receipts:
            report.add_receipt(receipt, case.nodeid)
        for receipt in case.residual:
            report.add_residual(f"{receipt.kind}({receipt.target}): {receipt.residual}")
        if error:
            report.add_error(case.nodeid, error)
        report.history.sync()

    # -- what fixtures ask -------------------------------------------------------

    @property
    def clusters(self) -> Clusters:
        if self._clusters is None:
            from chaos.clusters import Clusters

            self._clusters = Clusters(
                system=self.options.system,
                run_dir=self.report.path,
                command=shlex.join(sys.argv),
                place=self._place,
                seed=self.options.seed,
            )
        return self._clusters

    @property
    def _place(self) -> Place:
        options = self.options
        return Place(
            kind=options.target,
            inventory=options.inventory,
            fault_ttl_s=options.fault_ttl_s,
            block=options.block,
        )

    @property
    def running(self) -> Cluster:
        """The cluster of the running test.

        Raises:
            UsageError: The test has not asked for one yet.
        """
        if self._cluster is None:
            problem = "there is no cluster yet"
            raise UsageError(problem, "ask for `cluster` or call `cluster_of` first")
        return self._cluster

    def cluster(self, **shape: Any) -> Cluster:
        """A cluster of this shape, empty and healthy, with the run's scale and seed."""
        options = self.options
        shape.setdefault("time_scale", options.time_scale)
        shape.setdefault("seed", options.seed)
        shape.setdefault("defects", options.defects)
        if options.system == "mooncake":
            profile = {"profile": options.mooncake_profile}
            own = {**profile, **shape.get("overrides", {}).get("mooncake", {})}
            shape["overrides"] = {**shape.get("overrides", {}), "mooncake": own}
        self._note_promises()
        self._note_breakers()
        self._cluster = None
        self._cluster = self.clusters.get(ClusterSpec(**shape))
        self._cluster_is_used = True
        self.history.limits(self._cluster.limits)
        self._observe(self._cluster)
        self._require_of_hosts()
        return self._cluster

    def _observe(self, cluster: Cluster) -> None:
        """What a system that has more to say of itself says, goes into the history."""
        if isinstance(cluster, Observed):
            self.history.info("version", self.options.system, text=cluster.version)
            cluster.observe_into(self._on_observed)

    def _on_observed(self, role: str, value: Mapping[str, Any]) -> None:
        if self._report is not None:
            self.history.info("observed", role, **value)

    def _require_of_hosts(self) -> None:
        """What was required of hosts is asked of their agents, once there are some.

        Kinds of fault are asked for when a test orders them.

        Raises:
            NotHere: Something is missing.
        """
        target = self.clusters.target
        if not self.options.require or target is None or target.hosts is None:
            return
        from chaos.planning import KINDS

        for capability in sorted(self.options.require - frozenset(KINDS)):
            reason = target.why_not(capability)
            if reason:
                name = self.options.target
                raise NotHere(capability=capability, target=name, reason=reason)

    def injector(self) -> Injector:
        clusters = self.clusters
        return Injector(
            lambda: self.running,
            lambda: clusters.control,
            clusters.ledger,
            observer=self._on_fault,
            guard=self._node_limit(),
        )

    def _node_limit(self) -> Callable[[Fault, Iterable[Fault]], None] | None:
        most = self.options.max_nodes_down
        if most is None:
            return None
        from chaos.nodes import node_limit

        return node_limit(most, lambda: self.running, self.options.target)

    @property
    def history(self) -> History:
        return self.report.history

    def load(self) -> LoadDriver:
        from chaos.driver import LoadDriver

        return LoadDriver(
            lambda: self.running, history=self.history, on_sample=self._on_sample
        )

    def steady_state(self) -> SteadyState:
        return SteadyState(lambda: self.running)

    # -- inside ------------------------------------------------------------------

    @property
    def _color(self) -> bool:
        from chaos.report.terminal import wants_color

        return wants_color(tty=self._stream is not None and self._stream.isatty())

    def _open_report(self) -> RunReport:
        from chaos.report.run import RunReport

        if self._directory:
            return RunReport.attach(self._directory, self.worker)
        options = self.options
        return RunReport.open(
            options.results,
            _suite_name(self.config.args),
            options.seed,
            time_scale=options.time_scale,
            system=options.system,
            target=options.target,
            options=self._again(),
            capabilities=dict.fromkeys(sorted(self._known), True),
        )

    @property
    def _known(self) -> frozenset[str]:
        """What the target is known to be able to do when the run begins."""
        local = self.options.target == "local"
        return self.capabilities if local else frozenset({self.options.target})

    def _obey_lever(self) -> None:
        """Refuses to start when somebody halted all runs; ends when somebody does.

        Workers are told by their controller: a second signal would not wait for
        faults to be taken back.
        """
        if self.worker or self.config.option.collectonly:
            return
        from chaos.levers import RunLevers
        from chaos.safety.halt import LeverWatch

        levers = RunLevers(self._machines, self._shared_lever)
        levers.refuse()
        self._lever = LeverWatch(levers, self._on_halt).start()

    @property
    def _shared_lever(self) -> str:
        """The file that an inventory names for all of its controllers."""
        if not self.options.inventory:
            return ""
        from chaos.safety.remote import read_inventory

        return str(read_inventory(self.options.inventory).lever or "")

    def _machines(self) -> Hosts | None:
        """The hosts that other controllers may halt too; ours alone need no lever."""
        cluster = self._cluster if self.options.target == "ssh" else None
        return cluster.hosts if cluster is not None else None

    def _on_halt(self, pulled: Pulled) -> None:
        """Ends this run as a SIGTERM does: faults first, in the main thread."""
        self._halted = str(pulled)
        os.kill(os.getpid(), signal.SIGTERM)

    def _again(self) -> list[str]:
        """The options that make a run what it was, beside its seed."""
        options = self.options
        words = ["--time-scale", f"{options.time_scale:g}"]
        words += [word for name in options.defects for word in ("--defect", name)]
        if options.system != "refimpl":
            words += ["--system", options.system]
        if options.system == "mooncake":
            words += ["--mooncake-profile", options.mooncake_profile]
        if options.target != "local":
            words += ["--target", options.target]
        if options.inventory:
            words += ["--inventory", options.inventory, *["--arm"] * options.arm]
        return words

    def _aborted(self, exit_status: int) -> str:
        if self._halted:
            return self._halted
        if self._guard.aborted.is_set():
            return signal.Signals(self._guard.number).name
        return "interrupted" if exit_status == 2 else ""

    def _on_sample(self, arm: str, sample: Sample) -> None:
        self.report.record(f"ttft-{arm}", sample.intended_s, sample.ttft_s)
        if sample.answer is not None:
            wait_s = sample.answer.cache_wait_s
            self.report.record(f"cache_wait-{arm}", sample.intended_s, wait_s)
        if self._live is not None:
            self._live.sample(sample)

    def _on_fault(self, event: str, receipt: Receipt) -> None:
        name = f"{receipt.kind}({receipt.target})"
        if event == "injected":
            self._broke_something = True
            self.history.fault("begin", receipt)
            if self._live is not None:
                self._live.fault(name)
            if self._ticker is not None:
                self._ticker.start()
        elif event in ("reverted", "residual"):
            self.history.fault("end", receipt)
            if self._live is not None:
                self._live.healed(name)

    def _worker_pids(self) -> list[int]:
        """Pids of the xdist workers, where execnet lets us see them."""
        pids = []
        for node in self._nodes:
            popen = getattr(getattr(node.gateway, "_io", None), "popen", None)
            if popen is not None and popen.poll() is None:
                pids.append(popen.pid)
        return pids


def proxy_flavour(environment: Mapping[str, str] = os.environ) -> str:
    """Which proxy a run will use: a real Toxiproxy where there is one, else ours."""
    from chaos.proxy.process import URL_VARIABLE, find_toxiproxy

    if environment.get(URL_VARIABLE) or find_toxiproxy(environment):
        return "toxiproxy"
    return "embedded"


def under_suites(path: Path) -> bool:
    """Whether a path is one of the chaos suites, or their directory."""
    parts = path.parts
    return any(parts[i : i + len(_SUITES)] == _SUITES for i in range(len(parts) - 1))


def _short_name(nodeid: str) -> str:
    """The name of a test, cut so that the live line has room for what happens."""
    name = nodeid.rpartition("::")[2].removeprefix("test_")
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 3]}..."


def _names_suites(config: pytest.Config) -> bool:
    base = config.invocation_params.dir
    paths = (base / arg.partition("::")[0] for arg in config.args)
    return any(under_suites(path.resolve()) for path in paths)


def _suite_name(args: list[str]) -> str:
    """`suites/chaos/test_partial_reuse.py` -> `partial_reuse`, several -> `chaos`."""
    names = {Path(arg.partition("::")[0]).stem for arg in args}
    name = names.pop() if len(names) == 1 else "chaos"
    return name.removeprefix("test_") or "chaos"


def _refuse_thread_method(config: pytest.Config) -> None:
    method = config.getoption("timeout_method", None)
    if method is None:
        with contextlib.suppress(ValueError):  # pytest-timeout is not loaded
            method = config.getini("timeout_method")
    if method == "thread":
        raise _thread_method("this run")


def _thread_method(where: str) -> UsageError:
    return UsageError(
        f"pytest-timeout's thread method is set for {where}: it ends the process"
        " without any teardown and would leave faults in",
        "use --timeout-method=signal",
    )

"""The pytest plugin: options, markers, fixtures, signals, scheduling, summary.

It does nothing at all unless our options are given, our suites are run, or a test
uses one of our fixtures. What it does is in the modules it calls.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from chaos.case import Case
from chaos.errors import NotHere, UsageError
from chaos.judge.verdict import Verdict
from chaos.options import add_options, read_options
from chaos.run import ChaosRun, under_suites

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from chaos.docket import Docket
    from chaos.driver import LoadDriver
    from chaos.faults.injector import Injector
    from chaos.history.history import History
    from chaos.steady import SteadyState
    from chaos.systems.base import Cluster

RUN: pytest.StashKey[ChaosRun] = pytest.StashKey()
CASE: pytest.StashKey[Case] = pytest.StashKey()
FIXTURES = frozenset(
    {"cluster", "cluster_of", "inject", "load", "judge", "history", "steady_state"}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; they are described in `chaos/options.py`."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Reads the options and arms the harness when this run is one of ours."""
    config.addinivalue_line(
        "markers", "requires(*capabilities): skip where the target cannot do this"
    )
    config.addinivalue_line(
        "markers", "real_proxy: also meant to run through the real Toxiproxy"
    )
    with _usage_errors():
        run = ChaosRun(config, read_options(config))
    config.stash[RUN] = run
    if run.wanted_from_the_start:
        _arm(run)
        run.write_junit()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stops everything and gives the signals back, whatever happened."""
    run = config.stash.get(RUN, None)
    if run is not None:
        run.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Arms when a test uses us; leaves slow suites out unless they are asked for."""
    run = config.stash[RUN]
    ours = [item for item in items if FIXTURES & set(_fixture_names(item))]
    if ours:
        _arm(run)
        with _usage_errors():
            run.refuse_thread_timeouts(ours)
            run.plan(item.path for item in ours)
    with _usage_errors():
        run.expect(item for item in items if under_suites(item.path))
    if run.leaves_slow_out:
        slow = [item for item in items if under_suites(item.path) and _slow(item)]
        if slow:
            config.hook.pytest_deselected(items=slow)
            items[:] = [item for item in items if item not in slow]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Seed, scale, target, system and proxy, once the harness is armed."""
    run = config.stash[RUN]
    return run.header() if run.armed else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No test begins after a signal, even where one caught what the signal raised."""
    result = yield
    item.config.stash[RUN].insist_on_the_end()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Skips what the target cannot do; what `--require` names fails instead."""
    run = item.config.stash[RUN]
    if run.options.plans_only and FIXTURES & set(_fixture_names(item)):
        pytest.skip("a plan only; say --arm to run it")
    for marker in item.iter_markers("requires"):
        for capability in marker.args:
            reason = run.why_not(capability)
            if reason:
                target = run.options.target
                _not_here(
                    item, NotHere(capability=capability, target=target, reason=reason)
                )
    try:
        return (yield)
    except NotHere as error:
        _not_here(item, error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Lets the worst judgement decide a test, after its faults are undone."""
    try:
        result = yield
    except pytest.skip.Exception:
        _conclude(item, skipped=True)
        _decide_broken(item)
        raise
    except NotHere as error:
        _conclude(item, skipped=True)
        _decide_broken(item)
        _not_here(item, error)
        raise
    except (pytest.exit.Exception, KeyboardInterrupt):
        _conclude(item)
        raise
    except BaseException as error:
        _conclude(item, error)
        raise
    _conclude(item)
    _decide(item)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One failure domain, one worker, in our runs only."""
    run = config.stash[RUN]
    if not run.armed:
        return None
    from chaos.scheduling import domain_scheduler

    return domain_scheduler(config, log, run.options)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hands the seed and the results directory to an xdist worker."""
    node.workerinput.update(node.config.stash[RUN].for_worker())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """Remembers the worker, to pass signals on."""
    node.config.stash[RUN].add_worker(node)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stops the clusters after the last fixture was torn down.

    A plan alone is no pass: it ends as a run without tests does.
    """
    run = session.config.stash[RUN]
    run.session_ended()
    if run.planned and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> None:
    """One table of verdicts, and for every failure the command that repeats it."""
    width = max(80, min(160, terminalreporter._tw.fullwidth))
    run = config.stash[RUN]
    for line in run.planned:
        terminalreporter.write_line(line)
    text = run.summary(int(exitstatus), width)
    if text:
        terminalreporter.section("chaos")
        terminalreporter.write(text)


def _arm(run: ChaosRun) -> None:
    if run.armed:
        return
    with _usage_errors():
        run.arm()


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Our usage errors as pytest's: one line, exit 4, no traceback."""
    try:
        yield
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _conclude(
    item: pytest.Item, error: BaseException | None = None, *, skipped: bool = False
) -> None:
    """Undoes the faults of a test and records what became of it.

    A test that was skipped before anything was judged has no verdict.
    """
    case = item.stash.get(CASE, None)
    if case is None:
        return
    case.conclude()
    item.config.stash[RUN].judge_leases(case)
    if case.residual:
        left = ", ".join(f"{r.kind}({r.target})" for r in case.residual)
        item.session.shouldstop = f"a fault was left behind: {left}; chaos recover"
    wanted = bool(case.docket.judgements) or (case.decides and not skipped)
    if wanted or error is not None:
        reason = _first_line(error) if error is not None else ""
        item.user_properties.append(("seed", case.seed))
        item.user_properties.append(("verdict", case.docket.verdict.value))
        item.config.stash[RUN].test_ended(case, reason)


def _not_here(item: pytest.Item, error: NotHere) -> None:
    """A skip with the reason of the probe; a failure when it was required."""
    run = item.config.stash[RUN]
    named = NotHere(
        capability=error.capability, target=run.options.target, reason=error.reason
    )
    if run.missing(error):
        pytest.fail(f"required: {named}", pytrace=False)
    pytest.skip(str(named))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _decide(item: pytest.Item) -> None:
    case = item.stash.get(CASE, None)
    if case is None or not case.decides or case.docket.verdict is Verdict.PASS:
        return
    soft = item.config.stash[RUN].options.inconclusive == "skip"
    if soft and case.docket.verdict is Verdict.INCONCLUSIVE:
        pytest.skip(case.docket.reason)
    from chaos.expected import ROW, refusal_of

    words = f"{case.docket.reason}\n{case.reproduce}"
    raise refusal_of(case.docket.judgements, words, item.stash.get(ROW, None))


def _decide_broken(item: pytest.Item) -> None:
    """What was seen broken before a skip is not skipped."""
    case = item.stash.get(CASE, None)
    if case is not None and case.docket.verdict is Verdict.FAIL:
        _decide(item)


def _fixture_names(item: pytest.Item) -> list[str]:
    return list(getattr(item, "fixturenames", ()))


def _slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _case_of(request: pytest.FixtureRequest) -> Case:
    """The case of the running test, made by whichever fixture comes first."""
    node = request.node
    case: Case | None = node.stash.get(CASE, None)
    if case is None:
        run = request.config.stash[RUN]
        case = Case(
            nodeid=node.nodeid,
            reproduce=run.reproduce(node.nodeid),
            seed=run.options.seed,
        )
        node.stash[CASE] = case
        run.test_begins(node.nodeid)
    return case


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Docket:
    """Lay judgements on it: `judge(judge_deadline(...))`. The worst one decides."""
    case = _case_of(request)
    case.asked_to_judge = True
    return case.docket


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Randomness of this test alone, from the seed and the name of the test."""
    seed = request.config.stash[RUN].options.seed
    return random.Random(f"{seed}:{request.node.nodeid}")


@pytest.fixture(scope="session")
def chaos_run(request: pytest.FixtureRequest) -> Iterator[ChaosRun]:
    """The run that this test is part of; its cluster ends with the session."""
    run = request.config.stash[RUN]
    yield run
    run.stop_clusters()


@pytest.fixture
def cluster_of(
    request: pytest.FixtureRequest, chaos_run: ChaosRun
) -> Callable[..., Cluster]:
    """`cluster_of(engines=8, placement="random")`: a cluster of that shape, empty.

    One cluster runs at a time: asking for another shape stops the one before.
    """
    _case_of(request)
    return chaos_run.cluster


@pytest.fixture
def cluster(cluster_of: Callable[..., Cluster]) -> Cluster:
    """Eight stores and two engines, empty and healthy; shared and reset."""
    return cluster_of()


@pytest.fixture
def inject(request: pytest.FixtureRequest, chaos_run: ChaosRun) -> Iterator[Injector]:
    """Breaks the current cluster: `with inject.kill("store-3") as receipt: ...`."""
    case = _case_of(request)
    injector = chaos_run.injector()
    case.injectors.append(injector)
    yield injector
    injector.revert_all()


@pytest.fixture
def history(request: pytest.FixtureRequest, chaos_run: ChaosRun) -> History:
    """The append-only record of this test; load and faults write to it anyway."""
    _case_of(request)
    return chaos_run.history


@pytest.fixture
def load(request: pytest.FixtureRequest, chaos_run: ChaosRun) -> LoadDriver:
    """Open-loop load: `load(requests)`, or in the background `load.running(...)`."""
    _case_of(request)
    return chaos_run.load()


@pytest.fixture
def steady_state(chaos_run: ChaosRun) -> SteadyState:
    """`judge(steady_state())`: roles up, stores mounted, breakers closed, all clean."""
    return chaos_run.steady_state()


@pytest.fixture
def soak_s(request: pytest.FixtureRequest) -> float:
    """How long a soak lasts, from `--duration`; 0 when nobody asked for one."""
    return float(request.config.stash[RUN].options.duration_s)

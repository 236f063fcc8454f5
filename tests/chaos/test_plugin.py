"""The plugin through pytester, on a fake system whose roles only sleep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.safety.identity import state_of, wait_until
from chaos.safety.ledger import ledgers
from chaos.safety.recover import recover
from chaos.systems.mooncake.package import version

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
LEAN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")

CONFTEST = """
import sys, types
from chaos.faults.base import Evidence
from chaos.systems.base import Limits

ROLE = (
    "from refimpl.role import die_with_parent; die_with_parent(); import time;"
    " print('up', flush=True); time.sleep(60)"
)


class FakeCluster:
    masters, stores, engines, links = (), ("store-0", "store-1"), (), ()
    hosts = None
    limits = Limits(**{
        name: (1 if name in ("breaker_probes_to_close", "block_tokens", "page_tokens")
               else 1.0)
        for name in Limits.__dataclass_fields__
    })

    def __init__(self, spec, target):
        self.spec, self.target = spec, target
        for store in self.stores:
            self.start_role(store)

    def start_role(self, role):
        process = self.target.spawn(role, [sys.executable, "-c", ROLE])
        self.target.wait_ready(role, "up", timeout_s=20)
        return process

    def process(self, role):
        return self.target.process(role)

    def reset(self):
        for store in self.stores:
            if self.process(store) is None:
                self.start_role(store)

    def stop(self):
        pass


class FakeSystem:
    name = "fake"

    def start(self, spec, target, proxy):
        return FakeCluster(spec, target)


class Fault:
    kind = "fake"

    def __init__(self, effect=1.0, residual=""):
        self.target, self.effect, self.residual = "nothing", effect, residual

    def plan(self): return []
    def inject(self): pass
    def probe(self): return Evidence(measure="fakes", effect=self.effect)
    def revert(self): pass
    def verify_reverted(self): return self.residual


module = types.ModuleType("chaos.systems.fake")
module.system = FakeSystem
sys.modules["chaos.systems.fake"] = module
shared = types.ModuleType("shared")
shared.Fault = Fault
sys.modules["shared"] = shared
"""

JUDGEMENT = """
from chaos.judge.verdict import Judgement, Verdict

def judged(verdict, reason=""):
    return Judgement(oracle="O9", claim="eviction never stalls", verdict=verdict,
                     observed="7 ms", threshold="5 ms", samples=64, reason=reason)
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """A directory with the fake system, its own state directory and our plugin."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(pytester.path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MOONQUAKE_SEED", raising=False)
    (pytester.path / "state").mkdir()
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\ntimeout_method = signal\nmarkers = slow: slow\n")
    return pytester


def options(pytester, *more: str) -> list[str]:
    results = str(pytester.path / "results")
    return ["--system", "fake", "--results", results, *LEAN, *more]


def run(pytester, *more: str):
    return pytester.runpytest_subprocess(*options(pytester, *more), timeout=100)


def verdict_of(pytester) -> dict:
    (path,) = pytester.path.glob("results/*/2*/verdict.json")
    return json.loads(path.read_text())


def state_files(pytester) -> list[Path]:
    return [p for p in (pytester.path / "state").rglob("*") if p.is_file()]


def test_without_our_options_or_fixtures_nothing_happens(suite) -> None:
    suite.makepyfile(
        """
        import signal
        def test_plain(pytestconfig):
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        """
    )
    result = suite.runpytest_subprocess(*LEAN)

    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("chaos:*")
    assert not (suite.path / "results").exists()
    assert state_files(suite) == []


def test_the_header_says_what_is_needed_to_run_the_same_again(suite) -> None:
    suite.makepyfile("def test_plain(): pass")
    result = run(suite, "--seed", "41", "--time-scale", "0.5", "--defect", "x")

    result.stdout.fnmatch_lines(
        ["chaos: seed 41, time scale 0.5, target local, system fake, proxy *defects x"]
    )


@pytest.mark.parametrize(
    ("verdict", "option", "outcome"),
    [
        ("PASS", "fail", {"passed": 1}),
        ("FAIL", "fail", {"failed": 1}),
        ("FAIL", "skip", {"failed": 1}),
        ("INCONCLUSIVE", "fail", {"failed": 1}),
        ("INCONCLUSIVE", "skip", {"skipped": 1}),
    ],
)
def test_the_worst_judgement_decides(suite, verdict, option, outcome) -> None:
    suite.makepyfile(
        f"""{JUDGEMENT}
def test_it(judge):
    judge(judged(Verdict.PASS))
    judge(judged(Verdict.{verdict}, "because"))
"""
    )
    result = run(suite, "--seed", "5", "--inconclusive", option)

    result.assert_outcomes(**outcome)
    assert verdict_of(suite)["verdict"] == verdict


def test_a_failure_begins_with_its_reason_and_ends_with_its_command(suite) -> None:
    suite.makepyfile(
        f"""{JUDGEMENT}
def test_it(judge):
    judge(judged(Verdict.FAIL, "the sweep held the lock"))
"""
    )
    result = run(suite, "--seed", "5")

    result.stdout.fnmatch_lines(
        [
            "FAIL O9: eviction never stalls: observed 7 ms, threshold 5 ms, n=64*lock*",
            "*pytest *test_it --seed 5 --time-scale 0.1*--system fake",
        ]
    )


def test_results_have_a_junit_file_with_seed_and_verdict(suite) -> None:
    suite.makepyfile(
        f"""{JUDGEMENT}
def test_it(judge):
    judge(judged(Verdict.PASS))
"""
    )
    run(suite, "--seed", "5")

    (path,) = suite.path.glob("results/*/2*/junit.xml")
    text = path.read_text()
    assert '<property name="seed" value="5"' in text
    assert '<property name="verdict" value="PASS"' in text


def test_a_test_that_asked_to_judge_and_did_not_is_inconclusive(suite) -> None:
    suite.makepyfile("def test_it(judge): pass")
    result = run(suite)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*INCONCLUSIVE: nothing was judged*"])


def test_a_fault_without_effect_is_inconclusive_whatever_was_judged(suite) -> None:
    suite.makepyfile(
        f"""{JUDGEMENT}
from shared import Fault
def test_it(cluster, inject, judge):
    with inject(Fault(effect=0)):
        judge(judged(Verdict.PASS))
"""
    )
    result = run(suite)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["INCONCLUSIVE evidence: *0 of 1 proved*(no effect of fake nothing)"]
    )


def test_a_residual_fault_fails_and_stops_the_session(suite) -> None:
    suite.makepyfile(
        """
        from shared import Fault
        def test_first(cluster, inject, monkeypatch):
            inject.revert_deadline_s = 0.0
            inject(Fault(residual="a rule")).start()
        def test_second(): raise SystemError("must not run")
        """
    )
    result = run(suite)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*left behind: fake nothing: a rule*",
            "*a fault was left behind: fake(nothing)*",
        ]
    )
    assert verdict_of(suite)["exit_code"] == 5


@pytest.mark.slow
def test_a_killed_role_is_back_for_the_next_test(suite) -> None:
    suite.makepyfile(
        """
        def test_first(cluster, inject):
            inject.kill("store-0").start()
            assert cluster.process("store-0") is None
        def test_second(cluster):
            assert cluster.process("store-0") is not None
        """
    )
    run(suite).assert_outcomes(passed=2)
    assert state_files(suite) == []


@pytest.mark.slow
def test_another_shape_stops_the_cluster_before_it(suite) -> None:
    suite.makepyfile(
        """
        def test_it(cluster_of):
            first = cluster_of(stores=2)
            again = cluster_of(stores=2)
            assert again is first
            old = first.process("store-0")
            second = cluster_of(stores=3)
            assert second is not first
            assert second.process("store-0").pid != old.pid
            assert first.process("store-0") is None
        """
    )
    run(suite).assert_outcomes(passed=1)


@pytest.mark.slow
def test_randomness_depends_on_the_seed_and_the_test_alone(suite) -> None:
    suite.makepyfile(
        """
        import pytest
        drawn = {}
        @pytest.mark.parametrize("name", ["a", "b"])
        def test_it(rng, name):
            print("drew", name, rng.random())
        """
    )

    def draws(*more: str) -> list[str]:
        lines = run(suite, "-s", *more).stdout.lines
        return sorted(line.partition("drew ")[2] for line in lines if "drew" in line)

    both = draws("--seed", "5")
    assert len({line.split()[-1] for line in both}) == 2
    assert draws("--seed", "5", "-k", "b") == [both[1]]
    assert draws("--seed", "6") != both


def test_what_was_broken_before_a_skip_is_not_skipped(suite) -> None:
    suite.makepyfile(
        JUDGEMENT
        + """
import pytest

def test_it(judge):
    judge(judged(Verdict.FAIL))
    pytest.skip("nobody asked for it")
"""
    )
    run(suite).assert_outcomes(failed=1)


def test_a_row_excuses_the_law_it_names_on_its_system_and_version(suite) -> None:
    """What is expected is reported, and not red; anything beside it is red."""
    rows = suite.mkdir("suites") / "conformance" / "tests"
    rows.mkdir(parents=True)
    row = "test: 'test_x.py::*', expect: sometimes, reference: r"
    (rows / "fake-1.yaml").write_text(
        f"system: fake\nversion: '{version()}'\n"
        f"tests: [{{{row}, breaks: ['O9: eviction *']}}]\n"
    )
    (suite.path / "suites" / "chaos").mkdir()
    (suite.path / "suites" / "chaos" / "test_x.py").write_text(
        JUDGEMENT
        + """
def test_expected(judge):
    judge(judged(Verdict.FAIL))

def test_held(judge):
    judge(judged(Verdict.PASS))

def test_untold(judge):
    judge(judged(Verdict.INCONCLUSIVE))

def test_another(judge):
    judge(judged(Verdict.FAIL))
    judge(Judgement(oracle="O4", claim="no request fails", verdict=Verdict.FAIL,
                    observed="1", threshold="0", samples=9))

def test_broken_otherwise(judge):
    judge(judged(Verdict.FAIL))
    assert False
"""
    )
    ended = run(suite, "suites/chaos")

    ended.assert_outcomes(xfailed=1, xpassed=1, failed=3)


@pytest.mark.slow
def test_a_test_that_skips_itself_has_no_verdict(suite) -> None:
    suite.makepyfile(
        JUDGEMENT
        + """
import pytest

def test_good(cluster, judge):
    judge(judged(Verdict.PASS))

def test_not_asked_for(cluster, judge):
    pytest.skip("nobody asked for it")
"""
    )
    ended = run(suite, "-rs")

    ended.assert_outcomes(passed=1, skipped=1)
    assert [test["verdict"] for test in verdict_of(suite)["tests"]] == ["PASS"]


@pytest.mark.slow
def test_what_the_target_cannot_do_is_skipped_or_required(suite) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.requires("kill", "warp_drive")
        def test_it(): pass
        """
    )
    skipped = run(suite, "-rs")
    refused = run(suite, "--require", "warp_drive")

    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["*the local target has no 'warp_drive' here*"])
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(
        ["ERROR: required: the local target has no warp_drive here*"]
    )


@pytest.mark.slow
def test_a_run_that_requires_the_real_proxy_needs_one(suite, monkeypatch) -> None:
    suite.makepyfile("def test_it(cluster): pass")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("TOXIPROXY_URL", raising=False)

    for named, line in (
        ("", "*has no toxiproxy here; set*"),
        ("/no", "*/no named by*"),
    ):
        monkeypatch.setenv("MOONQUAKE_TOXIPROXY", named)
        refused = run(suite, "--require", "toxiproxy")

        assert refused.ret == pytest.ExitCode.USAGE_ERROR
        refused.stderr.fnmatch_lines([line])


def test_the_thread_method_of_timeouts_is_refused(suite) -> None:
    suite.makepyfile("def test_it(): pass")
    result = run(suite, "--timeout-method", "thread")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*thread method*use --timeout-method=signal*"])


def test_a_marker_with_the_thread_method_is_refused_too(suite) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.timeout(5, method="thread")
        def test_it(judge): pass
        """
    )
    assert run(suite).ret == pytest.ExitCode.USAGE_ERROR


def test_a_seed_that_is_no_number_is_a_usage_error(suite, monkeypatch) -> None:
    monkeypatch.setenv("MOONQUAKE_TIME_SCALE", "fast")
    suite.makepyfile("def test_it(): pass")
    result = run(suite)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'fast' is not a number*"])


@pytest.mark.slow
def test_slow_suites_wait_to_be_asked_for(suite) -> None:
    folder = suite.mkpydir("suites") / "chaos"
    folder.mkdir()
    file = folder / "test_it.py"
    file.write_text("import pytest\n@pytest.mark.slow\ndef test_it(): pass\n")

    run(suite, "suites/chaos").assert_outcomes(deselected=1)
    run(suite, "suites/chaos", "--slow").assert_outcomes(passed=1)
    run(suite, "suites/chaos/test_it.py::test_it").assert_outcomes(passed=1)


@pytest.mark.slow
def test_modules_stay_together_under_xdist_and_share_one_seed(suite) -> None:
    body = """
        import os
        {judgement}
        def test_one(judge, rng, pytestconfig):
            judge(judged(Verdict.PASS))
            print("WORKER", {name!r}, os.getpid())
            record(pytestconfig)
        def test_two(judge, pytestconfig):
            judge(judged(Verdict.PASS))
            record(pytestconfig)
        def record(config):
            from chaos.plugin import RUN
            seed = config.stash[RUN].options.seed
            with open("seen.txt", "a") as out:
                out.write(f"{name} {{os.getpid()}} {{seed}}\\n")
    """
    import textwrap

    for name in ("a", "b", "c"):
        text = textwrap.dedent(body).replace("{judgement}", JUDGEMENT)
        text = text.replace("{name!r}", repr(name)).replace("{name}", name)
        text = text.replace("{{", "{").replace("}}", "}")
        (suite.path / f"test_{name}.py").write_text(text)
    result = run(suite, "-n", "2")

    result.assert_outcomes(passed=6)
    seen = [line.split() for line in (suite.path / "seen.txt").read_text().splitlines()]
    assert len({seed for _, _, seed in seen}) == 1
    for name in ("a", "b", "c"):
        assert len({pid for module, pid, _ in seen if module == name}) == 1
    assert verdict_of(suite)["counts"]["PASS"] == 6
    result.stdout.fnmatch_lines(["verdict PASS: 6 PASS*"])


HANGING = """
import os, time
from pathlib import Path

def test_hangs(cluster, inject):
    with inject.pause("store-0"):
        pids = [cluster.process(store).pid for store in cluster.stores]
        Path("pids.tmp").write_text(" ".join(map(str, pids)))
        os.rename("pids.tmp", "pids.txt")
        time.sleep(60)
"""


def hanging(pytester, *more: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A pytest process in the middle of a fault, and the pids of its roles."""
    pytester.makepyfile(HANGING)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options(pytester, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=pytester.path,
    )
    file = pytester.path / "pids.txt"
    assert wait_until(file.exists, timeout_s=60), process.communicate(timeout=5)[0]
    return process, [int(pid) for pid in file.read_text().split()]


def all_gone(pids: list[int]) -> bool:
    return wait_until(
        lambda: all(state_of(pid) in ("", "Z") for pid in pids), timeout_s=20
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_reverts_the_fault_and_leaves_nothing(suite, number) -> None:
    process, pids = hanging(suite)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)

    expected = 2 if number == signal.SIGINT else 128 + number
    assert process.returncode == expected, output
    assert all_gone(pids)
    assert state_files(suite) == []
    assert verdict_of(suite)["aborted"]


def test_no_test_begins_after_a_signal_even_where_a_test_swallowed_it(suite) -> None:
    suite.makepyfile(
        """
        import os, signal
        def test_first(judge):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except Exception:
                pass
        def test_second(judge):
            print("it began")
        """
    )
    result = run(suite, "-s")

    assert result.ret == 143
    result.stdout.no_fnmatch_line("*it began*")


@pytest.mark.slow
def test_a_signal_to_the_controller_reverts_the_faults_of_workers(suite) -> None:
    process, pids = hanging(suite, "-n", "1")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)

    assert process.returncode == 143, output
    assert all_gone(pids)
    assert state_files(suite) == []


@pytest.mark.slow
def test_after_sigkill_roles_are_gone_and_recover_cleans_the_rest(suite) -> None:
    process, pids = hanging(suite)
    process.kill()
    process.communicate(timeout=60)
    state = suite.path / "state" / f"moonquake-{os.getuid()}"

    assert all_gone(pids)
    (left,) = ledgers(state)
    assert [fault.kind for fault in left.open_faults] == ["pause"]
    assert all(action.done for action in recover(state))
    assert recover(state) == []
    assert state_files(suite) == []


@pytest.mark.slow
def test_a_timeout_of_the_test_reverts_its_fault(suite) -> None:
    suite.makepyfile(HANGING)
    result = run(suite, "--timeout", "5")

    result.assert_outcomes(failed=1)
    assert all_gone([int(pid) for pid in (suite.path / "pids.txt").read_text().split()])
    assert state_files(suite) == []


@pytest.mark.slow
def test_the_second_run_on_a_pinned_domain_is_refused(suite) -> None:
    process, _ = hanging(suite, "--block", "3977")
    suite.makepyfile(test_second="def test_it(cluster): pass")
    result = run(suite, "--block", "3977", "test_second.py")
    process.terminate()
    process.communicate(timeout=60)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*local-3977 is in use by*{process.pid}*"])

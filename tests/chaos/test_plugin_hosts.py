"""The plugin where hosts are meant: what is refused, skipped, halted, only planned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.safety.halt import LocalLever, Pulled

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
LEAN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
SUITE = """
import sys, types
from chaos.errors import NotHere
from chaos.systems.base import Limits


class FakeCluster:
    masters, stores, engines, links, hosts = (), ("store-0",), (), (), None
    limits = Limits(**dict.fromkeys(
        list(Limits.__dataclass_fields__), 1
    ))

    def __init__(self, spec):
        self.spec = spec

    def process(self, role): return None
    def reset(self): pass
    def stop(self): pass


class FakeSystem:
    name = "fake"

    def start(self, spec, target, proxy):
        return FakeCluster(spec)


module = types.ModuleType("chaos.systems.fake")
module.system = FakeSystem
sys.modules["chaos.systems.fake"] = module
"""
NOT_HERE = """
import pytest
from chaos.errors import NotHere

def test_it(cluster, inject, judge):
    with inject.memory("store-0", 1 << 20):
        pytest.fail("nobody took memory")

@pytest.fixture
def broken():
    raise NotHere(capability="netem", target="local", reason="the kernel has none")

def test_its_fixture(broken):
    pass
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """A directory with a fake system, its own state directory and our plugin."""
    state = pytester.path / "state"
    state.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(state))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MOONQUAKE_TOXIPROXY", "")
    monkeypatch.delenv("TOXIPROXY_URL", raising=False)
    pytester.makeconftest(SUITE)
    pytester.makeini("[pytest]\ntimeout_method = signal\n")
    return pytester


def run(pytester, *more: str):
    results = str(pytester.path / "results")
    words = ["--system", "fake", "--results", results, *LEAN]
    return pytester.runpytest_subprocess(*words, "-rs", *more, timeout=100)


def test_what_is_not_here_is_skipped_with_the_reason_of_the_probe(suite) -> None:
    suite.makepyfile(NOT_HERE)

    ended = run(suite)

    ended.assert_outcomes(skipped=2)
    ended.stdout.fnmatch_lines(
        ["*no 'memory' here*--target netns*", "*no 'netem' here: the kernel has none*"],
        consecutive=False,
    )


def test_what_is_required_and_not_here_fails(suite) -> None:
    suite.makepyfile(NOT_HERE)
    (suite.path / "conftest.py").write_text(
        SUITE + "\nfrom chaos.run import ChaosRun\n"
        "ChaosRun._refuse_what_is_missing = lambda self: None\n"
    )

    ended = run(suite, "--require", "memory", "--require", "netem")

    outcomes = ended.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 2
    ended.stdout.fnmatch_lines(["*required: the local target has no 'memory' here*"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--target", "ssh"], "*--target ssh has no inventory; name its hosts*"),
        (["--fault-ttl", "1"], "*--fault-ttl 1 is too short*"),
        (["--fault-ttl", "nan"], "*--fault-ttl nan is too short*"),
        (["--max-nodes-down", "0"], "*--max-nodes-down 0 allows no fault at all*"),
    ],
)
def test_options_that_make_no_sense_are_one_line(suite, words, line) -> None:
    suite.makepyfile("def test_it(cluster): pass")

    ended = run(suite, *words)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines([line])
    assert "Traceback" not in ended.stderr.str()


def test_a_plan_alone_is_no_pass(suite) -> None:
    suite.makepyfile("def test_it(cluster): pass")
    roles = ["master", *(f"store-{n}" for n in range(8)), "engine-0", "engine-1"]
    hosts = {
        role: {
            "ansible_host": f"10.0.0.{number}",
            "roles": [role],
            "chaos": "allowed",
            "manage": True,
            "rails": [
                {
                    "name": f"rail{rail}",
                    "device": f"eth{rail}",
                    "address": f"10.{rail + 1}.0.{number}",
                }
                for rail in range(2)
            ],
        }
        for number, role in enumerate(roles, 1)
    }
    path = suite.path / "hosts.yaml"
    path.write_text(
        json.dumps({"all": {"vars": {"environment": "test"}, "hosts": hosts}})
    )

    words = ["--target", "ssh", "--inventory", str(path), "--system", "refimpl"]
    ended = run(suite, *words)

    ended.assert_outcomes(skipped=1)
    ended.stdout.fnmatch_lines(["*nothing was done*--arm*"])
    assert ended.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_target_of_the_environment_is_checked(suite, monkeypatch) -> None:
    suite.makepyfile("def test_it(cluster): pass")
    monkeypatch.setenv("MOONQUAKE_TARGET", "moon")

    ended = run(suite)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*no target is called 'moon'; there are local, netns*"])


def test_no_run_starts_while_the_lever_is_pulled(suite) -> None:
    suite.makepyfile("def test_it(cluster): pass")
    folder = suite.path / "state" / f"moonquake-{os.getuid()}"
    folder.mkdir(mode=0o700)
    lever = LocalLever(folder / "halt.json")
    lever.pull(Pulled(reason="pager", by="me", at="now", where="here"))

    ended = run(suite)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*halted by me*pager*chaos resume*"])


@pytest.mark.slow
def test_the_lever_ends_a_run_that_is_under_way(suite) -> None:
    path = suite.makepyfile(
        """
        import time

        def test_it(cluster, judge):
            print("under way", flush=True)
            time.sleep(60)
        """
    )
    words = ["--system", "fake", "--results", str(suite.path / "results"), *LEAN]
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-s", *words, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=suite.path,
    )
    assert running.stdout is not None
    with running.stdout:
        for line in running.stdout:
            if "under way" in line:
                break
        subprocess.run(
            [sys.executable, "-m", "chaos", "halt", "--reason", "pager"],
            check=True,
            capture_output=True,
            cwd=ROOT,
        )
        rest = running.stdout.read()
    assert running.wait(30) == 128 + 15
    assert "faults reverted, run ended" in rest


HOSTS = """
import types
from chaos.clusters import Clusters


class FakeTarget:
    hosts = types.SimpleNamespace(all=())
    broken_promises = ()
    capabilities = frozenset({"nft"})

    def why_not(self, capability):
        return "" if capability == "nft" else "the kernel has none"

    def close(self): pass


Clusters._new_target = lambda self: FakeTarget()
"""


def test_what_is_required_of_hosts_is_asked_of_them(suite) -> None:
    suite.makepyfile("def test_it(cluster): pass")
    (suite.path / "conftest.py").write_text(SUITE + HOSTS)
    there = run(suite, "--target", "netns", "--require", "nft")
    missing = run(suite, "--target", "netns", "--require", "nft,netem")

    there.assert_outcomes(passed=1)
    assert missing.ret == pytest.ExitCode.TESTS_FAILED
    missing.stdout.fnmatch_lines(
        ["*required: the netns target has no 'netem' here: the kernel has none*"]
    )


LEFT = """
from chaos.faults.base import Evidence


class Fault:
    kind, target = "pause", "store-0"

    def plan(self): return ["pause"]
    def inject(self): pass
    def probe(self): return Evidence(measure="fakes", effect=1.0)
    def revert(self): pass
    def verify_reverted(self): return ""


def test_it(cluster_of, chaos_run, inject, judge):
    cluster_of(stores=1)
    with inject(Fault()):
        chaos_run.clusters.target.broken_promises = ("h0: no answer for 30 s",)
    cluster_of(stores=2)


def test_the_next(cluster_of, inject, judge):
    cluster_of(stores=1)
    with inject(Fault()):
        pass
"""


def test_a_lease_that_was_lost_is_told_also_of_a_cluster_that_was_left(suite) -> None:
    suite.makepyfile(LEFT)
    (suite.path / "conftest.py").write_text(SUITE + HOSTS)

    ended = run(suite, "--target", "netns")

    ended.assert_outcomes(failed=1, passed=1)
    ended.stdout.fnmatch_lines(["*h0: no answer for 30 s*"])

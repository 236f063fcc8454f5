from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chaos.canary.build import Build, BuildPlace, BuildTarget, Failpoint
from chaos.errors import UsageError
from chaos.safety.ledger import Ledger
from chaos.safety.locks import lease_block
from chaos.targets.local import LocalTarget


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "branch" / "refimpl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("WHO = 'branch'\n", encoding="utf-8")
    (package / "__main__.py").write_text("", encoding="utf-8")
    return tmp_path / "branch"


@pytest.fixture
def spawned(monkeypatch):
    """What `LocalTarget.spawn` is given, without a process."""
    seen = []
    monkeypatch.setattr(
        LocalTarget, "spawn", lambda _self, role, argv, env: seen.append((role, env))
    )
    return seen


@pytest.fixture
def target(tmp_path):
    made = []

    def make(build):
        ledger = Ledger(tmp_path / f"ledger-{len(made)}.jsonl")
        block = lease_block(directory=tmp_path)
        made.append((ledger, block))
        there = BuildPlace(build=build).target(
            run_dir=tmp_path / "run", ledger=ledger, block=block, command=""
        )
        made.append((there, None))
        return there

    yield make
    for one, block in made:
        one.close()
        if block is not None:
            block.lock.release()


def test_a_checkout_is_really_what_runs(checkout):
    assert Build.at(str(checkout)).origin() == str(checkout / "refimpl")


def test_the_working_directory_does_not_shadow_a_build(checkout, tmp_path, monkeypatch):
    """`python -m` looks there first: the canary would silently be the baseline."""
    other = tmp_path / "here" / "refimpl"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("WHO = 'here'\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")

    assert Build.at(str(checkout)).origin() == str(checkout / "refimpl")


def test_a_build_that_would_run_our_own_sources_is_refused(tmp_path):
    """An interpreter without a build of its own finds ours, where it is installed."""
    script = tmp_path / "python"
    ours = Build().origin()
    script.write_text(f"#!/bin/sh\necho {ours}\n", encoding="utf-8")
    script.chmod(0o755)

    with pytest.raises(UsageError, match="which is another build"):
        Build.at(str(script)).origin()


def test_our_own_checkout_may_be_named_too():
    ours = Path(Build().origin())

    assert Build.at(str(ours.parent)).origin() == str(ours)


@pytest.mark.parametrize("body", ["exit 1", "true", "echo boom >&2; exit 3"])
def test_an_interpreter_without_the_build_is_refused(tmp_path, body):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    script.chmod(0o755)

    with pytest.raises(UsageError, match="has no refimpl"):
        Build.at(str(script)).origin()


def test_roles_of_another_build_are_started_with_its_sources(checkout, target, spawned):
    there = target(Build.at(str(checkout)))

    there.spawn("master", [], {"PYTHONPATH": "/ours", "X": "1"})

    assert isinstance(there, BuildTarget)
    assert there.python("master") == sys.executable
    ((_, env),) = spawned
    assert env["PYTHONPATH"] == str(checkout)
    assert env["PYTHONSAFEPATH"] == "1"
    assert env["X"] == "1"


def test_our_own_build_is_started_as_ever(target, spawned):
    target(Build()).spawn("master", [], {"PYTHONPATH": "/ours"})

    assert spawned == [("master", {"PYTHONPATH": "/ours"})]


def test_failpoints_reach_their_roles_beside_defects(target, spawned):
    points = tuple(
        map(Failpoint.parse, ["store:store.read=on", "master:master.lookup=sleep(2)"])
    )
    there = target(Build(failpoints=points))

    for role in ("master", "store-0", "engine-0"):
        there.spawn(role, [], {"REFIMPL_FAILPOINTS": "defect.x=on"})

    found = {role: env["REFIMPL_FAILPOINTS"] for role, env in spawned}
    assert found == {
        "master": "defect.x=on;master.lookup=sleep(2)",
        "store-0": "defect.x=on;store.read=on",
        "engine-0": "defect.x=on",
    }


def test_builds_and_failpoints_do_not_reach_hosts(tmp_path, checkout):
    place = BuildPlace(kind="netns", build=Build.at(str(checkout)))

    with pytest.raises(UsageError, match="does not reach netns"):
        place.target(run_dir=tmp_path, ledger=None, block=None, command="")

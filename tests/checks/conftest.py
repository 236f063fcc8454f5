"""Hand-made facts documents and short questions to a report."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from checks.judge import judge
from checks.profile import Profile
from checks.rules import all_rules


def _command(entry):
    """Text is its output; (rc, stdout, stderr) as it says; a list is samples."""
    if isinstance(entry, str):
        entry = (0, entry, "")
    if isinstance(entry, tuple):
        rc, stdout, stderr = (*entry, "", "")[:3]
        return {"rc": rc, "stdout": stdout, "stderr": stderr, "ms": 1, "timeout": False}
    if isinstance(entry, list):
        return [{**_command(each), "t": t} for t, each in entry]
    return entry


def _file(entry):
    """Text is its text; `OSError` names are errnos; a tuple is a directory."""
    if isinstance(entry, str):
        return {"text": entry}
    if isinstance(entry, tuple):
        return {"entries": list(entry)}
    if isinstance(entry, list):
        return [{**_file(each), "t": t} for t, each in entry]
    return entry


@dataclass(frozen=True)
class Verdicts:
    """A report, asked by check, subject and node."""

    report: object

    def all(self, check, subject=None, node=None):
        return [
            finding
            for finding in self.report.findings
            if finding.id == check
            and subject in {None, finding.subject}
            and node in {None, finding.node}
        ]

    def one(self, check, subject=None, node=None):
        found = self.all(check, subject, node)
        assert len(found) == 1, [(f.node, f.subject, f.status.value) for f in found]
        return found[0]

    def status(self, check, subject=None, node=None):
        return self.one(check, subject, node).status.value

    def statuses(self, check, node=None):
        """Statuses by subject (of one node)."""
        return {f.subject: f.status.value for f in self.all(check, node=node)}

    def by_node(self, check):
        """Statuses by node, of a check with one subject a node."""
        return {f.node: f.status.value for f in self.all(check)}


@dataclass(frozen=True)
class Bench:
    """Builds documents and judges them."""

    def doc(self, name="node-a", *, cmds=None, files=None, collector=None, **node):
        return {
            "schema": "preflight.facts/1",
            "collector": {"euid": 0, **(collector or {})},
            "node": {"hostname": name, "boot_id": "b", "virt": "none", **node},
            "cmds": {line: _command(entry) for line, entry in (cmds or {}).items()},
            "files": {path: _file(entry) for path, entry in (files or {}).items()},
        }

    def env(self, pid=4242, **variables):
        """The `environ` file of one service, as `files` takes it."""
        text = "".join(f"{name}={value}\0" for name, value in variables.items())
        return {f"/proc/{pid}/environ": text}

    def judge(self, *documents, only=None, profile=None, nics=(), **rest):
        """Judges; `only` limits to these checks (and what blocks them)."""
        rules = all_rules()
        if only is not None:
            wanted = {only} if isinstance(only, str) else set(only)
            assert wanted <= {rule.id for rule in rules}
            rules = [rule for rule in rules if rule.id in wanted]
        if isinstance(profile, dict):
            profile = Profile.model_validate(profile)
        report = judge(documents, profile, rules=rules, nics=nics, **rest)
        assert report.own_faults == ()
        return Verdicts(report)


@pytest.fixture
def bench():
    return Bench()


def _load_healthy():
    path = Path(__file__).parent / "healthy.py"
    spec = spec_from_file_location("checks_healthy", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_HEALTHY = _load_healthy()
_COHORT = _HEALTHY.Healthy()


@pytest.fixture
def healthy():
    """The healthy cohort; ask it for documents, they are copies."""
    return _COHORT


def pytest_generate_tests(metafunc):
    if "mutant" in metafunc.fixturenames:
        every = _HEALTHY.mutants()
        metafunc.parametrize("mutant", every, ids=[str(each) for each in every])


@pytest.fixture
def all_mutants():
    """Every single-fault mutant of every part."""
    return _HEALTHY.mutants()

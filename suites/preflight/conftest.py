"""Hosts of pytest-testinfra, judged once; options of `preflight` for its items."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.fleet import CollectOptions
from checks.items import Items
from checks.judge import judge
from checks.profile import Profile, load_profile
from checks.rules import all_rules
from checks.through_testinfra import collect_through

OPTIONS = {
    "--preflight-profile": "YAML profile of golden values",
    "--preflight-nics": "RDMA devices to judge, by comma",
    "--preflight-only": "only these checks, by comma",
    "--preflight-python": "interpreter on the hosts (python3)",
}


def pytest_addoption(parser):
    group = parser.getgroup("preflight")
    for name, told in OPTIONS.items():
        group.addoption(name, default="", help=told)


def pytest_configure(config):
    """Hosts without a scheme are reached by OpenSSH, which is strict about keys.

    testinfra's own default, paramiko, accepts any unknown key with a warning.
    """
    if config.option.hosts and not config.option.connection:
        config.option.connection = "ssh"


def pytest_generate_tests(metafunc):
    if "check" in metafunc.fixturenames:
        every = [rule.id for rule in all_rules()]
        only = _words(metafunc.config.getoption("--preflight-only"))
        unknown = sorted(set(only) - set(every))
        if unknown:
            raise pytest.UsageError(
                f"no check is called {', '.join(unknown)}: see preflight list-checks"
            )
        metafunc.parametrize(
            "check", [name for name in every if name in only or not only]
        )


def _words(text):
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _hosts(items):
    """The hosts of all selected items: they are each other's peers."""
    found = {}
    for each in items:
        host = getattr(each, "callspec", None) and each.callspec.params.get(
            "_testinfra_host"
        )
        if host is not None:
            found.setdefault(id(host), host)
    return list(found.values())


@pytest.fixture(scope="session")
def report_of(request):
    """(items of all hosts, their names by identity); collected and judged once."""
    option = request.config.getoption
    path = option("--preflight-profile")
    profile = load_profile(Path(path)) if path else Profile()
    nics = _words(option("--preflight-nics"))
    hosts = _hosts(request.session.items)
    documents = collect_through(
        hosts,
        CollectOptions(nics=nics or profile.nics),
        python=option("--preflight-python") or "python3",
    )
    names = {
        id(host): document["node"]["hostname"]
        for host, document in zip(hosts, documents, strict=True)
    }
    return Items(judge(documents, profile, nics=nics)), names


@pytest.fixture
def judged(report_of, host):
    """Asks for what a check came to on the host of this item."""
    items, names = report_of
    return lambda check: items.of(check, names[id(host)])

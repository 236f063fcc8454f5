"""Every check of `preflight` as an item per host.

    pytest suites/preflight --hosts ssh://node-1,ssh://node-2 --sudo
    pytest suites/preflight --ansible-inventory hosts.yaml --hosts ansible://stores
    pytest suites/preflight --hosts local:// --preflight-profile golden.yaml

All hosts are read first, each by one command, and judged together: they are each
other's peers. An UNKNOWN of a check that may fail a node fails its item.
"""

from __future__ import annotations

import warnings

import pytest

from checks.items import ItemOutcome, PreflightWarning

testinfra_hosts = ["local://"]
pytestmark = pytest.mark.filterwarnings("always::checks.items.PreflightWarning")


def test_the_host_is_fit(check, judged):
    """No FAIL, and nothing that decides is UNKNOWN."""
    found = judged(check)

    if found.outcome is ItemOutcome.SKIPPED:
        pytest.skip(found.text)
    if found.outcome is ItemOutcome.WARNED:
        warnings.warn(PreflightWarning(found.text), stacklevel=1)
    if found.outcome is ItemOutcome.FAILED:
        pytest.fail(found.text, pytrace=False)

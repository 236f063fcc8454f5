"""Mooncake's own tests of its client, on the reference system, unchanged.

`MOONCAKE_SRC` is a checkout of kvcache-ai/Mooncake. Each file runs in a process of its
own with the shim first on its path, against a master of its own. What they ask for
stands in our words in `test_mooncake.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl.master import MasterSettings
from refimpl.master.process import Master

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "refimpl" / "compat" / "shim"
SOURCE = os.environ.get("MOONCAKE_SRC", "")
LEASE_MS = 500
FILES = {
    "test_distributed_object_store.py": 16,
    "test_replicated_distributed_object_store.py": 5,
}
"""Tests in each file at least; fewer means that something else was run."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not SOURCE,
        reason="MOONCAKE_SRC names no checkout of github.com/kvcache-ai/Mooncake",
    ),
]


@pytest.fixture
def upstream():
    """Runs a file of upstream's against a master of its own; its output."""
    settings = MasterSettings(
        listen="127.0.0.1:0",
        heartbeat_listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0",
        default_kv_lease_ttl_s=LEASE_MS / 1000,
        seed=1,
    )
    with Master(settings) as master:

        def run(name):
            folder = Path(SOURCE) / "mooncake-wheel" / "tests"
            environment = {
                **os.environ,
                "PYTHONPATH": f"{SHIM}{os.pathsep}{ROOT}",
                "MASTER_SERVER": str(master.addresses["listen"]),
                "MC_METADATA_SERVER": "P2PHANDSHAKE",
                "LOCAL_HOSTNAME": "localhost",
                "PROTOCOL": "tcp",
                "DEFAULT_KV_LEASE_TTL": str(LEASE_MS),
            }
            return subprocess.run(
                [sys.executable, "-W", "default", "-m", "unittest", "-v", name],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )

        yield run


@pytest.mark.parametrize("name", FILES)
def test_upstreams_own_tests_pass(upstream, name):
    done = upstream(name)
    words = done.stdout + done.stderr

    assert done.returncode == 0, words[-8000:]
    assert re.search(r"^OK$", done.stderr, re.MULTILINE), words[-8000:]
    count = int(re.search(r"Ran (\d+) tests?", done.stderr)[1])
    assert count >= FILES[name]
    assert "ResourceWarning" not in words

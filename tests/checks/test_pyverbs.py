"""The pyverbs block: with the distribution's module, without it, and with devices.

The module belongs to the distribution's python and needs no RDMA device to be imported.
Without an RDMA core in the kernel asking for devices raises; that is a fact, never the
end of a collection.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks.finding import Status
from checks.fleet import COLLECTOR
from checks.framing import decode
from checks.here import SYSTEM_PYTHON
from checks.judge import judge

FAKE = """
class Attributes:
    max_mr_size, fw_version, max_qp = 1 << 40, "28.43.2566", 131072


class PortAttributes:
    active_mtu, gid_tbl_len = 5, 256


class Device:
    def __init__(self, name):
        self.name = name


class Context:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def query_device(self):
        return Attributes

    def query_port(self, number):
        return PortAttributes


def get_device_list():
    return [Device(name) for name in NAMES]
"""


def has_pyverbs(python):
    done = subprocess.run(
        [str(python), "-c", "import pyverbs.device"], capture_output=True, check=False
    )
    return done.returncode == 0


def collected(python, path="", sysroot=""):
    """The document of a collector under this interpreter; `path` is its PYTHONPATH."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = ["--sysroot", str(sysroot)] if sysroot else []
    done = subprocess.run(
        [str(python), str(COLLECTOR), *words],
        env=environment | ({"PYTHONPATH": str(path)} if path else {}),
        capture_output=True,
        timeout=60,
        check=True,
    )
    return decode(done.stdout)


def fake(folder, *names):
    package = folder / "pyverbs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "device.py").write_text(
        f"NAMES = {list(map(str.encode, names))}\n{FAKE}"
    )
    return folder


def sysroot(folder, *names):
    """RDMA devices with ports that are up, and nodes that everybody may open."""
    nodes = folder / "dev/infiniband"
    nodes.mkdir(parents=True)
    for at, name in enumerate(names):
        (nodes / f"uverbs{at}").touch()
        (nodes / f"uverbs{at}").chmod(0o666)
        verbs = folder / f"sys/class/infiniband_verbs/uverbs{at}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"{name}\n")
        port = folder / f"sys/class/infiniband/{name}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "phys_state").write_text("5: LinkUp\n")
    return folder


def verdicts(document, check):
    report = judge([document])
    assert report.own_faults == ()
    return {f.status for f in report.findings if f.id == check}


def test_without_the_module_the_block_says_so_and_the_rest_is_collected(tmp_path):
    if has_pyverbs(sys.executable):
        pytest.skip("pyverbs can be imported here: run the tests in a bare venv")

    document = collected(sys.executable, sysroot=tmp_path)

    assert document["verbs"] == {
        "error": "ModuleNotFoundError: No module named 'pyverbs'"
    }
    assert document["collector"]["late"] is False
    assert "fault" not in document["collector"]


def test_the_distributions_module_without_an_rdma_core_is_a_fact_and_no_pass():
    if not has_pyverbs(SYSTEM_PYTHON):
        pytest.skip(f"no pyverbs for {SYSTEM_PYTHON}: apt-get install python3-pyverbs")
    if Path("/sys/class/infiniband").exists():
        pytest.skip("this kernel has an RDMA core: run the tests where there is none")

    document = collected(SYSTEM_PYTHON)

    assert document["verbs"]["error"].startswith("PyverbsRDMAError: Failed to get dev")
    assert "fault" not in document["collector"]
    assert verdicts(document, "nic-count") == {Status.FAIL}
    assert Status.PASS not in verdicts(document, "nic-userspace-provider")
    assert Status.PASS not in verdicts(document, "roce-max-mr")


def test_devices_that_pyverbs_opens_are_told_with_what_sysfs_lacks(tmp_path):
    (tmp_path / "root").mkdir()
    path = fake(tmp_path, "mlx5_0", "mlx5_1")
    root = sysroot(tmp_path / "root", "mlx5_0", "mlx5_1")

    document = collected(sys.executable, path, root)

    assert document["verbs"]["mlx5_1"] == {
        "max_mr_size": 1 << 40,
        "fw_ver": "28.43.2566",
        "max_qp": 131072,
        "active_mtu": 4096,
        "gid_tbl_len": 256,
    }


@pytest.mark.parametrize(
    ("opened", "verdict"),
    [(("mlx5_0", "mlx5_1"), Status.PASS), (("mlx5_0",), Status.FAIL)],
)
def test_where_the_tool_is_missing_pyverbs_tells_what_user_space_can_open(
    tmp_path, opened, verdict
):
    (tmp_path / "root").mkdir()
    path = fake(tmp_path, *opened)
    document = collected(
        sys.executable, path, sysroot(tmp_path / "root", "mlx5_0", "mlx5_1")
    )
    for line in ("ibv_devinfo -l", "ibv_devinfo -v"):
        document["cmds"][line] = {"rc": 127, "stdout": "", "stderr": "not found"}

    assert verdicts(document, "nic-userspace-provider") == {verdict}

"""The driver on disk beside the one that runs, and queues that are only told."""

from __future__ import annotations

import json

import pytest

CHECK = "nic-driver-kernel-mismatch"
LOADED = "B9C5A1D2E3F405162738495"
RELEASE = "6.8.0-60-generic"
MODULES = "mlx5_core 2248704 1 mlx5_ib, Live 0x0\n"


def modinfo(srcversion=LOADED, release=RELEASE):
    source = f"srcversion:     {srcversion}\n" if srcversion else ""
    return (
        f"filename:       /lib/modules/{RELEASE}/kernel/mlx5_core.ko\n{source}"
        f"vermagic:       {release} SMP preempt mod_unload \n"
    )


def status(bench, told, loaded=f"{LOADED}\n", modules=MODULES, only="status"):
    files = {"/proc/modules": modules}
    if loaded is not None:
        files["/sys/module/mlx5_core/srcversion"] = loaded
    cmds = {"uname -r": f"{RELEASE}\n"}
    if told is not None:
        cmds["modinfo mlx5_core"] = told
    finding = bench.judge(bench.doc(cmds=cmds, files=files), only=CHECK).one(CHECK)
    return getattr(finding, only)


def test_what_is_loaded_and_installed_alike_passes(bench):
    assert status(bench, modinfo()) == "PASS"


def test_a_module_that_was_installed_since_warns(bench):
    observed = status(bench, modinfo("0123456789ABCDEF"), only="observed")

    assert observed == f"{LOADED} is loaded, 0123456789ABCDEF installed"
    assert status(bench, modinfo("0123456789ABCDEF")) == "WARN"


def test_a_module_for_another_kernel_warns(bench):
    assert status(bench, modinfo(release="6.8.0-64-generic")) == "WARN"


@pytest.mark.parametrize(
    "told",
    [
        None,
        (127, "", "not found"),
        (1, "", "modinfo: ERROR: Module mlx5_core not found.\n"),
        modinfo("")[:60],
        modinfo(""),
    ],
    ids=["missing", "no tool", "not installed", "cut", "no hash"],
)
def test_what_could_not_be_compared_is_unknown(bench, told):
    assert status(bench, told) == "UNKNOWN"


def test_a_cut_behind_the_source_never_passes(bench):
    text = modinfo()

    for at in range(len(text)):
        assert status(bench, text[:at]) == "UNKNOWN"


def test_a_driver_that_is_not_loaded_or_built_in_is_skipped(bench):
    other = "nvme 61440 2 - Live 0x0\n"
    builtin = "name:           mlx5_core\nfilename:       (builtin)\n"

    assert status(bench, modinfo(), loaded=None, modules=other) == "SKIP"
    assert status(bench, builtin) == "SKIP"


def test_an_old_module_beside_a_new_one_explains_that_the_node_differs(bench):
    nodes = []
    for at in range(4):
        loaded = "0123456789ABCDEF" if at == 3 else LOADED
        files = {"/proc/modules": MODULES} | {
            "/sys/module/mlx5_core/srcversion": f"{loaded}\n"
        }
        cmds = {"uname -r": f"{RELEASE}\n", "modinfo mlx5_core": modinfo()}
        nodes.append(bench.doc(f"node-{at}", cmds=cmds, files=files))

    seen = bench.judge(*nodes, only=(CHECK, "nic-driver-consistent"))

    assert seen.status(CHECK, node="node-3") == "WARN"
    build = seen.one("nic-driver-consistent", "mlx5_core srcversion", "node-3")
    assert (build.status, build.blocked_by) == ("FAIL", (CHECK,))


RINGS = "Current hardware settings:\nRX:\t\t{}\nTX:\t\t1024\n"


def test_rings_and_channels_that_differ_are_told_and_never_bad(bench):
    link = {
        "ifname": "eth0",
        "flags": ["UP", "LOWER_UP"],
        "mtu": 4200,
        "link_type": "ether",
        "addr_info": [
            {
                "family": "inet",
                "local": "198.18.0.1",
                "prefixlen": 24,
                "scope": "global",
            }
        ],
    }
    nodes = [
        bench.doc(
            f"node-{at}",
            cmds={
                "ip -j -d addr": json.dumps([link]),
                "ethtool -g eth0": RINGS.format(8192 if at == 3 else 1024),
                "ethtool -l eth0": (1, "", "netlink error: Operation not supported\n"),
            },
        )
        for at in range(4)
    ]

    seen = bench.judge(*nodes, only=("nic-rings", "nic-combined"))

    other = seen.one("nic-rings", node="node-3")
    assert (other.status, other.severity) == ("PASS", "info")
    assert "RX 8192, TX 1024" in other.observed
    assert set(seen.by_node("nic-combined").values()) == {"SKIP"}

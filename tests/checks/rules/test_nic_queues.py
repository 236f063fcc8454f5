"""Interrupts of NICs: told, compared, and never bad."""

from __future__ import annotations

import pytest

CHECK = "nic-irq-affinity"
BDF = "0000:1a:00.0"
IRQS = f"irqs {BDF}"
BALANCE = "systemctl is-active irqbalance.service"
IB = "/sys/class/infiniband/mlx5_0"
NODE = "/sys/devices/system/node/node{}/cpulist"
LOCAL = "# 2 interrupts\n121 3\n122 0,2\n"
REMOTE = "# 2 interrupts\n121 3\n122 5\n"


def doc(bench, name="node-a", irqs=LOCAL, balance=(3, "inactive\n", "")):
    files = {
        f"{IB}/device": {"link": f"../../../{BDF}"},
        f"{IB}/ports/1/state": "4: ACTIVE\n",
        f"{IB}/ports/1/phys_state": "5: LinkUp\n",
        NODE.format(0): "0-3\n",
        NODE.format(1): "4-7\n",
    }
    cmds = {IRQS: irqs, BALANCE: balance}
    kept = {line: entry for line, entry in cmds.items() if entry is not None}
    return bench.doc(name, cmds=kept, files=files)


def test_a_node_whose_interrupts_are_elsewhere_is_told_and_never_bad(bench):
    nodes = [doc(bench, f"node-{at}", REMOTE if at == 3 else LOCAL) for at in range(4)]

    seen = bench.judge(*nodes, only=CHECK)

    found = seen.one(CHECK, node="node-3")
    assert (found.status, found.severity) == ("PASS", "info")
    assert found.observed == "NUMA node 0, 1, irqbalance off"
    assert found.expected.startswith("NUMA node 0, irqbalance off")
    assert not [f for f in seen.report.findings if f.bad]


def test_that_irqbalance_runs_is_told(bench):
    nodes = [doc(bench, f"node-{at}", balance="active\n") for at in range(3)]

    found = bench.judge(*nodes, only=CHECK).one(CHECK, node="node-1")

    assert (found.status, found.severity) == ("PASS", "info")
    assert "irqbalance moves them" in found.observed


def test_a_nic_without_interrupts_of_its_own_is_skipped(bench):
    node = doc(bench, irqs="# 0 interrupts\n")

    assert bench.judge(node, only=CHECK).status(CHECK) == "SKIP"


@pytest.mark.parametrize(
    "more",
    [
        {"irqs": None},
        {"irqs": LOCAL[:-1]},
        {"irqs": "# 3 interrupts\n121 3\n122 0,2\n"},
        {"irqs": "# 1 interrupts\n121 ?\n"},
        {"irqs": "# 1 interrupts\n121 all\n"},
        {"irqs": "# 1 interrupts\n121 9\n"},
        {"irqs": ""},
        {"balance": None},
        {"balance": (1, "", "System has not been booted with systemd\n")},
        {"balance": (0, "active", "")},
        {"balance": (127, "", "not found")},
    ],
)
def test_what_was_not_read_whole_is_unknown(bench, more):
    nodes = [doc(bench, f"node-{at}") for at in range(3)]

    seen = bench.judge(*nodes, doc(bench, "node-9", **more), only=CHECK)

    assert seen.status(CHECK, node="node-9") == "UNKNOWN"


@pytest.mark.parametrize("at", range(len(LOCAL)))
def test_no_cut_of_the_interrupts_tells_anything(bench, at):
    node = doc(bench, irqs=LOCAL[:at])

    assert bench.judge(node, only=CHECK).status(CHECK) == "UNKNOWN"

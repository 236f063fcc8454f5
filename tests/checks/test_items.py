"""What findings come to as test items."""

from __future__ import annotations

import json

from checks.items import ItemOutcome, Items


def port(name, state="4: ACTIVE", bdf="0000:1a:00.0"):
    base = f"/sys/class/infiniband/{name}"
    return {
        f"{base}/device": {"link": f"../../../{bdf}"},
        f"{base}/ports/1/state": f"{state}\n",
        f"{base}/ports/1/phys_state": "5: LinkUp\n",
        f"{base}/ports/1/link_layer": "Ethernet\n",
    }


def items(bench, *documents, **options):
    return Items(bench.judge(*documents, **options).report)


def test_one_bad_subject_fails_the_item_and_is_told_with_its_remedy(bench):
    files = port("mlx5_0") | port("mlx5_1", "1: DOWN", "0000:2a:00.0")

    found = items(bench, bench.doc(files=files)).of("nic-port-state", "node-a")

    assert found.outcome is ItemOutcome.FAILED
    assert found.text.startswith("FAIL nic-port-state mlx5_1: DOWN, LINK_UP")
    assert "mlx5_0" not in found.text
    assert "fix: Disabled: ip link set NETDEV up" in found.text


def test_what_decides_and_is_unknown_fails(bench):
    found = items(bench, bench.doc(files=port("mlx5_0"))).of("nic-rate", "node-a")

    assert found.outcome is ItemOutcome.FAILED
    assert found.text.startswith("UNKNOWN nic-rate mlx5_0")


def test_unless_the_profile_calls_it_optional(bench):
    profile = {"optional": ["nic-rate"]}

    found = items(bench, bench.doc(files=port("mlx5_0")), profile=profile)

    assert found.of("nic-rate", "node-a").outcome is ItemOutcome.SKIPPED
    assert found.of("nic-rate", "node-a").text.startswith("UNKNOWN: ")


def test_a_warning_warns(bench):
    document = bench.doc(files=port("mlx5_0"), collector={"euid": 1000})

    found = items(bench, document).of("meta-privilege", "node-a")

    assert found.outcome is ItemOutcome.WARNED
    assert "euid 1000" in found.text


def test_an_unknown_that_does_not_decide_is_no_pass_but_a_skip(bench):
    found = items(bench, bench.doc(files=port("mlx5_0"))).of("nic-numa", "node-a")

    assert found.outcome is ItemOutcome.SKIPPED
    assert found.text.startswith("UNKNOWN: ")


def test_an_unknown_beside_a_pass_warns(bench):
    files = port("mlx5_0") | port("mlx5_1", bdf="0000:2a:00.0")
    files["/sys/class/infiniband/mlx5_0/device/numa_node"] = "0\n"
    nodes = [bench.doc(f"node-{n}", files=files) for n in "abc"]

    found = items(bench, *nodes).of("nic-numa", "node-a")

    assert found.outcome is ItemOutcome.WARNED
    assert "UNKNOWN nic-numa mlx5_1" in found.text


def test_what_holds_passes(bench):
    found = items(bench, bench.doc(files=port("mlx5_0")))

    assert found.of("nic-port-state", "node-a").outcome is ItemOutcome.PASSED


def test_what_another_failure_blocks_is_skipped_with_its_name(bench):
    nodes = [bench.doc(f"node-{n}", files=port("mlx5_0")) for n in "abc"]
    odd = port("mlx5_0", "1: DOWN")
    odd["/sys/class/infiniband/mlx5_0/ports/1/link_layer"] = "InfiniBand\n"

    found = items(bench, *nodes, bench.doc("node-d", files=odd))

    assert found.of("nic-port-state", "node-d").text == "blocked by nic-link-type"
    assert found.of("nic-port-state", "node-d").outcome is ItemOutcome.SKIPPED


def test_a_symptom_fails_and_names_its_cause(bench):
    complaint = (
        "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)"
    )
    log = {"dmesg": [{"pri": 3, "time": 1.0, "msg": complaint}]}
    files = {"/proc/modules": "nvidia 1 0 - Live 0x0\nib_core 1 0 - Live 0x0\n"}
    document = bench.doc(cmds={"dmesg -J": json.dumps(log)}, files=files)

    found = items(bench, document).of("gdr-peermem-loaded", "node-a")

    assert found.outcome is ItemOutcome.FAILED
    assert "explained by: gdr-peermem-symver" in found.text


def test_a_node_that_was_never_judged_is_skipped_and_not_passed(bench):
    found = items(bench, bench.doc()).of("nic-count", "node-z")

    assert (found.outcome, found.text) == (ItemOutcome.SKIPPED, "not judged")

"""PCIe rules, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

PCI = "/sys/bus/pci/devices"
NIC = "0000:97:00.0"
NIC_LABEL = f"mlx5_0 ({NIC})"
GPU = "0000:98:00.0"
R38 = (
    "252.056 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x8 link at"
    " 0000:97:01.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
)


def nic(bdf=NIC, device="mlx5_0"):
    base = f"/sys/class/infiniband/{device}"
    return {
        f"{base}/device": {"link": f"../../../{bdf}"},
        f"{base}/ports/1/state": "4: ACTIVE\n",
        f"{base}/ports/1/phys_state": "5: LinkUp\n",
    }


def log(*lines):
    rows = [{"pri": 4, "time": 9.0, "msg": line} for line in lines]
    return {"dmesg -J": json.dumps({"dmesg": rows})}


def test_f28_r38_a_nic_with_less_bandwidth_than_it_can_use_fails(bench):
    doc = bench.doc(files=nic(), cmds=log(f"mlx5_core {NIC}: {R38}"))

    failed = bench.judge(doc).one("pcie-dmesg-limited")

    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert failed.subject == NIC_LABEL
    assert "0000:97:01.0" in failed.observed


def test_f28_the_same_text_of_the_pci_core_passes(bench):
    line = (
        "pci 0000:97:00.0: 4.000 Gb/s available PCIe bandwidth, limited by 5.0 GT/s"
        " PCIe x1 link at 0000:00:1c.0 (capable of 8.000 Gb/s with 5.0 GT/s PCIe x2"
        " link)"
    )

    with_nic = bench.judge(bench.doc(files=nic(), cmds=log(line)))
    without = bench.judge(bench.doc(cmds=log(line)))

    assert with_nic.status("pcie-dmesg-limited") == "PASS"
    assert without.status("pcie-dmesg-limited") == "PASS"


def test_f28_a_line_of_mlx5_fails_also_where_no_nic_is_known(bench):
    doc = bench.doc(cmds=log(f"mlx5_core {NIC}: {R38}"))

    failed = bench.judge(doc).one("pcie-dmesg-limited")

    assert (failed.status, failed.subject) == ("FAIL", NIC)


def test_f28_plain_dmesg_tells_the_same(bench):
    cmds = {"dmesg": f"[    9.123456] mlx5_core {NIC}: {R38}\n"}

    assert bench.judge(bench.doc(files=nic(), cmds=cmds)).status(
        "pcie-dmesg-limited"
    ) == ("FAIL")


def listing(status, capability="Port #0, Speed 32GT/s, Width x16, ASPM not supported"):
    return f"\t\tLnkCap:\t{capability}\n\t\tLnkSta:\t{status}\n"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("Speed 32GT/s (ok), Width x8 (downgraded)", "FAIL"),
        ("Speed 32GT/s, Width x8", "FAIL"),
        ("Speed 32GT/s, Width x16", "PASS"),
        ("Speed 32GT/s (ok), Width x16 (ok)", "PASS"),
        ("Speed 16GT/s (downgraded), Width x16 (ok)", "FAIL"),
        ("Speed 16GT/s, Width x16", "FAIL"),
        ("Speed 32GT/s", "UNKNOWN"),
    ],
)
@pytest.mark.parametrize("header", [f"{NIC} Ethernet controller: Mellanox\n", ""])
def test_f29_the_link_of_a_nic_by_lspci(bench, header, status, verdict):
    cmds = {f"lspci -Dvvv -s {NIC}": header + listing(status)}

    with_port = bench.judge(bench.doc(files=nic(), cmds=cmds))
    alone = bench.judge(bench.doc(cmds=cmds))

    assert with_port.status("pcie-link-nic", NIC_LABEL) == verdict
    assert alone.status("pcie-link-nic", NIC) == verdict


def sysfs(width="16", speed="32.0 GT/s PCIe", base=f"{PCI}/{NIC}"):
    return {
        f"{base}/current_link_speed": f"{speed}\n",
        f"{base}/current_link_width": f"{width}\n",
        f"{base}/max_link_speed": "32.0 GT/s PCIe\n",
        f"{base}/max_link_width": "16\n",
    }


@pytest.mark.parametrize(
    "base", [f"{PCI}/{NIC}", "/sys/class/infiniband/mlx5_0/device"]
)
def test_f29_the_link_of_a_nic_by_sysfs(bench, base):
    def status(**given):
        doc = bench.doc(files=nic() | sysfs(base=base, **given))
        return bench.judge(doc).status("pcie-link-nic")

    assert status() == "PASS"
    assert status(width="8") == "FAIL"
    assert status(speed="16.0 GT/s PCIe") == "FAIL"
    assert status(speed="Unknown") == "UNKNOWN"
    assert status(width="255") == "UNKNOWN"


def test_f29_r39_nhc_90_without_sysfs_and_with_lspci_denied_it_is_unknown(bench):
    gone = {path: {"errno": "ENOENT"} for path in sysfs()}
    denied = f"{NIC} Ethernet controller: Mellanox\n\tCapabilities: <access denied>\n"

    doc = bench.doc(files=nic() | gone, cmds={f"lspci -Dvvv -s {NIC}": denied})

    assert bench.judge(doc).status("pcie-link-nic") == "UNKNOWN"


def test_f29_r39_without_sysfs_lspci_is_asked(bench):
    gone = {path: {"errno": "ENOENT"} for path in sysfs()}
    cmds = {f"lspci -Dvvv -s {NIC}": listing("Speed 32GT/s, Width x8")}

    doc = bench.doc(files=nic() | gone, cmds=cmds)

    assert bench.judge(doc).status("pcie-link-nic") == "FAIL"


@pytest.mark.parametrize(
    ("status", "verdict", "severity"),
    [
        ("Speed 2.5GT/s (downgraded), Width x16 (ok)", "PASS", "info"),
        ("Speed 32GT/s, Width x16", "PASS", "warning"),
        ("Speed 32GT/s, Width x8 (downgraded)", "FAIL", "error"),
    ],
)
def test_f29_an_idle_gpu_may_be_slow_but_not_narrow(bench, status, verdict, severity):
    header = f"{GPU} 3D controller: NVIDIA Corporation GH100 (rev a1)\n"
    cmds = {f"lspci -Dvvv -s {GPU}": header + listing(status)}

    told = bench.judge(bench.doc(cmds=cmds)).one("pcie-link-gpu")

    assert (told.status, told.severity, told.subject) == (verdict, severity, GPU)


def test_a_virtual_function_has_no_link_of_its_own(bench):
    files = nic() | {"/sys/class/infiniband/mlx5_0/device/physfn": {"link": "../x"}}

    seen = bench.judge(bench.doc(files=files), nics=("mlx5_0",))

    assert seen.status("pcie-link-nic") == "SKIP"


def test_a_slot_without_power_fails(bench):
    line = (
        f"mlx5_core {NIC}: mlx5_pcie_event:301:(pid 1): Detected insufficient power on"
        " the PCIe slot (27W)."
    )

    failed = bench.judge(bench.doc(files=nic(), cmds=log(line))).one("pcie-power")
    passed = bench.judge(bench.doc(files=nic(), cmds=log("other"))).one("pcie-power")

    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert passed.status == "PASS"


def errors(fatal=0, nonfatal=0, correctable=0):
    def text(name, total):
        return f"Undefined 0\nDLP {total}\nTOTAL_ERR_{name} {total}\n"

    return {
        f"{PCI}/{NIC}/aer_dev_fatal": text("FATAL", fatal),
        f"{PCI}/{NIC}/aer_dev_nonfatal": text("NONFATAL", nonfatal),
        f"{PCI}/{NIC}/aer_dev_correctable": text("COR", correctable),
    }


def test_uncorrectable_errors_warn_once_and_fail_while_they_grow(bench):
    def status(files):
        return bench.judge(bench.doc(files=nic() | files)).status("pcie-aer")

    first, then = errors(fatal=1), errors(fatal=3)
    growing = {path: [(1.0, first[path]), (3.0, then[path])] for path in first}
    assert status(errors(correctable=7)) == "PASS"
    assert status(first) == "WARN"
    assert status(growing) == "FAIL"
    assert status(dict.fromkeys(first, "Undefined 0\n")) == "UNKNOWN"
    assert status({path: {"errno": "ENOENT"} for path in first}) == "SKIP"


def test_read_requests_are_compared_by_rail(bench):
    def doc(name, size):
        text = (
            f"{NIC} Ethernet controller: Mellanox\n\t\tDevCtl:\tCorrErr+ NonFatalErr+\n"
            f"\t\t\tRlxdOrd+\n\t\t\tMaxPayload 256 bytes, MaxReadReq {size} bytes\n"
        )
        return bench.doc(name, files=nic(), cmds={f"lspci -Dvvv -s {NIC}": text})

    seen = bench.judge(*[doc(f"node-{n}", 4096) for n in "abc"], doc("node-d", 512))

    assert seen.status("pcie-maxreadreq", node="node-d") == "WARN"
    assert seen.status("pcie-maxreadreq", node="node-a") == "PASS"


TOPO = """\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU\x1b[0m
GPU0\t X \tNV18\t{}\tSYS\t0-47\t0\tN/A
GPU1\tNV18\t X \tSYS\t{}\t48-95\t1\tN/A
NIC0\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tPIX\tSYS\t X

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1

"""


def two_nics():
    return nic() | nic("0000:a7:00.0", "mlx5_1")


def test_r47_aks_5697_mooncake_429_a_gpu_far_from_every_nic_warns(bench):
    def statuses(text):
        doc = bench.doc(files=two_nics(), cmds={"nvidia-smi topo -m": text})
        return bench.judge(doc).statuses("pcie-gpu-nic-distance")

    assert statuses(TOPO.format("PIX", "PXB")) == {"GPU0": "PASS", "GPU1": "PASS"}
    assert statuses(TOPO.format("PIX", "NODE")) == {"GPU0": "PASS", "GPU1": "WARN"}
    whole = TOPO.format("PIX", "PIX")
    for cut in (whole.index("GPU1\tNV18"), whole.index("GPU1\tNV18") + 12, 20):
        assert set(statuses(whole[:cut]).values()) == {"UNKNOWN"}
    assert set(statuses(whole[: whole.index("  NIC1:")]).values()) == {"UNKNOWN"}


def test_r47_without_nvidia_smi_the_tree_of_sysfs_tells(bench):
    def status(path):
        root = "../../../devices/pci0000:96/0000:96:01.0"
        files = nic() | {
            f"{PCI}/{NIC}": {"link": f"{root}/0000:97:00.0"},
            f"{PCI}/{GPU}": {"link": path},
            f"{PCI}/{GPU}/vendor": "0x10de\n",
        }
        return bench.judge(bench.doc(files=files)).status("pcie-gpu-nic-distance")

    assert status("../../../devices/pci0000:96/0000:96:01.0/0000:98:00.0") == "PASS"
    assert status("../../../devices/pci0000:96/0000:96:02.0/0000:98:00.0") == "WARN"
    assert status("../../../devices/pci0000:16/0000:16:01.0/0000:98:00.0") == "WARN"
    assert status("nonsense") == "UNKNOWN"


def test_a_node_without_gpus_has_no_distance_to_judge(bench):
    files = nic() | {"/proc/driver/nvidia/version": {"errno": "ENOENT"}}
    doc = bench.doc(files=files, cmds={"nvidia-smi topo -m": (127, "", "not found")})

    seen = bench.judge(doc)

    assert seen.status("pcie-gpu-nic-distance") == "SKIP"
    assert seen.status("pcie-link-gpu") == "SKIP"


def test_soft_roce_is_no_pci_device(bench):
    files = {
        "/sys/class/infiniband/rxe0/device": {"errno": "ENOENT"},
        "/sys/class/infiniband/rxe0/parent": "eth1\n",
        "/sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE\n",
        "/sys/class/infiniband/rxe0/ports/1/phys_state": "5: LinkUp\n",
    }

    seen = bench.judge(bench.doc(files=files, cmds=log("quiet")))

    for check in ("pcie-link-nic", "pcie-power", "pcie-aer", "iommu-dmar-fault"):
        assert seen.status(check) == "SKIP"


def test_f29_a_gpu_that_only_its_vendor_tells_is_no_nic(bench):
    cmds = {
        f"lspci -Dvvv -s {GPU}": listing("Speed 2.5GT/s (downgraded), Width x16 (ok)")
    }
    doc = bench.doc(cmds=cmds, files={f"{PCI}/{GPU}/vendor": "0x10de\n"})

    seen = bench.judge(doc)

    assert seen.one("pcie-link-gpu").severity == "info"
    assert seen.status("pcie-link-nic") == "UNKNOWN"

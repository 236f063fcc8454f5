"""IOMMU and ACS rules, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

PCI = "/sys/bus/pci/devices"
F21 = """17:00.0 PCI bridge: Broadcom / LSI PEX880xx PCIe Gen 4 Switch (rev b0)
\tCapabilities: [148 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ \
DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- \
DirectTrans-
"""
CTL = F21.splitlines()[-1]
F22 = F21.replace(
    CTL,
    "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl-"
    " DirectTrans-",
)
F23 = F22.replace("ACSCtl:\tSrcValid+", "ACSCtl:\tSrcValid-")
F24 = "17:00.0 PCI bridge: Broadcom / LSI PEX880xx\n\tCapabilities: <access denied>\n"
LSPCI = "lspci -Dvvv -s 0000:17:00.0"
BRIDGE = "0000:17:00.0"


def nic(bdf="0000:02:00.0", device="mlx5_0"):
    base = f"/sys/class/infiniband/{device}"
    return {
        f"{base}/device": {"link": f"../../../{bdf}"},
        f"{base}/ports/1/state": "4: ACTIVE\n",
        f"{base}/ports/1/phys_state": "5: LinkUp\n",
    }


@pytest.mark.parametrize(
    "line", [LSPCI, "lspci -vvv -s 17:00.0", "sudo -n lspci -vvv", "lspci -vvv"]
)
def test_f21_r28_nccl_304_a_bridge_that_redirects_fails(bench, line):
    failed = bench.judge(bench.doc(cmds={line: F21})).one("iommu-acs-redirect")

    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert failed.subject == BRIDGE
    assert failed.observed == "ReqRedir+ CmpltRedir+ UpstreamFwd+"


def test_f21_it_is_critical_where_the_profile_needs_gpudirect(bench):
    doc = bench.doc(cmds={LSPCI: F21})

    seen = bench.judge(doc, profile={"iommu": {"gdr_required": True}})

    assert seen.one("iommu-acs-redirect").severity == "critical"


def test_f21_fails_also_where_nothing_tells_of_virtualisation(bench):
    doc = bench.doc(cmds={LSPCI: F21})
    del doc["node"]["virt"]

    assert bench.judge(doc).status("iommu-acs-redirect") == "FAIL"


def test_f22_r30_nccl_606_source_validation_alone_is_info_and_no_failure(bench):
    seen = bench.judge(bench.doc(cmds={LSPCI: F22}))

    told = seen.one("iommu-acs-srcvalid")
    assert (told.status, told.severity) == ("PASS", "info")
    assert seen.status("iommu-acs-redirect") == "PASS"
    assert not [f for f in seen.report.findings if f.bad]


def test_f23_what_a_bridge_could_do_is_not_what_it_does(bench):
    seen = bench.judge(bench.doc(cmds={LSPCI: F23}))

    assert seen.status("iommu-acs-redirect") == "PASS"
    assert seen.status("iommu-acs-unreadable") == "PASS"


def test_f24_denied_capabilities_are_unknown(bench):
    seen = bench.judge(bench.doc(cmds={LSPCI: F24}))

    assert seen.status("iommu-acs-redirect") == "UNKNOWN"
    assert seen.status("iommu-acs-unreadable") == "UNKNOWN"


@pytest.mark.parametrize("at", [60, F22.index("ACSCap") + 9, F22.index("ACSCtl") + 40])
def test_f24_a_listing_that_is_cut_off_is_unknown(bench, at):
    seen = bench.judge(bench.doc(cmds={LSPCI: F22[:at]}))

    assert seen.status("iommu-acs-redirect") == "UNKNOWN"


def test_a_whole_listing_without_acs_redirects_nothing(bench):
    text = (
        "0000:17:00.0 PCI bridge: Broadcom (rev b0)\n"
        "\tCapabilities: [100 v1] Device Serial Number 00\n"
        "\tKernel driver in use: pcieport\n"
    )

    assert bench.judge(bench.doc(cmds={LSPCI: text})).status("iommu-acs-redirect") == (
        "PASS"
    )


NIC_ATS = "0000:02:00.0 Ethernet controller: Mellanox ConnectX-7\n\t\tATSCtl:\t{}\n"


@pytest.mark.parametrize(
    ("control", "verdict"),
    [
        ("Enable+, Smallest Translation Unit: 00", "PASS"),
        ("Enable-, Smallest Translation Unit: 00", "WARN"),
        ("Ena", "UNKNOWN"),
    ],
)
def test_f25_r32_nccl_tests_256_in_a_virtual_machine_ats_counts_and_acs_does_not(
    bench, control, verdict
):
    cmds = {
        LSPCI: F21,
        "lspci -Dvvv -s 0000:02:00.0": NIC_ATS.format(control),
        "systemd-detect-virt": "kvm\n",
    }
    doc = bench.doc(cmds=cmds)
    del doc["node"]["virt"]

    seen = bench.judge(doc)

    assert seen.status("iommu-acs-vm-ats") == verdict
    assert seen.status("iommu-acs-redirect") == "PASS"


def test_f25_the_line_may_stand_in_the_listing_of_the_bridge(bench):
    text = F21 + "\t\tATSCtl:\tEnable-, Smallest Translation Unit: 00\n"

    seen = bench.judge(bench.doc(cmds={LSPCI: text}, virt="kvm"))

    assert seen.status("iommu-acs-vm-ats") == "WARN"


def test_bare_metal_needs_no_ats_and_an_unknown_machine_is_unknown(bench):
    bare = bench.doc(cmds={LSPCI: F21})
    unknown = bench.doc(cmds={LSPCI: F21})
    del unknown["node"]["virt"]

    assert bench.judge(bare).status("iommu-acs-vm-ats") == "PASS"
    assert bench.judge(unknown).status("iommu-acs-vm-ats") == "UNKNOWN"


@pytest.mark.parametrize(
    ("entry", "verdict"),
    [
        ("DMA-FQ\n", "FAIL"),
        ("DMA\n", "FAIL"),
        ("identity\n", "PASS"),
        ({"errno": "ENOENT"}, "PASS"),
        ({"errno": "EACCES"}, "UNKNOWN"),
    ],
)
@pytest.mark.parametrize(
    "path",
    [
        f"{PCI}/0000:02:00.0/iommu_group/type",
        "/sys/class/infiniband/mlx5_0/device/iommu_group/type",
    ],
)
def test_r31_nccl_1737_translated_dma_fails_on_bare_metal(bench, path, entry, verdict):
    seen = bench.judge(bench.doc(files={**nic(), path: entry}))

    assert seen.status("iommu-domain-type") == verdict
    assert seen.one("iommu-domain-type").subject == "mlx5_0 (0000:02:00.0)"


def test_r31_a_domain_without_anything_else_is_judged_too(bench):
    path = f"{PCI}/0000:02:00.0/iommu_group/type"

    failed = bench.judge(bench.doc(files={path: "DMA-FQ\n"})).one("iommu-domain-type")

    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert failed.subject == "0000:02:00.0"


def test_translated_dma_in_a_virtual_machine_is_its_hosts_business(bench):
    path = f"{PCI}/0000:02:00.0/iommu_group/type"

    seen = bench.judge(bench.doc(files={**nic(), path: "DMA\n"}, virt="kvm"))

    assert seen.status("iommu-domain-type") == "SKIP"


def domains(*types, cmdline="ro iommu=pt", log=()):
    files = {"/proc/cmdline": f"BOOT_IMAGE=/vmlinuz {cmdline}\n"}
    for at, kind in enumerate(types):
        bdf = f"0000:0{at + 2}:00.0"
        files |= nic(bdf, f"mlx5_{at}")
        files[f"{PCI}/{bdf}/iommu_group/type"] = kind
    rows = [{"pri": 6, "time": 1.0, "msg": text} for text in log]
    return files, {"dmesg -J": json.dumps({"dmesg": rows})}


def test_r34_passthrough_that_is_not_in_effect_fails_and_explains_the_domains(bench):
    files, cmds = domains("DMA-FQ\n", "DMA-FQ\n", cmdline="intel_iommu=on iommu=pt")

    seen = bench.judge(bench.doc(files=files, cmds=cmds))

    failed = seen.one("iommu-effective-vs-cmdline")
    assert (failed.status, failed.severity) == ("FAIL", "error")
    for subject in ("mlx5_0 (0000:02:00.0)", "mlx5_1 (0000:03:00.0)"):
        symptom = seen.one("iommu-domain-type", subject)
        assert symptom.status == "FAIL"
        assert symptom.blocked_by == ("iommu-effective-vs-cmdline",)


def test_r34_one_device_that_was_changed_by_hand_is_a_matter_of_its_own(bench):
    files, cmds = domains("identity\n", "DMA-FQ\n")

    seen = bench.judge(bench.doc(files=files, cmds=cmds))

    assert seen.status("iommu-effective-vs-cmdline") == "PASS"
    assert [f.id for f in seen.report.roots] == ["iommu-domain-type"]


@pytest.mark.parametrize(
    ("types", "cmdline", "log", "verdict"),
    [
        (["identity\n"], "iommu=pt", [], "PASS"),
        (["identity\n"], "iommu=pt", ["Translated"], "FAIL"),
        ([], "iommu=pt", ["Passthrough"], "PASS"),
        ([], "iommu=pt", ["Translated"], "FAIL"),
        ([], "iommu=pt", [], "UNKNOWN"),
        (["DMA\n"], "iommu.passthrough=1", [], "FAIL"),
        (["DMA\n"], "quiet", [], "PASS"),
        (["identity\n"], "intel_iommu=off", [], "FAIL"),
        ([{"errno": "ENOENT"}], "intel_iommu=off", [], "PASS"),
        (["DMA\n"], "iommu=pt iommu=nopt", [], "PASS"),
        (["DMA\n"], "quiet -- iommu=pt", [], "PASS"),
    ],
)
def test_r34_what_was_asked_is_compared_with_what_is(
    bench, types, cmdline, log, verdict
):
    said = [
        f"iommu: Default domain type: {word} (set via kernel cmdline)" for word in log
    ]
    files, cmds = domains(*types, cmdline=cmdline, log=said)

    seen = bench.judge(bench.doc(files=files, cmds=cmds))

    assert seen.status("iommu-effective-vs-cmdline") == verdict


def test_only_the_iommu_tokens_of_the_command_lines_are_compared(bench):
    def doc(name, text):
        return bench.doc(name, files={"/proc/cmdline": text})

    nodes = [
        doc(f"node-{n}", f"root=UUID={n} iommu=pt intel_iommu=on\n") for n in "abc"
    ]
    seen = bench.judge(*nodes, doc("node-d", "root=UUID=d intel_iommu=on\n"))

    assert seen.by_node("iommu-cmdline") == {
        "node-a": "PASS",
        "node-b": "PASS",
        "node-c": "PASS",
        "node-d": "WARN",
    }


def test_a_profile_that_names_the_tokens_makes_it_a_failure(bench):
    doc = bench.doc(files={"/proc/cmdline": "ro intel_iommu=on\n"})
    profile = {"iommu": {"cmdline": ["iommu=pt", "intel_iommu=on"]}}

    assert bench.judge(doc, profile=profile).status("iommu-cmdline") == "FAIL"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("amd_iommu=on iommu=pt", "WARN"),
        ("iommu=on", "WARN"),
        ("intel_iommu=pt", "WARN"),
        ("intel_iommu=on,sm_on iommu=pt", "PASS"),
        ("quiet", "PASS"),
    ],
)
def test_arguments_that_do_nothing_warn(bench, text, verdict):
    doc = bench.doc(files={"/proc/cmdline": f"{text}\n"})

    assert bench.judge(doc).status("iommu-cmdline-invalid") == verdict


def test_a_boot_loader_with_other_tokens_warns_of_the_next_boot(bench):
    now = {"/proc/cmdline": "ro intel_iommu=on iommu=pt\n"}
    grub = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="intel_iommu=on{}"\n'
    path = "/etc/default/grub"
    none = {"errno": "ENOENT"}

    def status(**files):
        doc = bench.doc(files=now | files)
        return bench.judge(doc).status("iommu-pending-reboot")

    assert status(**{path: grub.format(" iommu=pt")}) == "PASS"
    assert status(**{path: grub.format("")}) == "WARN"
    assert status(**{"/etc/kernel/cmdline": "ro iommu=pt intel_iommu=on"}) == "PASS"
    assert status(**{path: none, "/etc/kernel/cmdline": none}) == "SKIP"
    assert status() == "UNKNOWN"


NO_PASID = (
    "DMAR: [DMA Read NO_PASID] Request device [{}] fault addr 0xff835000"
    " [fault reason 0x06] PTE Read access is not set"
)
SHAPES = [
    NO_PASID.format("02:00.0"),
    "DMAR: [DMA Write] Request device [02:00.0] fault addr 0 [fault reason 05] PTE"
    " Write access is not set",
    "DMAR: [DMA Write PASID ffffffff] Request device [02:00.0] PASID ffffffff fault"
    " addr 1000 [fault reason 0x71] SM: Present bit in first-level paging entry is"
    " clear",
    "mlx5_core 0000:02:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010"
    " address=0xfe000 flags=0x0020]",
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 domain=0x0010 address=0xfe000"
    " flags=0x0020]",
]


def log(*lines):
    rows = [{"pri": 3, "time": 9.0, "msg": line} for line in lines]
    return {"dmesg -J": json.dumps({"dmesg": rows})}


@pytest.mark.parametrize("line", SHAPES)
def test_f27_r33_a_refused_transfer_of_our_nic_fails(bench, line):
    failed = bench.judge(bench.doc(files=nic(), cmds=log(line))).one("iommu-dmar-fault")

    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert failed.subject == "mlx5_0 (0000:02:00.0)"


def test_f27_r33_a_refused_transfer_of_another_device_is_info(bench):
    doc = bench.doc(files=nic(), cmds=log(NO_PASID.format("00:02.0")))

    seen = bench.judge(doc)

    told = seen.one("iommu-dmar-fault", "0000:00:02.0")
    assert (told.status, told.severity) == ("PASS", "info")
    assert seen.status("iommu-dmar-fault", "mlx5_0 (0000:02:00.0)") == "PASS"


def test_f27_suppressed_lines_blame_nobody(bench):
    doc = bench.doc(files=nic(), cmds=log("dmar_fault: 2474 callbacks suppressed"))

    assert bench.judge(doc).status("iommu-dmar-fault") == "PASS"


def test_f27_a_log_that_may_not_be_read_is_unknown(bench):
    told = "dmesg: read kernel buffer failed: Operation not permitted"

    seen = bench.judge(bench.doc(files=nic(), cmds={"dmesg -J": (1, "", told)}))

    assert seen.status("iommu-dmar-fault") == "UNKNOWN"

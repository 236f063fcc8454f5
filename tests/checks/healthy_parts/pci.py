"""PCI devices: a switch with one NIC and one GPU for each rail, passthrough, no ACS.

Single faults of `rules/iommu.py` and `rules/pcie.py`.
"""

import json

PCI = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
GRUB = (
    'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n'
    'GRUB_CMDLINE_LINUX="intel_iommu=on iommu=pt"\n'
)
ACS = "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"


def _express(width="x16"):
    return (
        "\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n"
        "\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0\n"
        "\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq+\n"
        "\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-\n"
        "\t\t\tMaxPayload 256 bytes, MaxReadReq 4096 bytes\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n"
        f"\t\tLnkSta:\tSpeed 32GT/s (ok), Width {width} (ok)\n"
    )


def bridge(bdf, acs=ACS):
    return (
        f"{bdf} PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)\n"
        + _express()
        + "\tCapabilities: [148 v1] Access Control Services\n"
        "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+"
        " EgressCtrl+ DirectTrans+\n"
        f"\t\tACSCtl:\t{acs}\n"
        "\tKernel driver in use: pcieport\n\n"
    )


def nic(bdf):
    return (
        f"{bdf} Ethernet controller: Mellanox Technologies MT2910 [ConnectX-7]\n"
        + _express()
        + "\tCapabilities: [1c0 v1] Secondary PCI Express\n"
        "\tKernel driver in use: mlx5_core\n\tKernel modules: mlx5_core\n\n"
    )


def gpu(bdf):
    return (
        f"{bdf} 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n"
        + _express()
        + "\tCapabilities: [100 v1] Device Serial Number 00-00\n"
        "\tKernel driver in use: nvidia\n\n"
    )


def topology(plan, near=None):
    """Every GPU is nearest to the NIC of its own rail; `near` changes some."""
    rails = plan.rails
    header = [f"GPU{r.index}" for r in rails] + [f"NIC{r.index}" for r in rails]
    lines = ["\t" + "\t".join([*header, "CPU Affinity", "NUMA Affinity"])]
    for one in rails:
        gpus = [" X " if o.index == one.index else "NV18" for o in rails]
        nics = [_relation(one, other, near or {}) for other in rails]
        cells = [f"GPU{one.index}", *gpus, *nics, "0-47", str(one.numa)]
        lines.append("\t".join(cells))
    legend = [f"  NIC{r.index}: {r.device}" for r in rails]
    return "\n".join([*lines, "", "NIC Legend:", "", *legend, ""]) + "\n"


def _relation(one, other, near):
    if one.index == other.index:
        return near.get(one.index, "PXB")
    return "NODE" if one.numa == other.numa else "SYS"


SHOW = (
    "systemctl show --property=LoadState --property=UnitFileState --property=Result"
    " --property=ExecMainStartTimestampMonotonic disable-pcie-acs.service"
)


def unit(began_us=21500000, **changed):
    """What switches ACS off at every boot."""
    told = {"LoadState": "loaded", "UnitFileState": "enabled", "Result": "success"}
    told |= {"ExecMainStartTimestampMonotonic": began_us, **changed}
    return "".join(f"{name}={value}\n" for name, value in told.items())


def cmds(plan):
    found = {"nvidia-smi topo -m": topology(plan), SHOW: unit()}
    for rail in plan.rails:
        found[f"lspci -Dvvv -s {rail.bridge_bdf}"] = bridge(rail.bridge_bdf)
        found[f"lspci -Dvvv -s {rail.bdf}"] = nic(rail.bdf)
        found[f"lspci -Dvvv -s {rail.gpu_bdf}"] = gpu(rail.gpu_bdf)
    return found


def errors(name, total=0):
    return f"Undefined 0\nDLP {total}\nTOTAL_ERR_{name} {total}\n"


def files(plan):
    found = {
        "/etc/default/grub": GRUB,
        "/etc/kernel/cmdline": {"errno": "ENOENT"},
        DRIVERS: ("ahci", "mlx5_core", "nvidia", "nvme", "pcieport"),
    }
    for rail in plan.rails:
        base = f"{PCI}/{rail.gpu_bdf}"
        found |= {
            f"{base}/vendor": "0x10de\n",
            f"{base}/device": "0x2330\n",
            f"{base}/numa_node": f"{rail.numa}\n",
            f"{base}/iommu_group/type": "identity\n",
            f"{base}/current_link_speed": "32.0 GT/s PCIe\n",
            f"{base}/max_link_speed": "32.0 GT/s PCIe\n",
            f"{base}/current_link_width": "16\n",
            f"{base}/max_link_width": "16\n",
        }
        names = {"fatal": "FATAL", "nonfatal": "NONFATAL", "correctable": "COR"}
        found[f"{PCI}/{rail.bdf}/iommu_group/devices"] = (rail.bdf,)
        found[f"{PCI}/{rail.bdf}/class"] = "0x020000\n"
        for leaf, name in names.items():
            found[f"{PCI}/{rail.bdf}/aer_dev_{leaf}"] = errors(name)
    return found


# Single faults


def _file(at, leaf, text, device="bdf"):
    def change(document, plan):
        bdf = getattr(plan.rails[at], device)
        document["files"][f"{PCI}/{bdf}/{leaf}"] = {"text": text}

    return change


def _lspci(at, build, device="bdf", **options):
    def change(document, plan):
        bdf = getattr(plan.rails[at], device)
        document["cmds"][f"lspci -Dvvv -s {bdf}"]["stdout"] = build(bdf, **options)

    return change


def _kernel(text):
    def change(document, plan):
        entry = document["cmds"]["dmesg -J"]
        loaded = json.loads(entry["stdout"])
        rail = plan.rails[2]
        row = {"pri": 3, "time": 700.0, "msg": text.format(bdf=rail.bdf)}
        loaded["dmesg"].append(row)
        entry["stdout"] = json.dumps(loaded)

    return change


def _translated(document, plan):
    """The kernel did not take `iommu=pt`: every domain is translated."""
    for path, entry in document["files"].items():
        if path.startswith(PCI) and path.endswith("iommu_group/type"):
            entry["text"] = "DMA-FQ\n"


def _default_translated(document, plan):
    entry = document["cmds"]["dmesg -J"]
    entry["stdout"] = entry["stdout"].replace("Passthrough", "Translated")


def _booted(text):
    def change(document, plan):
        files = document["files"]
        old = files["/proc/cmdline"]["text"]
        new = old.replace("intel_iommu=on iommu=pt", text)
        files["/proc/cmdline"] = {"text": new}
        line = f'GRUB_CMDLINE_LINUX="{text}"\n'
        files["/etc/default/grub"] = {"text": line}

    return change


def _next_boot(document, plan):
    document["files"]["/etc/default/grub"] = {"text": GRUB.replace(" iommu=pt", "")}


def _virtual(documents, plans):
    """The whole cohort is virtual, and one NIC has no ATS."""
    for document, plan in zip(documents, plans, strict=True):
        document["node"]["virt"] = "kvm"
        for rail in plan.rails:
            on = not (plan.index == 7 and rail.index == 5)
            entry = document["cmds"][f"lspci -Dvvv -s {rail.bdf}"]
            entry["stdout"] += (
                f"\t\tATSCtl:\tEnable{'+' if on else '-'}, Smallest Translation"
                " Unit: 00\n"
            )


def _acs_unit(text):
    def change(document, plan):
        document["cmds"][SHOW]["stdout"] = text

    return change


def _passed_through(document, plan):
    """A disk of a virtual machine is in the group of a NIC."""
    files, bdf = document["files"], plan.rails[6].bdf
    files[f"{PCI}/{bdf}/iommu_group/devices"]["entries"].append("0000:8e:00.0")
    files[f"{PCI}/0000:8e:00.0/class"] = {"text": "0x010802\n"}
    files[DRIVERS]["entries"].append("vfio-pci")
    files[f"{DRIVERS}/vfio-pci"] = {"entries": ["0000:8e:00.0", "bind", "new_id"]}


def _far(document, plan):
    document["cmds"]["nvidia-smi topo -m"]["stdout"] = topology(plan, {6: "SYS"})


def _label(at):
    return lambda plan: f"{plan.rails[at].device} ({plan.rails[at].bdf})"


MUTANTS = [
    {
        "check": "iommu-domain-type",
        "subject": _label(3),
        "change": _file(3, "iommu_group/type", "DMA-FQ\n"),
    },
    {
        "check": "iommu-domain-type",
        "subject": lambda plan: plan.rails[3].gpu_bdf,
        "change": _file(3, "iommu_group/type", "DMA\n", "gpu_bdf"),
        "note": "gpu",
    },
    {"check": "iommu-effective-vs-cmdline", "change": _translated},
    {
        "check": "iommu-effective-vs-cmdline",
        "change": _default_translated,
        "note": "log",
    },
    {
        "check": "iommu-cmdline",
        "status": "WARN",
        "change": _booted("intel_iommu=on"),
    },
    {
        "check": "iommu-cmdline-invalid",
        "status": "WARN",
        "change": _booted("intel_iommu=on iommu=on"),
    },
    {"check": "iommu-pending-reboot", "status": "WARN", "change": _next_boot},
    {
        "check": "iommu-acs-redirect",
        "subject": lambda plan: plan.rails[4].bridge_bdf,
        "change": _lspci(
            4,
            bridge,
            "bridge_bdf",
            acs=ACS.replace("ReqRedir-", "ReqRedir+").replace(
                "UpstreamFwd-", "UpstreamFwd+"
            ),
        ),
    },
    {
        "check": "iommu-acs-vm-ats",
        "status": "WARN",
        "subject": _label(5),
        "change": _virtual,
        "fleet": True,
    },
    {
        "check": "iommu-dmar-fault",
        "subject": _label(2),
        "change": _kernel(
            "DMAR: [DMA Read NO_PASID] Request device [{bdf}] fault addr 0xff835000"
            " [fault reason 0x06] PTE Read access is not set"
        ),
    },
    {
        "check": "iommu-acs-not-persistent",
        "status": "WARN",
        "change": _acs_unit(unit(0)),
    },
    {
        "check": "iommu-acs-not-persistent",
        "status": "WARN",
        "change": _acs_unit(unit(UnitFileState="disabled")),
        "note": "disabled",
    },
    {
        "check": "iommu-acs-not-persistent",
        "status": "WARN",
        "change": _kernel("pcieport {bdf}: pciehp: Slot(12): Card present"),
        "note": "hotplug",
    },
    {
        "check": "iommu-groups-shared",
        "status": "WARN",
        "subject": _label(6),
        "change": _passed_through,
    },
    {
        "check": "pcie-link-nic",
        "subject": _label(1),
        "change": _file(1, "current_link_width", "8\n"),
    },
    {
        "check": "pcie-link-gpu",
        "subject": lambda plan: plan.rails[1].gpu_bdf,
        "change": _file(1, "current_link_width", "8\n", "gpu_bdf"),
    },
    {
        "check": "pcie-dmesg-limited",
        "subject": _label(2),
        "change": _kernel(
            "mlx5_core {bdf}: 252.056 Gb/s available PCIe bandwidth, limited by 32.0"
            " GT/s PCIe x8 link at 0000:97:01.0 (capable of 504.112 Gb/s with 32.0 GT/s"
            " PCIe x16 link)"
        ),
    },
    {
        "check": "pcie-power",
        "subject": _label(2),
        "change": _kernel(
            "mlx5_core {bdf}: mlx5_pcie_event:301:(pid 1): Detected insufficient power"
            " on the PCIe slot (27W)."
        ),
    },
    {
        "check": "pcie-aer",
        "status": "WARN",
        "subject": _label(0),
        "change": _file(0, "aer_dev_nonfatal", errors("NONFATAL", 3)),
    },
    {
        "check": "pcie-maxreadreq",
        "status": "WARN",
        "subject": _label(0),
        "change": lambda document, plan: document["cmds"][
            f"lspci -Dvvv -s {plan.rails[0].bdf}"
        ].update(stdout=nic(plan.rails[0].bdf).replace("Req 4096", "Req 512")),
    },
    {
        "check": "pcie-gpu-nic-distance",
        "status": "WARN",
        "subject": "GPU6",
        "change": _far,
    },
]

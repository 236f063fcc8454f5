"""NICs in depth: driver, firmware settings, device nodes, GPUDirect; their faults."""

import json

DRIVER = "24.10-0.7.0"
LOADED = "B9C5A1D2E3F405162738495"
SETTINGS = (
    ("LINK_TYPE_P1", "ETH(2)"),
    ("SRIOV_EN", "True(1)"),
    ("NUM_OF_VFS", "8"),
    ("ROCE_CONTROL", "ROCE_ENABLE(2)"),
    ("PCI_WR_ORDERING", "per_mkey(0)"),
    ("ATS_ENABLED", "False(0)"),
    ("ADVANCED_PCI_SETTINGS", "False(0)"),
    ("ROCE_ADAPTIVE_ROUTING_EN", "False(0)"),
    ("CNP_DSCP_P1", "48"),
    ("ROCE_CC_PRIO_MASK_P1", "255"),
)


def _ethtool_i(plan, rail):
    return (
        "driver: mlx5_core\n"
        f"version: {DRIVER}\n"
        f"firmware-version: {plan.firmware} ({plan.psid})\n"
        "expansion-rom-version: \n"
        f"bus-info: {rail.bdf}\n"
        "supports-statistics: yes\n"
        "supports-test: yes\n"
        "supports-eeprom-access: no\n"
        "supports-register-dump: no\n"
        "supports-priv-flags: yes\n"
    )


def _mstconfig(rail, changed=()):
    """Three columns; `changed` maps a key to (current, next boot)."""
    changed = dict(changed)
    rows = []
    for key, value in SETTINGS:
        current, later = changed.get(key, (value, value))
        mark = "*" if (current, later) != (value, value) else " "
        rows.append(f"{mark}        {key:<35} {value:<20} {current:<20} {later}\n")
    return (
        "\nDevice #1:\n----------\n\n"
        "Device type:    ConnectX7\n"
        "Name:           MCX75310AAS-NEA_Ax\n"
        f"Device:         {rail.bdf}\n\n"
        "Configurations:                              Default             Current"
        "             Next Boot\n" + "".join(rows) + "The '*' shows parameters with"
        " next value different from default/current value.\n"
    )


def _devlink(plan, stored=None):
    def versions(rail):
        version = plan.firmware
        later = (stored or {}).get(rail.bdf, version)
        return {
            "fixed": {"fw.psid": plan.psid},
            "running": {"fw.version": version, "fw": version},
            "stored": {"fw.version": later, "fw": later},
        }

    info = {
        f"pci/{rail.bdf}": {"driver": "mlx5_core", "versions": versions(rail)}
        for rail in plan.rails
    }
    return json.dumps({"info": info})


def cmds(plan):
    found = {
        "uname -r": f"{plan.kernel}\n",
        "modinfo mlx5_core": modinfo(plan, LOADED),
        "ofed_info -s": f"MLNX_OFED_LINUX-{DRIVER}.0 (OFED-{DRIVER}):\n",
        "devlink -j dev info": _devlink(plan),
        "ibv_devinfo -l": f"{len(plan.rails)} HCAs found:\n"
        + "".join(f"\t{rail.device}\n" for rail in plan.rails)
        + "\n",
        "systemctl is-active irqbalance.service": (3, "inactive\n", ""),
    }
    for rail in plan.rails:
        found |= {
            f"ethtool -i {rail.netdev}": _ethtool_i(plan, rail),
            f"ethtool -a {rail.netdev}": f"Pause parameters for {rail.netdev}:\n"
            "Autonegotiate:\toff\nRX:\t\toff\nTX:\t\toff\n\n",
            f"ethtool --show-fec {rail.netdev}": f"FEC parameters for {rail.netdev}:\n"
            "Supported/Configured FEC encodings: Auto RS\nActive FEC encoding: RS\n",
            f"mstconfig -d {rail.bdf} -e q": _mstconfig(rail),
            f"ethtool -g {rail.netdev}": _queues("Ring", RINGS),
            f"ethtool -l {rail.netdev}": _queues("Channel", CHANNELS),
            f"irqs {rail.bdf}": interrupts(rail),
        }
    return found


def interrupts(rail):
    """One for each channel, each on one processor of the NIC's own NUMA node."""
    own = [f"{at} {48 * rail.numa + at % 48}\n" for at in range(63)]
    return f"# {len(own)} interrupts\n" + "".join(own)


def _queues(kind, rows):
    """Both sections as `ethtool` prints them."""
    sections = [
        f"{title}\n" + "".join(f"{row[0]}:\t\t{row[at]}\n" for row in rows)
        for at, title in ((1, "Pre-set maximums:"), (-1, "Current hardware settings:"))
    ]
    return f"{kind} parameters for a NIC:\n" + "".join(sections)


RINGS = (
    ("RX", 8192, 1024),
    ("RX Mini", "n/a"),
    ("RX Jumbo", "n/a"),
    ("TX", 8192, 1024),
)
CHANNELS = (("RX", "n/a"), ("TX", "n/a"), ("Other", "n/a"), ("Combined", 63, 63))


def modinfo(plan, srcversion, kernel=""):
    return (
        f"filename:       /lib/modules/{plan.kernel}/updates/dkms/mlx5_core.ko\n"
        f"version:        {DRIVER}\n"
        f"srcversion:     {srcversion}\n"
        "depends:        mlxfw,psample,tls,pci-hyperv-intf\n"
        "name:           mlx5_core\n"
        f"vermagic:       {kernel or plan.kernel} SMP preempt mod_unload modversions \n"
    )


MODULES = (
    "gdrdrv 24576 0 - Live 0x0000000000000000\n"
    "nvidia_peermem 16384 0 - Live 0x0000000000000000\n"
    "nvidia_uvm 4677632 4 - Live 0x0000000000000000\n"
    "nvidia 54349824 221 nvidia_peermem,nvidia_uvm, Live 0x0000000000000000\n"
    "rdma_ucm 32768 0 - Live 0x0000000000000000\n"
    "mlx5_ib 475136 0 - Live 0x0000000000000000\n"
    "ib_uverbs 188416 2 rdma_ucm,mlx5_ib, Live 0x0000000000000000\n"
    "ib_core 458752 5 nvidia_peermem,rdma_ucm,mlx5_ib,ib_uverbs,"
    " Live 0x0000000000000000\n"
    "mlx5_core 2248704 1 mlx5_ib, Live 0x0000000000000000\n"
    "openvswitch 212992 2 - Live 0x0000000000000000\n"
)
NVIDIA = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
    "  (dvs-builder@U16-I1-N07-12-3)  Thu Jan 23 23:37:51 UTC 2025\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
PARAMS = 'EnableStreamMemOPs: 0\nEnableMSI: 1\nRegistryDwords: ""\n'


def files(plan):
    found = {
        "/proc/modules": MODULES,
        "/proc/uptime": "360000.25 1000000.00\n",
        "/proc/driver/nvidia/version": NVIDIA,
        "/proc/driver/nvidia/params": PARAMS,
        "/sys/module/mlx5_core/version": f"{DRIVER}\n",
        "/sys/module/mlx5_core/srcversion": f"{LOADED}\n",
        "/sys/class/infiniband_verbs": (
            "abi_version",
            *[f"uverbs{rail.index}" for rail in plan.rails],
        ),
        "/dev/infiniband": (
            "rdma_cm",
            *[f"uverbs{rail.index}" for rail in plan.rails],
        ),
        "/dev/infiniband/rdma_cm": {"mode": "0666"},
        "/sys/devices/system/node": ("node0", "node1", "possible"),
    }
    for rail in plan.rails:
        name = f"uverbs{rail.index}"
        found[f"/sys/class/infiniband_verbs/{name}/ibdev"] = f"{rail.device}\n"
        found[f"/dev/infiniband/{name}"] = {"mode": "0666"}
    return found


# Faults: each changes one thing of one node


def _set(path, text):
    def change(document, plan):
        document["files"][path] = {"text": text}

    return change


def _output(line, text):
    """Replaces the output (of every sample) of a command."""

    def change(document, plan):
        entry = document["cmds"][line]
        for each in entry if isinstance(entry, list) else [entry]:
            each["stdout"] = text(plan) if callable(text) else text

    return change


def _log(*messages, start=350000.0):
    """Adds messages to the kernel's log, a minute apart."""

    def change(document, plan):
        entry = document["cmds"]["dmesg -J"]
        told = json.loads(entry["stdout"])
        for at, message in enumerate(messages):
            text = message(plan) if callable(message) else message
            row = {"pri": 4, "time": start + 60 * at, "msg": text}
            told["dmesg"].append(row)
        entry["stdout"] = json.dumps(told)

    return change


def _of(index, leaf):
    return lambda plan: getattr(plan.rails[index], leaf)


def _flap(document, plan):
    rail = plan.rails[4]
    head = f"mlx5_core {rail.bdf} {rail.netdev}: Link"
    _log(*[f"{head} {word}" for word in ("down", "up") * 6])(document, plan)
    path = f"/sys/class/net/{rail.netdev}/carrier_changes"
    document["files"][path] = {"text": "14\n"}


def _link_downed(document, plan):
    path = "/sys/class/infiniband/mlx5_4/ports/1/counters/link_downed"
    document["files"][path] = [
        {"text": "1\n", "t": 1789999990.0},
        {"text": "2\n", "t": 1789999993.0},
    ]


def _no_carrier_in_addr(document, plan):
    entry = document["cmds"]["ip -j -d addr"]
    rows = json.loads(entry["stdout"])
    for row in rows:
        if row["ifname"] == plan.rails[6].netdev:
            row["flags"].remove("LOWER_UP")
            row["operstate"] = "DOWN"
    entry["stdout"] = json.dumps(rows)


def _leg_down(document, plan):
    """The last NIC is a leg of a bond; its other leg has no carrier."""
    entry = document["cmds"]["ip -j -d addr"]
    rows = json.loads(entry["stdout"])
    leg = next(row for row in rows if row["ifname"] == plan.rails[7].netdev)
    leg["master"] = "bond7"
    other = {**leg, "ifname": "ens8f1np1", "ifindex": 90, "addr_info": []}
    other |= {"flags": ["BROADCAST", "MULTICAST", "UP"], "operstate": "DOWN"}
    bond = {**leg, "ifname": "bond7", "ifindex": 91, "addr_info": []}
    bond |= {"linkinfo": {"info_kind": "bond"}, "master": ""}
    for each in (other, bond):
        each.pop("parentdev", None)
        each["address"] = f"02:00:5e:fd:00:{each['ifindex']}"
    entry["stdout"] = json.dumps([*rows, other, bond])


def _inbox(document, plan):
    for rail in plan.rails:
        entry = document["cmds"][f"ethtool -i {rail.netdev}"]
        entry["stdout"] = entry["stdout"].replace(DRIVER, plan.kernel)
    document["files"]["/sys/module/mlx5_core/version"] = {"errno": "ENOENT"}


def _other_build(document, plan):
    """Loaded and installed alike, and not what the peers have."""
    path = "/sys/module/mlx5_core/srcversion"
    document["files"][path] = {"text": "0123456789ABCDEF\n"}
    entry = document["cmds"]["modinfo mlx5_core"]
    entry["stdout"] = modinfo(plan, "0123456789ABCDEF")


def _installed(srcversion=LOADED, kernel=""):
    def change(document, plan):
        entry = document["cmds"]["modinfo mlx5_core"]
        entry["stdout"] = modinfo(plan, srcversion, kernel)

    return change


def _no_node(document, plan):
    document["files"]["/dev/infiniband"]["entries"].remove("uverbs3")
    del document["files"]["/dev/infiniband/uverbs3"]


def _without(name):
    def change(document, plan):
        entry = document["files"]["/proc/modules"]
        lines = entry["text"].splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"{name} ")]
        entry["text"] = "".join(kept).replace(f"{name},", "")

    return change


def _no_rdma_ucm(document, plan):
    _without("rdma_ucm")(document, plan)
    document["files"]["/dev/infiniband"]["entries"].remove("rdma_cm")
    del document["files"]["/dev/infiniband/rdma_cm"]


def _no_provider(document, plan):
    entry = document["cmds"]["ibv_devinfo -l"]
    for line in list(document["cmds"]):
        if line.startswith("ibv_devinfo") and line != "ibv_devinfo -l":
            del document["cmds"][line]
    entry |= {
        "rc": 255,
        "stdout": "",
        "stderr": "libibverbs: Warning: couldn't load driver 'mlx5': "
        "libmlx5-rdmav34.so: cannot open shared object file\n"
        "No IB devices found\n",
    }


def _closed_module(documents, plans):
    """All services take DMA-BUF; one node has not the open module."""
    for document, plan in zip(documents, plans, strict=True):
        entry = document["files"][f"/proc/{plan.pid}/environ"]
        entry["text"] += "WITH_NVIDIA_PEERMEM=0\0"
        entry.pop("bytes", None)
    text = NVIDIA.replace("Open Kernel Module", "Kernel Module")
    documents[7]["files"]["/proc/driver/nvidia/version"] = {"text": text}


def _alone_with_two_versions(documents, plans):
    """One node tells its firmware, and runs two versions of it."""
    for document in documents:
        if document is not documents[7]:
            for path in list(document["files"]):
                if path.endswith("/fw_ver"):
                    del document["files"][path]
    path = "/sys/class/infiniband/mlx5_2/fw_ver"
    documents[7]["files"][path] = {"text": "28.39.1002\n"}


def _no_tool(name):
    def change(document, plan):
        for line, entry in document["cmds"].items():
            if line.split(" ")[0] == name:
                for each in entry if isinstance(entry, list) else [entry]:
                    each |= {"rc": 127, "stdout": "", "stderr": "not found"}

    return change


def _not_root(document, plan):
    document["collector"]["euid"] = 1000


def _errors(document, plan):
    line = f"ethtool -S {plan.rails[1].netdev}"
    last = document["cmds"][line][-1]
    last["stdout"] = last["stdout"].replace("crc_errors_phy: 0", "crc_errors_phy: 17")


def _vf_without_guid(document, plan):
    base = "/sys/class/infiniband/mlx5_vf0"
    document["files"]["/sys/class/infiniband"]["entries"].append("mlx5_vf0")
    document["files"] |= {
        f"{base}/device": {"link": "../../../0000:1a:00.2"},
        f"{base}/device/physfn": {"link": "../0000:1a:00.0"},
        f"{base}/node_guid": {"text": "0000:0000:0000:0000\n"},
        f"{base}/ports/1/state": {"text": "4: ACTIVE\n"},
        f"{base}/ports/1/phys_state": {"text": "5: LinkUp\n"},
    }
    for line in ("ibv_devinfo -l",):
        text = document["cmds"][line]["stdout"].replace("8 HCAs", "9 HCAs")
        document["cmds"][line]["stdout"] = text.rstrip("\n") + "\n\tmlx5_vf0\n\n"


def _ordering(**change):
    return _output(
        "mstconfig -d 0000:2a:00.0 -e q", lambda plan: _mstconfig(plan.rails[1], change)
    )


MUTANTS = [
    {"check": "meta-tools", "status": "WARN", "change": _no_tool("ethtool")},
    {"check": "meta-privilege", "status": "WARN", "change": _not_root},
    {
        "check": "nic-netdev-oper",
        "subject": _of(5, "netdev"),
        "change": _set("/sys/class/net/ens6f0np0/operstate", "down\n"),
    },
    {
        "check": "nic-netdev-oper",
        "subject": _of(6, "netdev"),
        "change": _no_carrier_in_addr,
        "note": "flags",
    },
    {
        "check": "nic-rate",
        "subject": "mlx5_3",
        "change": _set(
            "/sys/class/infiniband/mlx5_3/ports/1/rate", "200 Gb/sec (4X HDR)\n"
        ),
    },
    {
        "check": "nic-numa",
        "status": "WARN",
        "subject": "mlx5_6",
        "change": _set("/sys/bus/pci/devices/0000:7a:00.0/numa_node", "0\n"),
    },
    {
        "check": "nic-numa",
        "status": "WARN",
        "subject": "mlx5_6",
        "change": _set("/sys/bus/pci/devices/0000:7a:00.0/numa_node", "-1\n"),
        "note": "none",
    },
    {
        "check": "nic-vf-config",
        "subject": "mlx5_2",
        "change": _set("/sys/bus/pci/devices/0000:3a:00.0/sriov_numvfs", "4\n"),
    },
    {
        "check": "nic-vf-config",
        "subject": "mlx5_vf0",
        "change": _vf_without_guid,
        "note": "guid",
    },
    {
        "check": "nic-psid-consistent",
        "status": "WARN",
        "subject": "mlx5_1",
        "change": _set("/sys/class/infiniband/mlx5_1/board_id", "MT_0000001234\n"),
    },
    {
        "check": "nic-fec",
        "status": "WARN",
        "subject": _of(2, "netdev"),
        "change": _output(
            "ethtool --show-fec ens3f0np0",
            "FEC parameters for ens3f0np0:\nSupported/Configured FEC encodings: Auto\n"
            "Active FEC encoding: Off\n",
        ),
    },
    {
        "check": "nic-autoneg-pause",
        "status": "WARN",
        "subject": _of(2, "netdev"),
        "change": _output(
            "ethtool -a ens3f0np0",
            "Pause parameters for ens3f0np0:\n"
            "Autonegotiate:\toff\nRX:\t\ton\nTX:\t\ton\n\n",
        ),
    },
    {
        "check": "nic-symbol-err",
        "status": "WARN",
        "subject": _of(1, "netdev"),
        "change": _errors,
    },
    {"check": "nic-flap", "subject": "mlx5_4", "change": _flap},
    {
        "check": "nic-flap",
        "status": "WARN",
        "subject": "mlx5_4",
        "change": _link_downed,
        "note": "now",
        "log": True,
    },
    {
        "check": "nic-health",
        "subject": "mlx5_0",
        "change": _log(
            lambda plan: (
                f"mlx5_core {plan.rails[0].bdf}: poll_health:833:(pid 0):"
                " Health issue observed, firmware internal error, severity(3) ERROR:"
            )
        ),
    },
    {
        "check": "nic-module-temp",
        "subject": "mlx5_7",
        "change": _log(
            lambda plan: (
                f"mlx5_core {plan.rails[7].bdf}: Port module event[error]:"
                " module 0, Cable error, High Temperature"
            )
        ),
    },
    {
        "check": "nic-eswitch-lag",
        "status": "WARN",
        "subject": "bond7",
        "change": _leg_down,
    },
    {"check": "nic-driver-consistent", "change": _inbox},
    {
        "check": "nic-driver-consistent",
        "subject": "mlx5_core srcversion",
        "change": _other_build,
        "note": "build",
    },
    {"check": "nic-modules", "change": _no_rdma_ucm},
    {"check": "nic-uverbs-devnode", "subject": "mlx5_3", "change": _no_node},
    {
        "check": "nic-uverbs-devnode",
        "subject": "mlx5_3",
        "change": lambda document, plan: document["files"].update(
            {"/dev/infiniband/uverbs3": {"mode": "0000"}}
        ),
        "note": "mode",
    },
    {"check": "nic-userspace-provider", "change": _no_provider},
    {
        "check": "nic-fw-running-vs-stored",
        "status": "WARN",
        "subject": _of(4, "bdf"),
        "change": _output(
            "devlink -j dev info",
            lambda plan: _devlink(plan, {plan.rails[4].bdf: "28.45.1200"}),
        ),
    },
    {
        "check": "nic-fw-within-node",
        "subject": "MT_0000000838",
        "change": _alone_with_two_versions,
        "fleet": True,
    },
    {
        "check": "pcie-relaxed-ordering",
        "subject": _of(1, "bdf"),
        "change": _ordering(PCI_WR_ORDERING=("force_relax(1)", "force_relax(1)")),
    },
    {
        "check": "pcie-relaxed-ordering",
        "status": "WARN",
        "subject": _of(1, "bdf"),
        "change": _ordering(PCI_WR_ORDERING=("per_mkey(0)", "force_relax(1)")),
        "note": "pending",
    },
    {
        "check": "nic-mlxconfig",
        "status": "WARN",
        "subject": _of(1, "bdf"),
        "change": _ordering(NUM_OF_VFS=("16", "16")),
    },
    {
        "check": "nic-mlxconfig",
        "status": "WARN",
        "subject": _of(1, "bdf"),
        "change": _ordering(NUM_OF_VFS=("8", "16")),
        "note": "pending",
    },
    {"check": "gdr-peermem-loaded", "change": _without("nvidia_peermem")},
    {"check": "gdr-dmabuf-capable", "change": _closed_module, "fleet": True},
    {
        "check": "gdr-peermem-symver",
        "change": lambda document, plan: (
            _without("nvidia_peermem")(document, plan),
            _log(
                "nvidia_peermem: disagrees about version of symbol"
                " ib_register_peer_memory_client",
                "nvidia_peermem: Unknown symbol ib_register_peer_memory_client"
                " (err -22)",
            )(document, plan),
        ),
    },
    {
        "check": "gdr-peermem-errors",
        "status": "WARN",
        "change": _log(
            *["nv_get_p2p_free_callback:127 ERROR detected invalid context"] * 2
        ),
    },
    {
        "check": "gdr-gdrcopy",
        "status": "WARN",
        "change": _without("gdrdrv"),
    },
    {
        "check": "gdr-nvreg",
        "status": "WARN",
        "change": _set(
            "/proc/driver/nvidia/params",
            'EnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"\n',
        ),
    },
    {
        "check": "nic-driver-kernel-mismatch",
        "status": "WARN",
        "change": _installed("0123456789ABCDEF"),
    },
    {
        "check": "nic-driver-kernel-mismatch",
        "status": "WARN",
        "change": _installed(kernel="6.8.0-64-generic"),
        "note": "kernel",
    },
]

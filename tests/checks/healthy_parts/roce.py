"""What RoCE checks read: verbs, QoS, counters, RDMA namespaces; and single faults."""

import json

PINNED = "3"
TRAFFIC_CLASS = "106"
DSCP, PRIORITY = 26, 3
COUNTERS = {
    "out_of_sequence": 0,
    "packet_seq_err": 0,
    "local_ack_timeout_err": 12,
    "implied_nak_seq_err": 0,
    "rnr_nak_retry_err": 0,
    "roce_slow_restart": 3,
    "out_of_buffer": 0,
    "req_cqe_error": 4,
}
CONGESTION = {
    "np_cnp_sent": 40_000,
    "rp_cnp_handled": 9_000,
    "np_ecn_marked_roce_packets": 2_000,
}
BEFORE, AFTER = 1790000000.0, 1790000002.0


def env(plan):
    return {
        "MC_GID_INDEX": PINNED,
        "MC_MTU": "4096",
        "MC_IB_TC": TRAFFIC_CLASS,
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(plan.segment_bytes),
    }


def _devinfo_of(plan, rail):
    gids = "".join(_printed(*each) for each in rail.gids)
    return (
        f"hca_id:\t{rail.device}\n"
        "\ttransport:\t\t\tInfiniBand (0)\n"
        f"\tfw_ver:\t\t\t\t{plan.firmware}\n"
        f"\tnode_guid:\t\t\t{rail.guid}\n"
        f"\tsys_image_guid:\t\t\t{rail.guid}\n"
        "\tvendor_id:\t\t\t0x02c9\n"
        "\tvendor_part_id:\t\t\t4129\n"
        "\thw_ver:\t\t\t\t0x0\n"
        f"\tboard_id:\t\t\t{plan.psid}\n"
        "\tphys_port_cnt:\t\t\t1\n"
        "\tmax_mr_size:\t\t\t0xffffffffffffffff\n"
        "\tpage_size_cap:\t\t\t0xfffffffffffff000\n"
        "\tmax_qp:\t\t\t\t131072\n"
        "\tmax_cq:\t\t\t\t16777216\n"
        "\tmax_mr:\t\t\t\t16777216\n"
        "\t\tport:\t1\n"
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n"
        "\t\t\tmax_mtu:\t\t4096 (5)\n"
        "\t\t\tactive_mtu:\t\t4096 (5)\n"
        "\t\t\tsm_lid:\t\t\t0\n"
        "\t\t\tport_lid:\t\t0\n"
        "\t\t\tport_lmc:\t\t0x00\n"
        "\t\t\tlink_layer:\t\tEthernet\n"
        "\t\t\tmax_msg_sz:\t\t0x40000000\n"
        "\t\t\tgid_tbl_len:\t\t256\n"
        "\t\t\tactive_width:\t\t4X (2)\n"
        "\t\t\tactive_speed:\t\t100.0 Gbps (128)\n"
        f"{gids}\n"
    )


def _printed(index, gid, kind):
    """v1 rows in full, v2 rows compressed, as rdma-core 44 prints them."""
    shown = gid
    if kind == "RoCE v2":
        parts = gid.split(":")
        shown = f"{parts[0]}::{parts[4]}:{parts[5]}:{parts[6]}:{parts[7]}"
        if gid.startswith("0000"):
            octets = [int(text[at : at + 2], 16) for text in parts[6:] for at in (0, 2)]
            shown = "::ffff:" + ".".join(str(octet) for octet in octets)
        shown = shown.replace("::0000:", "::")
    return f"\t\t\tGID[{index:3d}]:\t\t{shown}, {kind.removeprefix('IB/')}\n"


def devinfo(plan):
    return "".join(_devinfo_of(plan, rail) for rail in plan.rails)


def _rows_of_mapping():
    rows = []
    for priority in range(8):
        dscps = [
            f"{each:02d}" for each in range(8 * priority + 7, 8 * priority - 1, -1)
        ]
        rows.append(f"\tprio:{priority} dscp:{','.join(dscps)},\n")
    return "".join(rows)


def mlnx_qos():
    flags = "   ".join("1" if at == PRIORITY else "0" for at in range(8))
    return (
        "DCBX mode: OS controlled\n"
        "Priority trust state: dscp\n"
        "dscp2prio mapping:\n"
        f"{_rows_of_mapping()}"
        "Receive buffer size (bytes): "
        "20016,156096,0,0,0,0,0,0,max_buffer_size=1027728\n"
        "Cable len: 7\n"
        "PFC configuration:\n"
        "\tpriority    0   1   2   3   4   5   6   7\n"
        f"\tenabled     {flags}   \n"
        f"\tbuffer      {flags}   \n"
        "tc: 0 ratelimit: unlimited, tsa: vendor\n"
        "\t priority:  1\n"
    )


def _qos(rail):
    dev = f"show dev {rail.netdev}"
    pfc = {
        "pfc_cap": 8,
        "macsec_bypass": False,
        "delay": 0,
        "prio_pfc": [at == PRIORITY for at in range(8)],
    }
    ets = {"willing": False, "ets_cap": 8, "cbs": False, "tc_bw": [0] * 8}
    return {
        f"dcb -j pfc {dev}": json.dumps(pfc),
        f"dcb -j app {dev}": json.dumps({"dscp_prio": [[DSCP, PRIORITY, " "]]}),
        f"dcb -j ets {dev}": json.dumps(ets),
        f"mlnx_qos -i {rail.netdev}": mlnx_qos(),
        f"ethtool -S {rail.netdev}": [
            (BEFORE, _statistics(5_000)),
            (AFTER, _statistics(5_400)),
        ],
        f"mlxreg -d {rail.bdf} --reg_name ROCE_ACCL --get": _register(
            roce_adp_retrans_en=1,
            roce_tx_window_en=1,
            roce_slow_restart_en=1,
            adaptive_routing_forced_en=0,
        ),
        f"mlxreg -d {rail.bdf} --reg_name PPCC --get --indexes"
        " local_port=1,pnat=0,lp_msb=0,algo_slot=0,algo_param_index=0": _register(
            value=1
        ),
    }


def _statistics(pauses):
    return (
        "NIC statistics:\n"
        f"     rx_prio{PRIORITY}_pause: {pauses}\n"
        f"     tx_prio{PRIORITY}_pause: {pauses // 2}\n"
        "     rx_discards_phy: 0\n"
        "     rx_symbol_err_phy: 3\n"
        "     rx_crc_errors_phy: 0\n"
        "     link_down_events_phy: 1\n"
    )


def _register(**fields):
    rows = "".join(f"{name:<30}| 0x{value:08x}\n" for name, value in fields.items())
    heading = f"Sending access register...\n\n{'Field Name':<30}| Data\n{'=' * 44}\n"
    return heading + rows


def cmds(plan):
    found = {
        "rdma -j system": json.dumps({"netns": "shared", "copy-on-fork": True}),
        "rdma -j resource show": json.dumps(
            [
                {
                    "ifindex": rail.index,
                    "ifname": rail.device,
                    "pd": 3,
                    "cq": 70,
                    "qp": 260,
                    "cm_id": 0,
                    "mr": 40,
                    "ctx": 2,
                    "srq": 2,
                }
                for rail in plan.rails
            ]
        ),
        "ibv_devinfo -v": devinfo(plan),
    }
    for rail in plan.rails:
        found |= _qos(rail)
    return found


def files(plan):
    found = {
        "/sys/module/ib_core/parameters/netns_mode": "Y\n",
        "/etc/modprobe.d/ib_core.conf": "options ib_core netns_mode=1\n",
    }
    for rail in plan.rails:
        base = f"/sys/class/infiniband/{rail.device}"
        net = f"/sys/class/net/{rail.netdev}"
        found[f"{base}/tc/1/traffic_class"] = f"Global tclass={TRAFFIC_CLASS}\n"
        found[f"{net}/qos/trust"] = "dscp\n"
        cma = f"/sys/kernel/config/rdma_cm/{rail.device}/ports/1"
        found[f"{cma}/default_roce_mode"] = "RoCE v2\n"
        found[f"{cma}/default_roce_tos"] = "0\n"
        found[f"{net}/ecn/roce_np/enable/{PRIORITY}"] = "1\n"
        found[f"{net}/ecn/roce_rp/enable/{PRIORITY}"] = "1\n"
        found[f"{net}/ecn/roce_np/cnp_dscp"] = "48\n"
        for name, value in (COUNTERS | CONGESTION).items():
            grown = value + (600 if name in CONGESTION else 0)
            found[f"{base}/ports/1/hw_counters/{name}"] = [
                (BEFORE, f"{value}\n"),
                (AFTER, f"{grown}\n"),
            ]
        found[f"{base}/ports/1/counters/link_downed"] = [
            (BEFORE, "1\n"),
            (AFTER, "1\n"),
        ]
    return found


# Single faults; all at the rail with index 4 where it does not say otherwise

AT = 4
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000\n"


def _rail(plan):
    return plan.rails[AT]


def _device(plan):
    return _rail(plan).device


def _netdev(plan):
    return _rail(plan).netdev


def _bdf(plan):
    return _rail(plan).bdf


def _slot(document, rail, index, gid=None, kind=None, netdev=None):
    base = f"/sys/class/infiniband/{rail.device}/ports/1"
    said = {"gids": gid, "gid_attrs/types": kind, "gid_attrs/ndevs": netdev}
    for leaf, text in said.items():
        if text is not None:
            entry = {"text": f"{text}\n"} if text else {"errno": "EINVAL"}
            document["files"][f"{base}/{leaf}/{index}"] = entry


def _rewrite(document, line, old, new):
    for key, entry in document["cmds"].items():
        if key.startswith(line):
            for each in entry if isinstance(entry, list) else [entry]:
                assert old in each["stdout"], key
                each["stdout"] = each["stdout"].replace(old, new)
            return
    raise AssertionError(f"no command {line}")


def _no_gids(document, plan):
    for index in range(4):
        _slot(document, _rail(plan), index, ZERO.strip(), "", "")


def _only_v1(document, plan):
    for index in (1, 3):
        _slot(document, _rail(plan), index, ZERO.strip(), "", "")


def _only_link_local(document, plan):
    for index in (2, 3):
        _slot(document, _rail(plan), index, ZERO.strip(), "", "")


def _left_over(document, plan):
    """A GID of an address that is gone, behind the ones in use."""
    gid = "0000:0000:0000:0000:0000:ffff:c612:0463"
    _slot(document, _rail(plan), 5, gid, "RoCE v2", _netdev(plan))


def _pinned_to_v1(document, plan):
    """The rail's address is in another slot than on its peers; 3 holds RoCE v1."""
    rail = _rail(plan)
    _slot(document, rail, 5, rail.gids[3][1], "RoCE v2", rail.netdev)
    _slot(document, rail, 3, kind="IB/RoCE v1")


def _environ(document, plan, old, new):
    entry = document["files"][f"/proc/{plan.pid}/environ"]
    assert f"{old}\0" in entry["text"]
    entry["text"] = entry["text"].replace(f"{old}\0", f"{new}\0")


def _moved_index(document, plan):
    """The rail's RoCE v2 GID is in slot 2 as well as in the pinned one."""
    _slot(document, _rail(plan), 2, kind="RoCE v2")


def _foreign_choice(document, plan):
    """The pinned slot holds the address of a VLAN interface of the rail."""
    rail = _rail(plan)
    name = f"{rail.netdev}.9"
    _slot(document, rail, 3, "0000:0000:0000:0000:0000:ffff:c633:6405", netdev=name)
    _slot(document, rail, 2, kind="RoCE v2")
    rows = json.loads(document["cmds"]["ip -j -d addr"]["stdout"])
    vlan = {
        "ifindex": 90,
        "ifname": name,
        "link": rail.netdev,
        "flags": ["UP", "LOWER_UP"],
        "mtu": 4200,
        "operstate": "UP",
        "link_type": "ether",
        "address": rail.mac,
        "linkinfo": {"info_kind": "vlan", "info_data": {"id": 9}},
        "addr_info": [
            {
                "family": "inet",
                "local": "198.51.100.5",
                "prefixlen": 24,
                "scope": "global",
            }
        ],
    }
    document["cmds"]["ip -j -d addr"]["stdout"] = json.dumps([*rows, vlan])


def _many_gids(document, plan):
    for index in range(4, 10):
        _slot(document, _rail(plan), index, _rail(plan).gids[0][1], "IB/RoCE v1")
        _slot(document, _rail(plan), index, netdev=_netdev(plan))


def _iwarp(document, plan):
    path = f"/sys/class/infiniband/{_device(plan)}/node_type"
    document["files"][path] = {"text": "4: RNIC\n"}


def _small_mtu(document, plan):
    text = devinfo(plan).split("hca_id")
    text[AT + 1] = text[AT + 1].replace(
        "active_mtu:\t\t4096 (5)", "active_mtu:\t\t1024 (3)"
    )
    document["cmds"]["ibv_devinfo -v"]["stdout"] = "hca_id".join(text)


def _small_region(document, plan):
    text = devinfo(plan).split("hca_id")
    text[AT + 1] = text[AT + 1].replace("0xffffffffffffffff", "0x80000000")
    document["cmds"]["ibv_devinfo -v"]["stdout"] = "hca_id".join(text)


def _other_mc_mtu(document, plan):
    _environ(document, plan, "MC_MTU=4096", "MC_MTU=1024")


def _trusts_pcp(document, plan):
    """Set by hand to pcp: no mapping is printed any more."""
    name = _netdev(plan)
    text = mlnx_qos()
    mapping = text[text.index("dscp2prio") : text.index("Receive")]
    text = text.replace("state: dscp", "state: pcp").replace(mapping, "")
    document["cmds"][f"mlnx_qos -i {name}"]["stdout"] = text
    document["cmds"][f"dcb -j app show dev {name}"]["stdout"] = "{}"
    document["files"][f"/sys/class/net/{name}/qos/trust"] = {"text": "pcp\n"}


def _no_pfc(document, plan):
    name = _netdev(plan)
    _rewrite(
        document,
        f"dcb -j pfc show dev {name}",
        "true, false, false, false, false]",
        "false, false, false, false, false]",
    )
    _rewrite(
        document,
        f"mlnx_qos -i {name}",
        "enabled     0   0   0   1",
        "enabled     0   0   0   0",
    )


def _other_priority(document, plan):
    """DSCP 26 goes to priority 2 on this NIC."""
    name = _netdev(plan)
    _rewrite(
        document,
        f"mlnx_qos -i {name}",
        "prio:3 dscp:31,30,29,28,27,26,",
        "prio:3 dscp:31,30,29,28,27,",
    )
    _rewrite(document, f"mlnx_qos -i {name}", "prio:2 dscp:", "prio:2 dscp:26,")


def _lossy_class(document, plan):
    """The driver gives the queue pairs of one device a class of priority 6."""
    path = f"/sys/class/infiniband/{_device(plan)}/tc/1/traffic_class"
    document["files"][path] = {"text": "Global tclass=192\n"}


def _cma_v1(document, plan):
    base = f"/sys/kernel/config/rdma_cm/{_device(plan)}/ports/1"
    document["files"][f"{base}/default_roce_mode"] = {"text": "IB/RoCE v1\n"}


def _lldpad(document, plan):
    name = f"mlnx_qos -i {_netdev(plan)}"
    warning = (
        "****** WARNING: lldpad service is running and may overwrite your settings "
        "******\n"
    )
    document["cmds"][name]["stdout"] = warning + document["cmds"][name]["stdout"]


def _no_ecn(document, plan):
    path = f"/sys/class/net/{_netdev(plan)}/ecn/roce_rp/enable/{PRIORITY}"
    document["files"][path] = {"text": "0\n"}


def _other_congestion_control(document, plan):
    _rewrite(
        document, f"mlxreg -d {_bdf(plan)} --reg_name PPCC", "0x00000001", "0x00000000"
    )


def _no_window(document, plan):
    line = f"mlxreg -d {_bdf(plan)} --reg_name ROCE_ACCL"
    name = f"{'roce_tx_window_en':<30}| "
    _rewrite(document, line, f"{name}0x00000001", f"{name}0x00000000")


def _forced_routing(document, plan):
    line = f"mlxreg -d {_bdf(plan)} --reg_name ROCE_ACCL"
    name = f"{'adaptive_routing_forced_en':<30}| "
    _rewrite(document, line, f"{name}0x00000000", f"{name}0x00000001")


def _exclusive(document, plan):
    document["cmds"]["rdma -j system"]["stdout"] = json.dumps({"netns": "exclusive"})
    files = document["files"]
    files["/sys/module/ib_core/parameters/netns_mode"] = {"text": "N\n"}
    files["/etc/modprobe.d/ib_core.conf"] = {"text": "options ib_core netns_mode=0\n"}


def _lost_at_boot(document, plan):
    path = "/etc/modprobe.d/ib_core.conf"
    document["files"][path] = {"text": "options ib_core netns_mode=0\n"}


def _timeouts(document, plan):
    base = f"/sys/class/infiniband/{_device(plan)}/ports/1/hw_counters"
    document["files"][f"{base}/local_ack_timeout_err"][1]["text"] = "2717\n"


def _few_regions(document, plan):
    entry = document["cmds"]["rdma -j resource show"]
    rows = json.loads(entry["stdout"])
    rows[AT]["mr"] = 16_700_000
    entry["stdout"] = json.dumps(rows)


MUTANTS = [
    {"check": "roce-gid-table", "subject": _device, "change": _no_gids},
    {"check": "roce-gid-v2", "subject": _device, "change": _only_v1},
    {"check": "roce-gid-routable", "subject": _device, "change": _only_link_local},
    {"check": "roce-gid-ip-match", "subject": _device, "change": _left_over},
    {"check": "roce-gid-pinned", "subject": _device, "change": _pinned_to_v1},
    {"check": "roce-gid-index-uniform", "subject": _device, "change": _moved_index},
    {
        "check": "roce-gid-mooncake-choice",
        "subject": _device,
        "change": _foreign_choice,
    },
    {
        "check": "roce-gid-churn",
        "subject": _device,
        "status": "WARN",
        "change": _many_gids,
    },
    {"check": "roce-transport", "subject": _device, "change": _iwarp},
    {"check": "roce-active-mtu", "subject": _device, "change": _small_mtu},
    {"check": "roce-mc-mtu", "change": _other_mc_mtu},
    {"check": "roce-max-mr", "subject": _device, "change": _small_region},
    {"check": "roce-trust", "subject": _netdev, "change": _trusts_pcp},
    {"check": "roce-pfc", "subject": _netdev, "change": _no_pfc},
    {"check": "roce-dscp2prio", "subject": _netdev, "change": _other_priority},
    {"check": "roce-tclass", "subject": _device, "change": _lossy_class},
    {
        "check": "roce-cma-mode",
        "subject": _device,
        "status": "WARN",
        "change": _cma_v1,
    },
    {
        "check": "roce-dcbx-willing",
        "subject": _netdev,
        "status": "WARN",
        "change": _lldpad,
    },
    {"check": "roce-ecn", "subject": _netdev, "status": "WARN", "change": _no_ecn},
    {
        "check": "roce-cc-algo",
        "subject": _device,
        "status": "WARN",
        "change": _other_congestion_control,
    },
    {"check": "roce-lossy", "subject": _device, "status": "WARN", "change": _no_window},
    {
        "check": "roce-adaptive-routing",
        "subject": _device,
        "status": "WARN",
        "change": _forced_routing,
    },
    {"check": "roce-rdma-netns", "change": _exclusive},
    {
        "check": "roce-rdma-netns",
        "status": "WARN",
        "change": _lost_at_boot,
        "note": "boot",
    },
    {
        "check": "roce-counters-retrans",
        "subject": _device,
        "status": "WARN",
        "change": _timeouts,
    },
    {
        "check": "roce-qp-resources",
        "subject": _device,
        "status": "WARN",
        "change": _few_regions,
    },
]

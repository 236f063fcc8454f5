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


def _device(plan, rail):
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
    return "".join(_device(plan, rail) for rail in plan.rails)


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

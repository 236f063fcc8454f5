"""Open vSwitch on every node: an OVN bridge and an uplink bond, flows offloaded.

The rails stand beside it. Single faults of `rules/ovs.py` and `rules/ovs_runtime.py`.
"""

import json

LIST = "ovs-vsctl --timeout=5 --format=json list"
LOG = "/var/log/openvswitch/ovs-vswitchd.log"
NAMED = "configured netdevs"
NONE = ["set", []]
VERSION = "ovs-vswitchd (Open vSwitch) 3.1.0\n"
COUNTERS = (
    "drop_action_of_pipeline",
    "drop_action_congestion",
    "upcall_flow_limit_hit",
    "netlink_overflow",
)
LEGS = ("ens20f0np0", "ens20f1np1")
T = (1790000000.0, 1790000002.5)


def _uuid(plan, kind, at):
    return ["uuid", f"{kind:08d}-0000-4000-8000-{plan.index:06d}{at:06d}"]


def _set(values):
    return values[0] if len(values) == 1 else ["set", values]


def _map(**pairs):
    return ["map", [[key.replace("_", "-"), value] for key, value in pairs.items()]]


def table(*records):
    """A listing from records that all have the same columns."""
    headings = sorted(records[0]) if records else ["_uuid"]
    data = [[record[name] for name in headings] for record in records]
    return json.dumps({"data": data, "headings": headings})


def _root(plan):
    return {
        "_uuid": _uuid(plan, 1, 0),
        "bridges": _set([_uuid(plan, 2, at) for at in range(2)]),
        "next_cfg": 118,
        "cur_cfg": 118,
        "other_config": _map(hw_offload="true", max_idle="30000"),
        "external_ids": _map(system_id=f"chassis-{plan.index}"),
        "ovs_version": NONE,
        "db_version": "8.3.1",
        "dpdk_initialized": False,
        "dpdk_version": "none",
        "datapath_types": ["set", ["netdev", "system"]],
        "iface_types": ["set", ["geneve", "internal", "patch", "system"]],
    }


def _bridges(plan):
    ports = {"br-ex": (0, 1), "br-int": (2, 3, 4)}
    return [
        {
            "_uuid": _uuid(plan, 2, at),
            "name": name,
            "ports": _set([_uuid(plan, 3, port) for port in ports[name]]),
            "datapath_type": "system",
            "fail_mode": NONE if name == "br-ex" else "secure",
            "controller": _uuid(plan, 5, 0) if name == "br-ex" else NONE,
            "stp_enable": False,
            "rstp_enable": False,
            "protocols": NONE,
            "other_config": ["map", []],
        }
        for at, name in enumerate(sorted(ports))
    ]


def _ports(plan):
    legs = _set([_uuid(plan, 4, at) for at in (1, 2)])
    interfaces = {
        "br-ex": _uuid(plan, 4, 0),
        "bond0": legs,
        "br-int": _uuid(plan, 4, 3),
        "pf0vf0": _uuid(plan, 4, 4),
        "ovn-tunnel": _uuid(plan, 4, 5),
    }
    return [
        {
            "_uuid": _uuid(plan, 3, at),
            "name": name,
            "interfaces": interfaces[name],
            "bond_mode": "balance-tcp" if name == "bond0" else NONE,
            "lacp": "active" if name == "bond0" else NONE,
            "tag": NONE,
            "trunks": NONE,
            "vlan_mode": NONE,
            "qos": NONE,
            "status": ["map", []],
            "rstp_status": ["map", []],
            "other_config": ["map", []],
        }
        for at, name in enumerate(interfaces)
    ]


def interface(plan, at, name, kind, mtu, ofport, driver):
    return {
        "_uuid": _uuid(plan, 4, at),
        "name": name,
        "type": kind,
        "admin_state": "up",
        "link_state": "up",
        "mtu": mtu,
        "mtu_request": mtu if kind in {"", "internal"} else NONE,
        "error": NONE,
        "ofport": ofport,
        "ingress_policing_rate": 0,
        "status": _map(driver_name=driver) if driver else ["map", []],
    }


def _interfaces(plan):
    rows = [
        ("br-ex", "internal", 9000, 65534, ""),
        (LEGS[0], "", 9000, 1, "mlx5_core"),
        (LEGS[1], "", 9000, 2, "mlx5_core"),
        ("br-int", "internal", 8942, 65534, ""),
        ("pf0vf0", "", 8942, 3, "mlx5e_rep"),
        ("ovn-tunnel", "geneve", NONE, 4, ""),
    ]
    made = [interface(plan, at, *row) for at, row in enumerate(rows)]
    for row in made:
        pairs = row["status"][1]
        row["status"] = ["map", [[key.replace("-", "_"), v] for key, v in pairs]]
    return made


def _controllers(plan):
    return [
        {
            "_uuid": _uuid(plan, 5, 0),
            "target": "tcp:192.0.2.200:6653",
            "is_connected": True,
            "status": _map(state="ACTIVE"),
        }
    ]


BOND = """---- bond0 ----
bond_mode: balance-tcp
bond may use recirculation: yes, Recirc-ID : 1
bond-hash-basis: 0
lb_output action: disabled, bond-id: -1
updelay: 0 ms
downdelay: 0 ms
next rebalance: 8657 ms
lacp_status: negotiated
lacp_fallback_ab: false
active-backup primary: <none>
active member mac: 02:00:5e:00:53:01(ens20f0np0)

member ens20f0np0: enabled
  active member
  may_enable: true

member ens20f1np1: enabled
  may_enable: true

"""
LACP = """---- bond0 ----
  status: active negotiated
  sys_id: 02:00:5e:00:53:01
  sys_priority: 65534
  aggregation key: 1
  lacp_time: slow

member: ens20f0np0: current attached
  port_id: 2
  port_priority: 65535
  may_enable: true

  actor sys_id: 02:00:5e:00:53:01
  partner sys_id: 02:00:5e:00:53:fe
  partner state: activity aggregation synchronized collecting distributing

member: ens20f1np1: current attached
  port_id: 1
  port_priority: 65535
  may_enable: true

  actor sys_id: 02:00:5e:00:53:01
  partner sys_id: 02:00:5e:00:53:fe
  partner state: activity aggregation synchronized collecting distributing

"""
UPCALL = """system@ovs-system:
  flows         : (current 7) (avg 6) (max 40) (limit 200000)
  offloaded flows : 5
  dump duration : 1ms
  ufid enabled : true

  23: (keys 0)
"""


def dpctl(lost=0):
    return (
        f"system@ovs-system:\n  lookups: hit:88123 missed:1042 lost:{lost}\n"
        "  flows: 7\n  masks: hit:90000 total:4 hit/pkt:1.01\n  port 0: ovs-system"
        " (internal)\n"
    )


def flows(*lines):
    return "NXST_FLOW reply (xid=0x4):\n" + "".join(
        f" cookie=0x0, duration=900.1s, {line}\n" for line in lines
    )


NORMAL = "table=0, n_packets=1111, n_bytes=916332, priority=0 actions=NORMAL"
TRACKED = (
    "table=8, n_packets=40, n_bytes=9000, priority=110,ip actions=ct(table=9)",
    "table=9, n_packets=30, n_bytes=8000, priority=90,ct_state=+est,ip"
    " actions=output:3",
    "table=9, n_packets=2, n_bytes=100, priority=0 actions=drop",
)


def log(*more):
    lines = (
        "|00001|vlog|INFO|opened log file /var/log/openvswitch/ovs-vswitchd.log",
        "|00002|reconnect|INFO|unix:/var/run/openvswitch/db.sock: connected",
        "|00003|netdev_offload|INFO|netdev: Flow API Enabled",
        "|00004|bridge|INFO|ovs-vswitchd (Open vSwitch) 3.1.0",
        *more,
    )
    return "".join(f"2026-09-21T03:14:4{at}.824Z{x}\n" for at, x in enumerate(lines))


FEATURES = """Features for {}:
rx-checksumming: on
tcp-segmentation-offload: on
hw-tc-offload: on
rx-gro-hw: off [fixed]
"""


def eswitch(rail):
    return f"devlink -j dev eswitch show pci/{rail.bdf}"


def _mode(rail, mode="legacy"):
    told = {"mode": mode, "inline-mode": "none", "encap-mode": "basic"}
    return json.dumps({"dev": {f"pci/{rail.bdf}": told}})


def cmds(plan):
    twice = {
        f"{LIST} Open_vSwitch": table(_root(plan)),
        "ovs-appctl -T 3 upcall/show": UPCALL,
        "ovs-appctl -T 3 dpctl/show": dpctl(),
        **{f"ovs-appctl -T 3 coverage/read-counter {c}": "0\n" for c in COUNTERS},
    }
    return {
        **{line: [(t, text) for t in T] for line, text in twice.items()},
        f"{LIST} Bridge": table(*_bridges(plan)),
        f"{LIST} Port": table(*_ports(plan)),
        f"{LIST} Interface": table(*_interfaces(plan)),
        f"{LIST} Controller": table(*_controllers(plan)),
        f"{LIST} Manager": table(),
        NAMED: "# 2 files\n/etc/netplan/50-kv.yaml br-ex eno1\n/etc/netplan/60.yaml\n",
        "ovs-vsctl --timeout=5 list-br": "br-ex\nbr-int\n",
        "ovs-appctl -T 3 version": VERSION,
        "ovs-vswitchd --version": VERSION,
        "ovs-appctl -T 3 bond/show": BOND,
        "ovs-appctl -T 3 lacp/show": LACP,
        "ovs-ofctl dump-flows br-ex": flows(NORMAL),
        "ovs-ofctl dump-flows br-int": flows(*TRACKED),
        "ovs-appctl dpctl/dump-flows -m type=offloaded": (
            "# 1 flows\nufid:0, in_port(pf0vf0),eth_type(0x0800), packets:9, bytes:900,"
            " used:0.1s, offloaded:yes, dp:tc, actions:ens20f0np0\n"
        ),
        **{f"ethtool -k {leg}": FEATURES.format(leg) for leg in LEGS},
        **{eswitch(rail): _mode(rail) for rail in plan.rails},
    }


PF, VF = "/sys/bus/pci/devices/0000:c1:00.0", "/sys/bus/pci/devices/0000:c1:00.{}"
NET = "/sys/class/net"


def port(netdev, name):
    """A port of the switch inside the NIC of the uplinks."""
    return {
        f"{NET}/{netdev}/device": {"link": "../../../0000:c1:00.0"},
        f"{NET}/{netdev}/phys_switch_id": "a088c20003bf6b0c\n",
        f"{NET}/{netdev}/phys_port_name": f"{name}\n",
    }


def function(number):
    """A VF that a pod has: its network device is not here."""
    return {
        f"{PF}/virtfn{number}": {"link": f"../0000:c1:00.{number + 2}"},
        f"{VF.format(number + 2)}/driver": {"link": "../../bus/pci/drivers/mlx5_core"},
        f"{VF.format(number + 2)}/net": (),
    }


def files(plan):
    return {
        f"{PF}/sriov_numvfs": "1\n",
        **port(LEGS[0], "p0"),
        **port("pf0vf0", "pf0vf0"),
        **function(0),
        "/run/openvswitch": ("db.sock", "ovs-vswitchd.3001.ctl", "ovs-vswitchd.pid"),
        "/run/openvswitch/ovs-vswitchd.pid": "3001\n",
        LOG: log(),
        "/sys/module/openvswitch": ("initstate", "srcversion"),
    }


# Single faults


def _samples(document, line):
    entry = document["cmds"][line]
    return entry if isinstance(entry, list) else [entry]


def _cell(name, record, column, value, key="name"):
    """Changes one cell, in every sample of the table."""

    def change(document, plan):
        for entry in _samples(document, f"{LIST} {name}"):
            listing = json.loads(entry["stdout"])
            names = listing["headings"]
            for row in listing["data"]:
                if not record or row[names.index(key)] == record:
                    row[names.index(column)] = value
            entry["stdout"] = json.dumps(listing)

    return change


def _all(*changes):
    def change(document, plan):
        for each in changes:
            each(document, plan)

    return change


def _says(line, *texts, rc=0, stderr=""):
    """Other output: of the only sample, or of the last ones."""

    def change(document, plan):
        entries = _samples(document, line)
        for entry, text in zip(entries[-len(texts) :], texts, strict=True):
            entry.update(stdout=text, rc=rc, stderr=stderr)

    return change


def _logged(text):
    def change(document, plan):
        document["files"][LOG] = {"text": log(text)}

    return change


def _without_ovs(document, plan):
    for line in [each for each in document["cmds"] if each.startswith("ovs-")]:
        del document["cmds"][line]
    for path in list(document["files"]):
        if "openvswitch" in path and not path.startswith("/sys/"):
            document["files"][path] = {"errno": "ENOENT"}


def _database_down(document, plan):
    told = (
        "ovs-vsctl: unix:/var/run/openvswitch/db.sock: database connection failed"
        " (No such file or directory)\n"
    )
    for line in document["cmds"]:
        if line.startswith("ovs-vsctl"):
            for entry in _samples(document, line):
                entry.update(rc=1, stdout="", stderr=told)


def _more_records(name, cells):
    """One more record like the first, with these cells, in every sample."""

    def change(document, plan):
        for entry in _samples(document, f"{LIST} {name}"):
            listing = json.loads(entry["stdout"])
            named = dict(zip(listing["headings"], listing["data"][0], strict=True))
            named |= {"_uuid": _uuid(plan, 9, 9), **cells}
            listing["data"].append([named[each] for each in listing["headings"]])
            entry["stdout"] = json.dumps(listing)
        flows_of = f"ovs-ofctl dump-flows {cells['name']}"
        document["cmds"][flows_of] = {"rc": 0, "stdout": flows(NORMAL), "stderr": ""}

    return change


def _enslaved(document, plan):
    entry = document["cmds"]["ip -j -d addr"]
    rows = json.loads(entry["stdout"])
    for row in rows:
        if row["ifname"] == plan.rails[0].netdev:
            row["master"] = "ovs-system"
            row["linkinfo"] = {"info_slave_kind": "openvswitch"}
    entry["stdout"] = json.dumps(rows)


def _not_offloading(document, plan):
    """hw-offload was set while vswitchd ran: its start did not enable anything."""
    text = log().replace("netdev: Flow API Enabled", "nothing")
    document["files"][LOG] = {"text": text}
    for entry in _samples(document, "ovs-appctl -T 3 upcall/show"):
        entry["stdout"] = UPCALL.replace("offloaded flows : 5", "offloaded flows : 0")
    line = "ovs-appctl dpctl/dump-flows -m type=offloaded"
    document["cmds"][line]["stdout"] = "# 0 flows\n"


def _without_module(document, plan):
    files = document["files"]
    files["/sys/module/openvswitch"] = {"errno": "ENOENT"}
    text = files["/proc/modules"]["text"]
    kept = [line for line in text.splitlines(True) if "openvswitch" not in line]
    files["/proc/modules"] = {"text": "".join(kept)}


def _one_more_function(document, plan):
    """A pod has a second VF, and its representor was not put into a bridge."""
    more = {f"{PF}/sriov_numvfs": "2\n", **port("pf0vf1", "pf0vf1"), **function(1)}
    for path, entry in more.items():
        known = {"text": entry} if isinstance(entry, str) else entry
        document["files"][path] = {"entries": []} if entry == () else known


def _added_to_the_datapath(document, plan):
    """`ovs-dpctl add-if`: the kernel knows the port, the database does not."""
    entry = document["cmds"]["ip -j -d addr"]
    rows = json.loads(entry["stdout"])
    bridge = next(row for row in rows if row["ifname"] == "br-ex")
    more = {"ifname": "veth7", "ifindex": 81, "master": "ovs-system", "addr_info": []}
    more |= {"linkinfo": {"info_kind": "veth", "info_slave_kind": "openvswitch"}}
    more |= {"address": "02:00:5e:fe:02:07"}
    entry["stdout"] = json.dumps([*rows, {**bridge, **more}])


_DEAD = (
    'ovs-appctl: cannot connect to "/var/run/openvswitch/ovs-vswitchd.3001.ctl"'
    " (Connection refused)\n"
)
_MISSING = "could not open network device ens20f1np1 (No such device)"

MUTANTS = [
    {"check": "ovs-expected", "change": _without_ovs},
    {
        "check": "ovs-vswitchd-alive",
        "change": _says("ovs-appctl -T 3 version", "", rc=1, stderr=_DEAD),
    },
    {"check": "ovs-db-reachable", "change": _database_down},
    {
        "check": "ovs-cfg-converged",
        "change": _cell("Open_vSwitch", "", "cur_cfg", 112),
    },
    {
        "check": "ovs-iface-error",
        "subject": "ens20f1np1",
        "change": _all(
            _cell("Interface", "ens20f1np1", "error", _MISSING),
            _cell("Interface", "ens20f1np1", "ofport", -1),
            _cell("Interface", "ens20f1np1", "mtu", NONE),
        ),
    },
    {
        "check": "ovs-iface-ofport",
        "subject": "pf0vf0",
        "change": _cell("Interface", "pf0vf0", "ofport", NONE),
    },
    {
        "check": "ovs-iface-ofport",
        "subject": "pf0vf0",
        "change": _cell("Interface", "pf0vf0", "ofport", -1),
        "note": "minus-one",
    },
    {
        "check": "ovs-mtu-request",
        "subject": "br-ex",
        "change": _all(
            _cell("Interface", "br-ex", "mtu", 1500),
            _cell("Interface", "br-ex", "mtu_request", 1500),
        ),
    },
    {
        "check": "ovs-mtu-request",
        "subject": "ens20f0np0",
        "change": _cell("Interface", "ens20f0np0", "mtu_request", 9100),
        "note": "not-applied",
    },
    {
        "check": "ovs-bond-members",
        "subject": "bond0/ens20f1np1",
        "change": _says(
            "ovs-appctl -T 3 bond/show",
            BOND.replace(
                "ens20f1np1: enabled\n  may_enable: true",
                "ens20f1np1: disabled\n  may_enable: false",
            ),
        ),
    },
    {
        "check": "ovs-bond-members",
        "subject": "bond0/ens20f1np1",
        "change": _says(
            "ovs-appctl -T 3 lacp/show",
            LACP.replace("ens20f1np1: current", "ens20f1np1: expired"),
        ),
        "note": "lacp",
    },
    {
        "check": "ovs-offload-failures",
        "change": _logged(
            "|00035|dpif_netlink(handler2)|ERR|failed to offload flow: Operation not"
            " supported: pf0vf0"
        ),
    },
    {
        "check": "ovs-mtu-slowpath-drop",
        "change": _logged(
            "|00077|netdev_linux|WARN|tap1a2b3c4d-30: Dropped packet: Too big. GRO/TSO"
            " enabled?"
        ),
    },
    {
        "check": "ovs-upcall-lost",
        "change": _says("ovs-appctl -T 3 dpctl/show", dpctl(27)),
    },
    {
        "check": "ovs-flow-limit",
        "status": "WARN",
        "change": _says(
            "ovs-appctl -T 3 upcall/show", UPCALL.replace("200000", "2000")
        ),
    },
    {
        "check": "ovs-drop-coverage",
        "status": "WARN",
        "subject": "upcall_flow_limit_hit",
        "change": _says(
            "ovs-appctl -T 3 coverage/read-counter upcall_flow_limit_hit", "12\n"
        ),
    },
    {
        "check": "ovs-flow-drop-roce",
        "subject": "br-ex",
        "change": _says(
            "ovs-ofctl dump-flows br-ex",
            flows(
                NORMAL,
                "table=0, n_packets=1164, n_bytes=1259448, priority=100,udp,tp_dst=4791"
                " actions=drop",
            ),
        ),
        "log": True,
    },
    {
        "check": "ovs-check-pkt-len",
        "status": "WARN",
        "change": _says(
            "ovs-ofctl dump-flows br-int",
            flows(
                *TRACKED,
                "table=14, n_packets=4, n_bytes=10, priority=50,ip"
                " actions=check_pkt_larger(8942)->NXM_NX_REG9[1],resubmit(,15)",
            ),
        ),
        "log": True,
    },
    {
        "check": "ovs-hw-offload",
        "change": _cell("Open_vSwitch", "", "other_config", _map(max_idle="30000")),
    },
    {
        "check": "ovs-hw-offload",
        "change": _cell(
            "Open_vSwitch",
            "",
            "other_config",
            _map(hw_offload="True", max_idle="30000"),
        ),
        "note": "no-boolean",
    },
    {
        "check": "ovs-tc-policy",
        "change": _cell(
            "Open_vSwitch",
            "",
            "other_config",
            _map(hw_offload="true", max_idle="30000", tc_policy="skip_sw"),
        ),
        "log": True,
    },
    {
        "check": "ovs-version",
        "status": "WARN",
        "change": _all(
            _says("ovs-appctl -T 3 version", VERSION.replace("3.1.0", "2.17.7")),
            _says("ovs-vswitchd --version", VERSION.replace("3.1.0", "2.17.7")),
        ),
    },
    {
        "check": "ovs-version",
        "change": _says("ovs-appctl -T 3 version", VERSION.replace("3.1.0", "2.17.7")),
        "note": "not-restarted",
    },
    {
        "check": "ovs-bridge-exists",
        "change": _more_records(
            "Bridge", {"name": "br-old", "ports": NONE, "controller": NONE}
        ),
    },
    {
        "check": "ovs-uplink-in-bridge",
        "subject": "ens1f0np0",
        "change": _all(
            _cell("Interface", "ovn-tunnel", "type", ""),
            _cell("Interface", "ovn-tunnel", "mtu", 4200),
            _cell("Interface", "ovn-tunnel", "name", "ens1f0np0"),
        ),
    },
    {
        "check": "ovs-ip-on-enslaved-nic",
        "subject": "ens1f0np0",
        "change": _enslaved,
    },
    {
        "check": "ovs-datapath-type",
        "subject": "br-int",
        "change": _cell("Bridge", "br-int", "datapath_type", "netdev"),
    },
    {
        "check": "ovs-hw-offload-effective",
        "status": "WARN",
        "change": _not_offloading,
    },
    {
        "check": "ovs-esw-mode",
        "subject": lambda plan: f"mlx5_3 ({plan.rails[3].bdf})",
        "change": lambda document, plan: document["cmds"][
            eswitch(plan.rails[3])
        ].update(stdout=_mode(plan.rails[3], "switchdev")),
    },
    {
        "check": "ovs-fail-mode",
        "subject": "br-ex",
        "change": _all(
            _cell("Bridge", "br-ex", "fail_mode", "secure"),
            _cell("Controller", "", "is_connected", False),
        ),
    },
    {
        "check": "ovs-controller-connected",
        "status": "WARN",
        "subject": "Controller tcp:192.0.2.200:6653",
        "change": _cell("Controller", "", "is_connected", False),
    },
    {
        "check": "ovs-stp",
        "status": "WARN",
        "subject": "br-ex",
        "change": _cell("Bridge", "br-ex", "stp_enable", True),
    },
    {
        "check": "ovs-bond-mode",
        "status": "WARN",
        "subject": "bond0",
        "change": _cell("Port", "bond0", "lacp", NONE),
    },
    {
        "check": "ovs-vlan",
        "subject": "bond0",
        "change": _cell("Port", "bond0", "tag", 100),
    },
    {
        "check": "ovs-policing",
        "status": "WARN",
        "subject": "ens20f0np0",
        "change": _cell("Interface", "ens20f0np0", "ingress_policing_rate", 1000),
    },
    {"check": "ovs-module-params", "change": _without_module},
    {
        "check": "ovs-not-persistent",
        "status": "WARN",
        "subject": "br-ex",
        "change": _says(NAMED, "# 1 files\n/etc/netplan/60.yaml eno1\n"),
    },
    {
        "check": "ovs-not-persistent",
        "status": "WARN",
        "subject": "veth7",
        "change": _added_to_the_datapath,
        "note": "datapath",
    },
    {
        "check": "ovs-rep-present",
        "status": "WARN",
        "subject": LEGS[0],
        "change": _one_more_function,
    },
    {
        "check": "ovs-netdev-offloads",
        "subject": "ens20f1np1",
        "change": _says(
            "ethtool -k ens20f1np1",
            FEATURES.format("ens20f1np1").replace(
                "offload: on\nrx", "offload: off\nrx"
            ),
        ),
    },
    {
        "check": "ovs-dpdk",
        "change": _cell(
            "Open_vSwitch",
            "",
            "other_config",
            _map(hw_offload="true", max_idle="30000", dpdk_init="true"),
        ),
    },
]

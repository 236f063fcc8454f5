"""What the rules about routes read, and single faults of them."""

import json

ADDR, RULE = "ip -j -d addr", "ip -j -4 rule"
ALL, NEIGH = "ip -j -4 route show table all", "ip -j neigh"
CONF = "/proc/sys/net/ipv4/conf"
NMCLI = "nmcli -t -f DEVICE,STATE,CONNECTION d"
KEPT = "/etc/NetworkManager/system-connections"
LOST = "/run/NetworkManager/system-connections"
PING = "ping -c 1 -W 1 -M do -s 4172 -I"
SMALL = "ping -c 1 -W 1 -M do -s 56 -I"
REPLY = """PING {dst} ({dst}) from {src} : 4172(4200) bytes of data.
4180 bytes from {dst}: icmp_seq=1 ttl=64 time=0.05 ms

--- {dst} ping statistics ---
1 packets transmitted, 1 received, 0% packet loss, time 0ms
rtt min/avg/max/mdev = 0.050/0.050/0.050/0.000 ms
"""


def _next(plan, rail):
    """The same rail of the next node, and the next rail of it."""
    peer = plan.peers[plan.index % len(plan.peers)]
    return peer.rails[rail.index].ip, peer.rails[(rail.index + 1) % 8].ip


def _get(rail, dst, **more):
    found = {"dst": dst, "from": rail.ip, **more, "dev": rail.netdev}
    return json.dumps(
        [{**found, "table": rail.table, "flags": [], "uid": 0, "cache": []}]
    )


def cmds(plan):
    found = {
        NMCLI: "".join(f"{rail.netdev}:connected:{rail.name}\n" for rail in plan.rails)
        + f"{plan.mgmt}:connected:mgmt\nlo:unmanaged:\n"
    }
    for rail in plan.rails:
        same, cross = _next(plan, rail)
        found[f"ip -j route get {same} from {rail.ip}"] = _get(rail, same)
        found[f"ip -j route get {cross} from {rail.ip}"] = _get(
            rail, cross, gateway=rail.gateway
        )
        found[f"{PING} {rail.ip} {same}"] = REPLY.format(dst=same, src=rail.ip)
        small = REPLY.replace("4172(4200)", "56(84)").replace("4180", "64")
        found[f"{SMALL} {rail.ip} {same}"] = small.format(dst=same, src=rail.ip)
    return found


def verbs(plan):
    """What `--active` tried: the next rail here, the same rail of the next node."""
    peer = plan.peers[plan.index % len(plan.peers)]
    base = {"kind": "rc-pingpong", "errno": 0}
    here = [
        {**base, "from": rail.device, "to": plan.rails[(rail.index + 1) % 8].device}
        for rail in plan.rails
    ]
    there = [
        {**base, "from": rail.device, "to": rail.device, "peer": peer.name}
        for rail in plan.rails
    ]
    read = [{**each, "kind": "read"} for each in (*here, *there)]
    return {"probes": [*here, *there, *read]}


def files(plan):
    names = ("all", "default", plan.mgmt, *[rail.netdev for rail in plan.rails])
    found = {
        KEPT: ("mgmt.nmconnection", *[f"{r.name}.nmconnection" for r in plan.rails]),
        LOST: (),
        "/proc/sys/net/ipv4/fib_multipath_hash_policy": "1\n",
    }
    settings = {"rp_filter": 2, "arp_ignore": 1, "arp_announce": 2, "arp_filter": 0}
    for name in names:
        for leaf, value in settings.items():
            shown = 0 if name == "all" and leaf == "rp_filter" else value
            found[f"{CONF}/{name}/{leaf}"] = f"{shown}\n"
        found[f"{CONF}/{name}/accept_local"] = "0\n"
        found[f"{CONF}/{name}/ignore_routes_with_linkdown"] = "0\n"
    return found


# Single faults


def _edit(document, line, change):
    entry = document["cmds"][line]
    rows = json.loads(entry["stdout"])
    entry["stdout"] = json.dumps(change(rows))


def _rail(plan, index=3):
    return plan.rails[index]


def _label(plan, index=3):
    rail = _rail(plan, index)
    return f"{rail.name} ({rail.netdev}, {rail.ip})"


def _link(change, index=3):
    """A change of the link of one rail in `ip addr`."""

    def mutate(document, plan):
        def rows(every):
            for row in every:
                if row["ifname"] == _rail(plan, index).netdev:
                    change(row, _rail(plan, index))
            return every

        _edit(document, ADDR, rows)

    return mutate


def _no_address(row, rail):
    row["addr_info"] = [a for a in row["addr_info"] if a["family"] == "inet6"]


def _dadfailed(row, rail):
    row["addr_info"][-1].update(tentative=True, dadfailed=True)


def _autoconfigured(row, rail):
    row["addr_info"].append(
        {
            "family": "inet6",
            "local": "2001:db8:7::7",
            "prefixlen": 64,
            "scope": "global",
            "dynamic": True,
            "mngtmpaddr": True,
        }
    )


def _slaac(document, plan):
    """An address by router advertisement, and the two GIDs that come with it."""
    _link(_autoconfigured)(document, plan)
    base = f"/sys/class/infiniband/{_rail(plan).device}/ports/1"
    gid = "2001:0db8:0007:0000:0000:0000:0000:0007\n"
    for at, kind in ((4, "IB/RoCE v1\n"), (5, "RoCE v2\n")):
        document["files"][f"{base}/gids/{at}"] = {"text": gid}
        document["files"][f"{base}/gid_attrs/types/{at}"] = {"text": kind}
        netdev = {"text": f"{_rail(plan).netdev}\n"}
        document["files"][f"{base}/gid_attrs/ndevs/{at}"] = netdev


def _mtu(row, rail):
    row["mtu"] = 1500


def _prefix(row, rail):
    row["addr_info"][0]["prefixlen"] = 16


def _mac(row, rail):
    row["address"] = "00:00:00:00:00:00"


def _pairs_share_a_subnet(documents, plans):
    """Every two rails are in one /23, well kept apart, but for one rail of node-07."""
    for document, plan in zip(documents, plans, strict=True):
        for line, entry in document["cmds"].items():
            if not line.startswith("ip -j"):
                continue
            text = entry["stdout"]
            for rail in plan.rails:
                even = rail.index & ~1
                text = text.replace(rail.network, f"198.18.{even}.0/23")
            entry["stdout"] = text
        _edit(document, ADDR, _shortened)
    _sysctl("arp_ignore", 0)(documents[7], plans[7])


def _shortened(rows):
    for row in rows:
        for address in row["addr_info"]:
            if address["local"].startswith("198.18."):
                address["prefixlen"] = 23
    return rows


def _peer_behind_gateway(documents, plans):
    """Rail 3 of node-08 is in another subnet; node-07 sends it to management."""
    document = documents[8]
    pairs = {
        "198.18.3.9": "198.19.3.9",
        "198.18.3.0/24": "198.19.3.0/24",
        "198.18.3.254": "198.19.3.254",
        "198.18.3.255": "198.19.3.255",
    }
    for line in list(document["cmds"]):
        entry = document["cmds"].pop(line)
        for old, new in pairs.items():
            line = line.replace(f"{old} ", f"{new} ")
            line = line.removesuffix(old) + new if line.endswith(old) else line
            for each in entry if isinstance(entry, list) else [entry]:
                text = each["stdout"].replace(f'"{old}"', f'"{new}"')
                text = text.replace("c612:0309", "c613:0309")
                text = text.replace("::ffff:198.18.3.9", "::ffff:198.19.3.9")
                text = text.replace("seen as 198.18.3.9,", "seen as 198.19.3.9,")
                each["stdout"] = text.replace("from 198.18.3.9", "from 198.19.3.9")
        document["cmds"][line] = entry
    for entry in document["files"].values():
        if isinstance(entry, dict) and "text" in entry:
            entry["text"] = entry["text"].replace("c612:0309", "c613:0309")
    _rows(_row_elsewhere("198.19.3.0/24"))(documents[7], plans[7])


def _row_elsewhere(dst):
    """One destination of the rail's table is routed over the management NIC."""

    def change(rows, rail):
        row = {"dst": dst, "dev": "eno1", "flags": [], "scope": "link"}
        return [*rows, {**row, "table": rail.table} if "table" in rows[0] else row]

    return change


def _no_rule(document, plan):
    rail = _rail(plan)
    _edit(document, RULE, lambda rows: [r for r in rows if r["src"] != rail.ip])
    _forget_samples(document, rail)


def _shadowed(document, plan):
    rail = _rail(plan)
    rule = {"priority": 100, "src": rail.ip, "table": "main"}
    _edit(document, RULE, lambda rows: [rows[0], rule, *rows[1:]])
    _forget_samples(document, rail)


def _forget_samples(document, rail):
    """Live answers from before the fault; the engine alone has to find it."""
    for line in list(document["cmds"]):
        if line.startswith("ip -j route get") and line.endswith(f"from {rail.ip}"):
            del document["cmds"][line]


def _no_table(document, plan):
    rail = _rail(plan)
    _edit(document, ALL, lambda rows: [r for r in rows if _table(r) != rail.table])
    document["cmds"][f"ip -j route show table {rail.table}"] = {
        "rc": 2,
        "stdout": "[",
        "stderr": "Error: ipv4: FIB table does not exist.\nDump terminated\n",
        "ms": 1,
        "timeout": False,
    }


def _table(row):
    return row.get("table", "main")


def _rows(change, own=True):
    """A change of the rail's own table (or of main) in every dump of it."""

    def mutate(document, plan):
        rail = _rail(plan)
        name = rail.table if own else "main"

        def every(rows):
            kept = [row for row in rows if _table(row) != name]
            return kept + change([r for r in rows if _table(r) == name], rail)

        _edit(document, ALL, every)
        if own:
            line = f"ip -j route show table {rail.table}"
            _edit(document, line, lambda rows: change(rows, rail))
        _forget_samples(document, rail)

    return mutate


def _default_elsewhere(rows, rail):
    for row in rows:
        if row["dst"] == "default":
            row.update(dev="eno1", gateway="192.0.2.254")
    return rows


def _no_connected(rows, rail):
    return [row for row in rows if row["dst"] == "default"]


def _pinned_mtu(rows, rail):
    rows[0]["metrics"] = [{"mtu": 1500}]
    return rows


def _refused(rows, rail):
    base = {"flags": []} | ({"table": rows[0]["table"]} if "table" in rows[0] else {})
    return [*rows, {"type": "blackhole", "dst": f"{rail.network[:-4]}0/29", **base}]


def _peer_elsewhere(rows, rail):
    """One peer of the rail is routed over the management NIC."""
    return _row_elsewhere(f"{rail.network[:-4]}9")(rows, rail)


def _peer_by_next_rail(rows, rail):
    """Without a source one peer of the rail is reached over the next rail."""
    octet = rail.ip.rpartition(".")[2]
    row = {"dst": f"{rail.network[:-4]}1", "dev": "ens5f0np0", "scope": "link"}
    return [*rows, {**row, "prefsrc": f"198.18.4.{octet}", "flags": []}]


def _linkdown(rows, rail):
    rows[-1]["flags"] = ["linkdown"]
    return rows


def _multipath(rows, rail):
    dead = {"gateway": "198.18.3.253", "dev": "eno2", "weight": 1, "flags": ["dead"]}
    live = {"gateway": rail.gateway, "dev": rail.netdev, "weight": 1, "flags": []}
    row = {"dst": "203.0.113.0/24", "flags": [], "nexthops": [live, dead]}
    if "table" in rows[0]:
        row["table"] = rows[0]["table"]
    return [*rows, row]


def _default_over_rail(documents, plans):
    """A second default route in main of node-07, over a rail that all nodes name."""
    for document, plan in zip(documents, plans, strict=True):
        environ = document["files"][f"/proc/{plan.pid}/environ"]
        names = ",".join(each.device for each in plan.rails)
        environ["text"] += f"NCCL_IB_HCA={names}\0"
    rail = _rail(plans[7])
    row = {"dst": "default", "dev": rail.netdev, "metric": 500, "flags": []}
    _edit(documents[7], ALL, lambda rows: [*rows, {**row, "gateway": rail.gateway}])


def _two_defaults(document, plan):
    row = {"dst": "default", "gateway": "192.0.2.253", "dev": "eno2", "flags": []}
    _edit(document, ALL, lambda rows: [*rows, row])


def _answer_elsewhere(document, plan):
    """The kernel's live answer names another device: the kernel is right."""
    rail = _rail(plan)
    same, _ = _next(plan, rail)
    line = f"ip -j route get {same} from {rail.ip}"
    entry = document["cmds"][line]
    entry["stdout"] = entry["stdout"].replace(rail.netdev, "eno1")


def _sysctl(leaf, value, index=3):
    def change(document, plan):
        for name in ("all", _rail(plan, index).netdev):
            shown = 0 if name == "all" and leaf == "rp_filter" else value
            document["files"][f"{CONF}/{name}/{leaf}"] = {"text": f"{shown}\n"}

    return change


def _neighbour(which, **change):
    """A change of one neighbour of the rail: its gateway, or a peer's address."""

    def mutate(document, plan):
        rail = _rail(plan)
        ip = rail.gateway if which == "gateway" else plan.peers[0].rails[3].ip

        def rows(every):
            for row in every:
                if row["dst"] == ip and row["dev"] == rail.netdev:
                    row.update(change)
                    if row["state"] == ["FAILED"]:
                        del row["lladdr"]
            return every

        _edit(document, NEIGH, rows)

    return mutate


def _guid(document, plan):
    """A cloned device: the GUID of the next one."""
    path = "/sys/class/infiniband/mlx5_3/node_guid"
    document["files"][path] = {"text": f"{_rail(plan, 4).guid}\n"}


def _in_run_only(document, plan):
    rail = _rail(plan)
    name = f"{rail.name}.nmconnection"
    document["files"][KEPT]["entries"].remove(name)
    document["files"][LOST]["entries"].append(name)


def _ping(text, *kinds):
    def change(document, plan):
        rail = _rail(plan)
        same, _ = _next(plan, rail)
        for kind in kinds:
            entry = document["cmds"][f"{kind} {rail.ip} {same}"]
            entry.update(stdout=text.format(dst=same, src=rail.ip), rc=1)

    return change


TOO_LONG = """PING {dst} ({dst}) from {src} : 4172(4200) bytes of data.
From 198.18.3.254 icmp_seq=1 Frag needed and DF set (mtu = 1500)

--- {dst} ping statistics ---
1 packets transmitted, 0 received, +1 errors, 100% packet loss, time 0ms
"""
SILENT = """PING {dst} ({dst}) from {src} : 4172(4200) bytes of data.

--- {dst} ping statistics ---
1 packets transmitted, 0 received, 100% packet loss, time 0ms
"""


def _at(check, change, status="FAIL", index=3, **more):
    return {
        "check": check,
        "change": change,
        "status": status,
        "subject": lambda plan: _label(plan, index),
        **more,
    }


def _exchange(at):
    def change(document, plan):
        document["verbs"]["probes"][at].update(errno=110, error="timed out")

    return change


MUTANTS = [
    {
        "check": "route-nic-has-ip",
        "change": _link(_no_address),
        "subject": lambda plan: f"rail3 ({_rail(plan).netdev})",
    },
    _at("route-ip-state", _link(_dadfailed)),
    _at("route-ipv6-ra", _slaac, "WARN"),
    _at("route-mtu-iface", _link(_mtu)),
    _at("route-prefix-consistent", _link(_prefix)),
    _at("route-dup-mac", _link(_mac)),
    _at("route-source-rule", _no_rule),
    _at("route-rule-order", _shadowed),
    _at("route-table-empty", _no_table),
    _at("route-table-default", _rows(_default_elsewhere)),
    _at("route-table-onlink", _rows(_no_connected), "WARN"),
    _at("route-mtu-locked", _rows(_pinned_mtu), "WARN"),
    _at("route-blackhole", _rows(_refused)),
    _at("route-linkdown-flag", _rows(_linkdown)),
    _at("route-ecmp", _rows(_multipath), "WARN"),
    _at("route-get-consistent", _answer_elsewhere),
    _at("route-get-consistent", _rows(_peer_elsewhere), note="predicted"),
    _at("route-rp-filter", _sysctl("rp_filter", 1), "WARN"),
    _at("route-default-dev", _default_over_rail, "WARN", fleet=True),
    {"check": "route-metric-dup", "change": _two_defaults, "status": "WARN"},
    _at("route-gateway-neigh", _neighbour("gateway", state=["FAILED"])),
    _at("route-dup-ip", _neighbour("peer", lladdr="02:00:5e:99:00:99")),
    {"check": "route-dup-guid", "change": _guid, "subject": "mlx5_3, mlx5_4"},
    _at("route-nm-managed", _in_run_only, "WARN"),
    _at("route-path-mtu", _ping(TOO_LONG, PING)),
    _at("route-path-mtu", _ping(SILENT, PING), note="silent"),
    _at("act-ping-rail", _ping(SILENT, PING, SMALL)),
    {
        "check": "route-same-subnet-multi-nic",
        "change": _pairs_share_a_subnet,
        "subject": lambda plan: f"{_label(plan, 2)}, {_label(plan, 3)}",
        "fleet": True,
    },
    _at("route-arp-ignore", _sysctl("arp_ignore", 0), "WARN"),
    _at("route-arp-announce", _sysctl("arp_announce", 0), "WARN"),
    _at("route-peer-same-rail", _peer_behind_gateway, fleet=True),
    _at("route-asymmetric", _rows(_peer_by_next_rail, own=False), "WARN"),
    _at("route-cross-rail", _rows(_row_elsewhere("198.18.5.0/24")), "WARN"),
    {"check": "act-hairpin", "change": _exchange(3), "subject": "mlx5_3"},
    {"check": "act-rc-pingpong", "change": _exchange(11), "subject": "mlx5_3"},
    {
        "check": "act-rc-pingpong",
        "change": _exchange(27),
        "subject": "mlx5_3",
        "note": "read",
    },
]

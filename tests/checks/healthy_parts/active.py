"""TCP connections that `--active` tried between neighbours; single faults of them."""

import json

HANDSHAKE, ENGINE = 12001, 15683
NFT = "nft -j list ruleset"
RAIL = 3


def _beside(plan):
    """Both neighbours in the ring; the first two that a node of a great fleet knows."""
    peers = {peer.index: peer for peer in plan.peers}
    count = len(peers) + 1
    if {*peers, plan.index} != set(range(count)):
        return list(plan.peers[:2])
    return [peers[(plan.index + step) % count] for step in (1, -1)]


def _line(source, target, port):
    return f"connect {target.ip}:{port} from {source.ip}"


def _rule(*parts):
    return {"rule": {**WHERE, "chain": "input", "expr": list(parts)}}


def _match(kind, told, right, op="=="):
    return {"match": {"op": op, "left": {kind: told}, "right": right}}


def _ports(*values):
    return _match("payload", {"protocol": "tcp", "field": "dport"}, {"set": [*values]})


WHERE = {"family": "inet", "table": "filter"}
ACCEPT, DROP = {"accept": None}, {"drop": None}
RULESET = [
    {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
    {"table": {"family": "inet", "name": "filter", "handle": 1}},
    {
        "chain": {
            **WHERE,
            "name": "input",
            "type": "filter",
            "hook": "input",
            "prio": 0,
            "policy": "drop",
        }
    },
    _rule(_match("ct", {"key": "state"}, ["established", "related"], "in"), ACCEPT),
    _rule(_match("meta", {"key": "iifname"}, "lo"), {"counter": None}, ACCEPT),
    _rule(_ports(22, HANDSHAKE, {"range": [15000, 17000]}, 50051), ACCEPT),
]


def cmds(plan):
    found = {NFT: json.dumps({"nftables": RULESET})}
    for rail in plan.rails:
        stood = f"connected, seen as {rail.ip}, by "
        for port in (HANDSHAKE, ENGINE):
            found[f"listen {rail.ip}:{port}"] = "listening\n"
            for peer in _beside(plan):
                line = _line(rail, peer.rails[rail.index], port)
                found[line] = f"{stood}{peer.name}\n"
    return found


def _failed(told):
    return {"rc": 1, "stdout": "", "stderr": told, "ms": 3000, "timeout": False}


def _to_one_peer(document, plan):
    """One of two peers is not reached: its other neighbour reaches it."""
    peer = _beside(plan)[0].rails[RAIL]
    document["cmds"][_line(plan.rails[RAIL], peer, ENGINE)] = _failed("ETIMEDOUT")


def _filtered(told):
    """Nobody reaches one port of rail3 of node-07."""

    def change(documents, plans):
        here = plans[7]
        for peer in _beside(here):
            line = _line(peer.rails[RAIL], here.rails[RAIL], HANDSHAKE)
            documents[peer.index]["cmds"][line] = _failed(told)

    return change


def _masqueraded(document, plan):
    rail, peer = plan.rails[RAIL], _beside(plan)[0]
    entry = document["cmds"][_line(rail, peer.rails[RAIL], HANDSHAKE)]
    entry["stdout"] = entry["stdout"].replace(f"as {rail.ip},", f"as {plan.ip},")


def _dropped(document, plan):
    """Somebody tried a rule by hand, on one rail."""
    netdev = plan.rails[RAIL].netdev
    rule = _rule(_match("meta", {"key": "iifname"}, netdev), _ports(HANDSHAKE), DROP)
    rows = [*RULESET[:3], rule, *RULESET[3:]]
    document["cmds"][NFT]["stdout"] = json.dumps({"nftables": rows})


def _docker_started(document, plan):
    """A VF of rail3 is in a bridge, and Docker has set the policy of FORWARD."""
    rail = plan.rails[RAIL]
    entry = document["cmds"]["ip -j -d addr"]
    pf = next(r for r in json.loads(entry["stdout"]) if r["ifname"] == rail.netdev)
    base = {**pf, "addr_info": [], "parentbus": "pci"}
    vf = {"ifname": "ens4f0v0", "ifindex": 70, "parentdev": "0000:4a:00.2"}
    more = {"master": "br-pods", "linkinfo": {"info_slave_kind": "bridge"}}
    bridge = {"ifname": "br-pods", "ifindex": 71, "linkinfo": {"info_kind": "bridge"}}
    rows = [{**base, **vf, **more, "address": "02:00:5e:70:00:01"}]
    rows.append({**base, **bridge, "parentdev": "", "address": "02:00:5e:70:00:02"})
    entry["stdout"] = json.dumps([*json.loads(entry["stdout"]), *rows])
    device = "/sys/class/net/ens4f0v0/device"
    document["files"][device] = {"link": "../../../0000:4a:00.2"}
    document["files"][f"{device}/physfn"] = {"link": f"../{rail.bdf}"}
    name = {"family": "ip", "table": "filter", "name": "FORWARD", "prio": 0}
    kind = {"type": "filter", "hook": "forward", "policy": "drop"}
    jump = {"jump": {"target": "DOCKER"}}
    told = {"family": "ip", "table": "filter", "chain": "FORWARD"}
    docker = {"family": "ip", "table": "filter", "name": "DOCKER"}
    rules = [
        {"chain": docker},
        {"chain": {**name, **kind}},
        {
            "rule": {
                **told,
                "expr": [_match("meta", {"key": "oifname"}, "docker0"), jump],
            }
        },
    ]
    document["cmds"][NFT]["stdout"] = json.dumps({"nftables": [*RULESET, *rules]})


def _at(change, note, check="act-tcp-handshake", **more):
    return {
        "check": check,
        "change": change,
        "subject": lambda plan: (
            f"rail3 ({plan.rails[RAIL].netdev}, {plan.rails[RAIL].ip})"
        ),
        "note": note,
        **more,
    }


MUTANTS = [
    _at(_to_one_peer, "to one peer"),
    _at(_filtered("ETIMEDOUT"), "dropped", fleet=True),
    _at(_filtered("ECONNREFUSED"), "rejected", fleet=True),
    _at(_masqueraded, "masqueraded"),
    _at(_dropped, "by hand", check="route-nftables-drop"),
    _at(
        _docker_started,
        "vf in a bridge",
        check="route-forwarding-docker",
        status="WARN",
    ),
]

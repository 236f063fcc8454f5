"""TCP between rails: whose fault it is where none stood, and what is not known."""

from __future__ import annotations

import json

import pytest

CHECK = "act-tcp-handshake"
HANDSHAKE, ENGINE = 12001, 15683
REFUSED, LATE = (1, "", "ECONNREFUSED"), (1, "", "ETIMEDOUT")
NAMES = ("node-a", "node-b", "node-c")


def ip(name, rail=0):
    return f"198.18.{rail}.{NAMES.index(name) + 1}"


def line(source, target, port=HANDSHAKE, rail=0):
    return f"connect {ip(target, rail)}:{port} from {ip(source, rail)}"


def stood(source, target, seen=""):
    return f"connected, seen as {seen or ip(source)}, by {target}\n"


def addresses(name, rails=1):
    rows = [
        {
            "ifname": f"eth{rail}",
            "flags": ["UP", "LOWER_UP"],
            "mtu": 4200,
            "link_type": "ether",
            "addr_info": [
                {
                    "family": "inet",
                    "local": ip(name, rail),
                    "prefixlen": 24,
                    "scope": "global",
                }
            ],
        }
        for rail in range(rails)
    ]
    return {"ip -j -d addr": json.dumps(rows)}


def label(name):
    return f"rail0 (eth0, {ip(name)})"


def fleet(bench, *names, changed=None, active=True, **more):
    """Every node of a ring tried every other one; `changed` replaces entries."""
    changed = changed or {}
    documents = []
    for name in names:
        cmds = addresses(name)
        for peer in names:
            for port in (HANDSHAKE, ENGINE) if peer != name else ():
                key = line(name, peer, port)
                entry = changed.get((name, peer, port), stood(name, peer))
                if entry is not None:
                    cmds[key] = entry
        collector = {"active": active, **more}
        documents.append(bench.doc(name, cmds=cmds, collector=collector))
    return bench.judge(*documents, only=CHECK)


def test_both_ports_both_ways_pass(bench):
    seen = fleet(bench, *NAMES)

    assert seen.by_node(CHECK) == dict.fromkeys(NAMES, "PASS")


def test_a_port_that_a_service_holds_and_that_connects_is_as_good(bench):
    seen = fleet(bench, *NAMES, changed={("node-a", "node-b", 12001): "connected\n"})

    assert seen.by_node(CHECK) == dict.fromkeys(NAMES, "PASS")


@pytest.mark.parametrize("told", [REFUSED, LATE], ids=["refused", "dropped"])
def test_a_port_that_nobody_reaches_is_the_fault_of_its_node(bench, told):
    changed = {(name, "node-b", 12001): told for name in ("node-a", "node-c")}

    seen = fleet(bench, *NAMES, changed=changed)

    assert seen.by_node(CHECK) == {
        "node-a": "PASS",
        "node-b": "FAIL",
        "node-c": "PASS",
    }
    observed = seen.one(CHECK, node="node-b").observed
    assert observed == f"node-a and 1 more cannot reach 12001: {told[2]}"


def test_a_port_that_others_reach_is_the_fault_of_who_does_not(bench):
    seen = fleet(bench, *NAMES, changed={("node-a", "node-b", ENGINE): LATE})

    assert seen.by_node(CHECK)["node-b"] == "PASS"
    finding = seen.one(CHECK, label("node-a"))
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.observed == (
        "no connection to 198.18.0.2:15683 of node-b: ETIMEDOUT"
    )


def test_of_two_nodes_the_one_that_refuses_is_at_fault(bench):
    seen = fleet(bench, *NAMES[:2], changed={("node-a", "node-b", 12001): REFUSED})

    assert seen.by_node(CHECK) == {"node-a": "UNKNOWN", "node-b": "FAIL"}


def test_of_two_nodes_the_one_without_an_answer_names_the_other(bench):
    seen = fleet(bench, *NAMES[:2], changed={("node-a", "node-b", 12001): LATE})

    assert seen.by_node(CHECK) == {"node-a": "FAIL", "node-b": "UNKNOWN"}
    assert "node-b" in seen.one(CHECK, node="node-a").observed


def test_a_masqueraded_rail_fails_though_it_connects(bench):
    entry = stood("node-a", "node-b", seen="192.0.2.9")
    seen = fleet(bench, *NAMES, changed={("node-a", "node-b", 12001): entry})

    finding = seen.one(CHECK, node="node-a")
    assert finding.status == "FAIL"
    assert "node-b sees 192.0.2.9 instead of 198.18.0.1" in finding.observed


@pytest.mark.parametrize(
    "entry",
    [
        (2, "", "refused, and nobody may have listened"),
        (2, "", "connected, and nobody greeted"),
        (-1, "", "the budget of the collector is spent"),
        "connected",
        "connected, seen as 198.18.0.1, by no",
        None,
    ],
    ids=["nobody", "silent", "late", "cut", "cut in the name", "missing"],
)
def test_what_tells_nothing_of_the_path_is_unknown(bench, entry):
    changed = {(name, "node-b", 12001): entry for name in ("node-a", "node-c")}

    seen = fleet(bench, *NAMES, changed=changed)

    assert set(seen.by_node(CHECK).values()) <= {"UNKNOWN", "PASS"}
    assert seen.by_node(CHECK)["node-b"] == "UNKNOWN"


def test_a_measured_cut_is_unknown_even_at_a_whole_word(bench):
    documents = [
        bench.doc(name, cmds={**addresses(name)}, collector={"active": True})
        for name in NAMES[:2]
    ]
    for document, other in zip(documents, ("node-b", "node-a"), strict=True):
        name = document["node"]["hostname"]
        for port in (HANDSHAKE, ENGINE):
            document["cmds"][line(name, other, port)] = {
                "rc": 0,
                "stdout": "connected\n",
                "bytes": 44,
            }

    seen = bench.judge(*documents, only=CHECK)

    assert seen.by_node(CHECK) == dict.fromkeys(NAMES[:2], "UNKNOWN")


def test_one_way_alone_is_unknown(bench):
    cmds = addresses("node-a")
    for port in (HANDSHAKE, ENGINE):
        cmds[line("node-a", "node-b", port)] = "connected\n"
    node = bench.doc("node-a", cmds=cmds, collector={"active": True})

    finding = bench.judge(node, only=CHECK).one(CHECK)

    assert finding.status == "UNKNOWN"
    assert "12001 from a peer" in finding.observed


def test_a_failure_in_a_single_document_is_a_failure(bench):
    cmds = addresses("node-a") | {line("node-a", "node-b"): REFUSED}
    node = bench.doc("node-a", cmds=cmds)

    finding = bench.judge(node, only=CHECK).one(CHECK)

    assert finding.status == "FAIL"
    assert "12001 of a peer: ECONNREFUSED" in finding.observed


def test_without_active_it_is_skipped_and_with_it_the_reason_is_told(bench):
    cmds = addresses("node-a")
    silent = bench.doc("node-a", cmds=cmds)
    told = {"active": True, "active_error": "without --inventory there is no peer"}

    assert bench.judge(silent, only=CHECK).status(CHECK) == "SKIP"
    node = bench.doc("node-a", cmds=cmds, collector=told)
    finding = bench.judge(node, only=CHECK).one(CHECK)
    assert (finding.status, finding.observed) == ("UNKNOWN", told["active_error"])


def test_a_port_that_could_not_be_listened_on_is_the_reason(bench):
    refused = {f"listen {ip('node-a')}:12001": (1, "", "EADDRNOTAVAIL")}
    cmds = addresses("node-a") | refused
    node = bench.doc("node-a", cmds=cmds, collector={"active": True})

    observed = bench.judge(node, only=CHECK).one(CHECK).observed

    assert observed == "nobody could listen on 198.18.0.1:12001: EADDRNOTAVAIL"


def test_a_connection_between_rails_is_no_try_at_a_master(bench):
    cmds = addresses("node-a") | {line("node-a", "node-b"): REFUSED}
    node = bench.doc("node-a", cmds=cmds, files=bench.env(MC_GID_INDEX="3"))

    assert bench.judge(node).status("mc-master-reach") in {"SKIP", "UNKNOWN"}


def test_the_order_of_nodes_changes_nothing(bench):
    changed = {("node-a", "node-b", ENGINE): LATE, ("node-c", "node-b", ENGINE): LATE}

    one = fleet(bench, *NAMES, changed=changed)
    other = fleet(bench, *reversed(NAMES), changed=changed)

    assert one.report.to_json() == other.report.to_json()


# RC exchanges


RC = {"kind": "rc-pingpong", "from": "mlx5_0", "to": "mlx5_0", "peer": "node-b"}


def exchanges(bench, *rows):
    ports = [
        {"ifname": "mlx5_0", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP"}
    ]
    node = bench.doc(
        cmds={"rdma -j link": json.dumps(ports)}, collector={"active": True}
    )
    node["verbs"] = {"probes": [{**RC, **row} for row in rows]}
    return bench.judge(node).one("act-rc-pingpong")


def test_an_exchange_that_could_not_be_tried_is_unknown_and_says_why(bench):
    finding = exchanges(bench, {"errno": 0}, {"errno": None, "error": "no device"})

    assert finding.status == "UNKNOWN"
    assert "no device" in finding.observed


def test_a_failure_outweighs_what_could_not_be_tried(bench):
    rtr = {"errno": 110, "error": "RTR: Connection timed out"}

    finding = exchanges(bench, {"errno": None, "error": "no time"}, rtr)

    assert finding.status == "FAIL"
    assert "mlx5_0 → node-b mlx5_0: errno 110, timeout" in finding.observed
    assert "RTR" in finding.observed


def test_a_read_that_fails_is_named_as_one(bench):
    read = {
        "kind": "read",
        "errno": 5,
        "error": "read: remote access error (status 10)",
    }

    finding = exchanges(bench, {"errno": 0}, read)

    assert finding.status == "FAIL"
    assert "(read): errno 5, read: remote access error" in finding.observed


def test_an_exchange_without_an_errno_at_all_is_garbled(bench):
    assert exchanges(bench, {"error": "?"}).status == "UNKNOWN"

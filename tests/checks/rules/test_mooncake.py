"""Mooncake's ports, master, names, environment, version: fixtures and reports."""

from __future__ import annotations

import json

import pytest

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"


def ephemeral(bench, reserved, span="32768\t60999\n", **more):
    files = {RANGE: span}
    if reserved is not None:
        files[RESERVED] = reserved
    return bench.judge(bench.doc(files=files), **more).one("mc-port-ephemeral")


def test_f56_the_port_of_the_master_is_among_the_outgoing_ones(bench):
    finding = ephemeral(bench, "\n")

    assert (finding.status, finding.severity) == ("WARN", "warning")
    assert "50051" in finding.observed


def test_f56_a_reserved_port_passes(bench):
    assert ephemeral(bench, "50051,15000-17000\n").status == "PASS"


def test_ports_outside_of_the_range_need_no_reservation(bench):
    assert ephemeral(bench, None, "60000\t65535\n").status == "PASS"
    assert ephemeral(bench, "50051\n", "1024\t65535\n").status == "WARN"


def test_what_is_reserved_and_was_not_read_is_unknown(bench):
    assert ephemeral(bench, None).status == "UNKNOWN"
    assert ephemeral(bench, {"errno": "EACCES"}).status == "UNKNOWN"
    assert ephemeral(bench, "\n", "32768\n").status == "UNKNOWN"


def test_ports_of_the_profile_count_too(bench):
    profile = {"mooncake": {"ports": [40000]}}

    assert ephemeral(bench, "50051\n", profile=profile).status == "WARN"


def etcd(bench, *rows, **cmds):
    text = "".join(f"LISTEN 0 4096 {row} 0.0.0.0:*\n" for row in rows)
    return bench.judge(bench.doc(cmds={"ss -Hltn": text, **cmds})).one("mc-etcd")


def test_f56_an_etcd_on_loopback_only_fails(bench):
    finding = etcd(bench, "127.0.0.1:2379")

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_an_etcd_that_listens_on_the_network_too_passes(bench):
    assert etcd(bench, "127.0.0.1:2379", "192.0.2.7:2379").status == "PASS"
    assert etcd(bench, "*:2379").status == "PASS"
    assert etcd(bench, "0.0.0.0:22").status == "SKIP"


def test_an_etcd_that_says_it_is_not_healthy_fails(bench):
    line = "curl -s http://192.0.2.7:2379/health"

    assert etcd(bench, "*:2379", **{line: '{"health":"false"}\n'}).status == "FAIL"
    assert etcd(bench, "*:2379", **{line: '{"health":"true"}\n'}).status == "PASS"


def master(bench, env, **cmds):
    document = bench.doc(files=bench.env(MOONCAKE_MASTER=env), cmds=cmds)
    return bench.judge(document).one("mc-master-reach")


def test_r78_mooncake_709_a_master_that_refuses_fails(bench):
    line = "connect 192.0.2.200:50051"
    refused = (1, "", "ECONNREFUSED")

    finding = master(bench, "192.0.2.200:50051", **{line: refused})

    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert master(bench, "192.0.2.200", **{line: "connected\n"}).status == "PASS"


def test_r78_an_answer_that_never_came_fails(bench):
    hung = {"rc": -1, "stdout": "", "stderr": "", "ms": 1500, "timeout": True}

    line = "connect 192.0.2.200:50051"
    assert master(bench, "192.0.2.200:50051", **{line: hung}).status == "FAIL"


def test_a_master_that_was_tried_by_hand_counts_too(bench):
    cmds = {"nc -z -w 2 192.0.2.200 50051": (1, "", "refused")}

    assert bench.judge(bench.doc(cmds=cmds)).statuses("mc-master-reach") == {
        "192.0.2.200:50051": "FAIL"
    }
    cmds = {"curl -s http://192.0.2.200:9003/metrics": "segments 1\n"}
    assert bench.judge(bench.doc(cmds=cmds)).status("mc-master-reach") == "PASS"


def test_r75_mooncake_2798_a_master_at_any_address_fails(bench):
    assert master(bench, "0.0.0.0:50051").status == "FAIL"
    assert master(bench, "127.0.0.1:50051").status == "FAIL"


def test_a_master_that_nobody_tried_is_unknown(bench):
    assert master(bench, "192.0.2.200:50051").status == "UNKNOWN"
    assert bench.judge(bench.doc()).status("mc-master-reach") == "UNKNOWN"


def links(*pairs):
    return json.dumps(
        [
            {
                "ifname": name,
                "flags": ["UP", "LOWER_UP"],
                "mtu": 1500,
                "operstate": "UP",
                "link_type": "ether",
                "address": "02:00:5e:00:00:01",
                "addr_info": [
                    {
                        "family": "inet",
                        "local": ip,
                        "prefixlen": 24,
                        "scope": "global",
                    }
                ],
            }
            for name, ip in pairs
        ]
    )


RDMA = json.dumps(
    [
        {
            "ifname": "mlx5_0",
            "port": 1,
            "state": "ACTIVE",
            "physical_state": "LINK_UP",
            "netdev": "ens1f0",
        }
    ]
)


def told(bench, name, value, *pairs, **cmds):
    return bench.doc(
        name,
        files=bench.env(MOONCAKE_LOCAL_HOSTNAME=value) if value is not None else {},
        cmds={"ip -j addr": links(*pairs), **cmds},
    )


def names(bench, *documents):
    return bench.judge(*documents, only="mc-local-hostname").by_node(
        "mc-local-hostname"
    )


def test_f57_r26_mooncake_2270_an_rdma_address_among_management_addresses_fails(bench):
    a = ("eth0", "15.10.101.150"), ("ens1f0", "192.168.0.101")
    b = ("eth0", "15.10.101.151"), ("ens1f0", "192.168.0.102")
    rdma = {"rdma -j link": RDMA}

    seen = bench.judge(
        told(bench, "node-a", "15.10.101.150", *a, **rdma),
        told(bench, "node-b", "192.168.0.102", *b, **rdma),
    )

    finding = seen.one("mc-local-hostname", node="node-b")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert seen.status("mc-local-hostname", node="node-a") == "PASS"


def test_f57_the_same_without_any_word_of_rdma(bench):
    a = told(bench, "node-a", "15.10.101.150", ("eth0", "15.10.101.150"))
    b = told(
        bench,
        "node-b",
        "192.168.0.102",
        ("eth0", "15.10.101.151"),
        ("ens1f0", "192.168.0.102"),
    )

    assert names(bench, a, b) == {"node-a": "PASS", "node-b": "FAIL"}


F57_A = ("eth0", "15.10.101.150"), ("ens1f0", "192.168.0.101")
F57_B = ("eth0", "15.10.101.151"), ("ens1f0", "192.168.0.102")
F57_C = ("eth0", "15.10.101.152"), ("ens1f0", "192.168.0.103")
WAY_OUT = {
    "ip -j -4 route": '[{"dst":"default","gateway":"15.10.101.1","dev":"eth0",'
    '"flags":[]}]'
}


def test_f57_without_a_word_of_rdma_nobody_knows_which_address_is_the_rail(bench):
    a = told(bench, "node-a", "15.10.101.150", *F57_A)
    b = told(bench, "node-b", "192.168.0.102", *F57_B)

    assert names(bench, a, b) == {"node-a": "UNKNOWN", "node-b": "UNKNOWN"}


def test_f57_the_link_of_the_default_route_is_no_rail(bench):
    a = told(bench, "node-a", "15.10.101.150", *F57_A, **WAY_OUT)
    b = told(bench, "node-b", "192.168.0.102", *F57_B, **WAY_OUT)

    assert names(bench, a, b) == {"node-a": "PASS", "node-b": "UNKNOWN"}


def test_f57_the_one_address_apart_is_unknown_and_those_of_most_pass(bench):
    a = told(bench, "node-a", "15.10.101.150", *F57_A)
    b = told(bench, "node-b", "192.168.0.102", *F57_B)
    c = told(bench, "node-c", "15.10.101.152", *F57_C)

    found = names(bench, a, b, c)

    assert found == {"node-a": "PASS", "node-b": "UNKNOWN", "node-c": "PASS"}


def test_f57_a_node_without_an_rdma_core_has_no_rail(bench):
    none = {"rdma -j link": (1, "", "Failed to open NETLINK_RDMA socket\n")}
    a = told(bench, "node-a", "15.10.101.150", *F57_A, **none)
    b = told(bench, "node-b", "192.168.0.102", *F57_B, **none)

    assert names(bench, a, b) == {"node-a": "PASS", "node-b": "PASS"}


def test_management_addresses_of_one_network_pass(bench):
    nodes = [
        told(bench, f"node-{n}", f"192.0.2.{n}", ("eth0", f"192.0.2.{n}"))
        for n in (1, 2, 3)
    ]

    assert set(names(bench, *nodes).values()) == {"PASS"}


@pytest.mark.parametrize("value", ["localhost", "127.0.0.1:12345", "0.0.0.0", "::1"])
def test_a_name_that_is_loopback_fails(bench, value):
    document = told(bench, "node-a", value, ("eth0", "192.0.2.1"))

    assert names(bench, document) == {"node-a": "FAIL"}


def test_two_nodes_of_one_name_both_fail(bench):
    nodes = [
        told(bench, f"node-{n}", "192.0.2.1", ("eth0", "192.0.2.1")) for n in (1, 2)
    ]

    assert set(names(bench, *nodes).values()) == {"FAIL"}


def test_an_address_of_nobody_fails_and_one_that_nobody_looked_for_is_unknown(bench):
    foreign = told(bench, "node-a", "192.0.2.9", ("eth0", "192.0.2.1"))
    blind = bench.doc("node-a", files=bench.env(MOONCAKE_LOCAL_HOSTNAME="192.0.2.9"))

    assert names(bench, foreign) == {"node-a": "FAIL"}
    assert names(bench, blind) == {"node-a": "UNKNOWN"}


def test_r86_vllm_27083_a_side_channel_that_one_node_leaves_unset(bench):
    documents = [
        bench.doc(
            f"node-{n}",
            files={
                **bench.env(VLLM_NIXL_SIDE_CHANNEL_HOST=f"192.0.2.{n}", MC_X="1"),
                "/proc/4242/cmdline": "python3\0-m\0vllm.entrypoints\0",
            },
            cmds={"ip -j addr": links(("eth0", f"192.0.2.{n}"))},
        )
        for n in (1, 2, 3)
    ]
    odd = documents[2]["files"]["/proc/4242/environ"]
    odd["text"] = "MC_X=1\0"

    seen = bench.judge(*documents)

    finding = seen.one("mc-local-hostname", "VLLM_NIXL_SIDE_CHANNEL_HOST", "node-3")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    uniform = seen.one("mc-env-uniform", "VLLM_NIXL_SIDE_CHANNEL_HOST", "node-3")
    assert (uniform.status, uniform.blocked_by) == ("WARN", ("mc-local-hostname",))


def test_variables_that_one_node_lacks_or_holds_otherwise_warn(bench):
    same = {"UCX_TLS": "rc", "NCCL_DEBUG": "WARN"}
    nodes = [bench.doc(f"node-{n}", files=bench.env(**same)) for n in "abc"]
    odd = bench.doc("node-d", files=bench.env(UCX_TLS="tcp"))

    seen = bench.judge(*nodes, odd)

    assert seen.statuses("mc-env-uniform", node="node-d") == {
        "NCCL_DEBUG": "WARN",
        "UCX_TLS": "WARN",
    }
    assert set(seen.statuses("mc-env-uniform", node="node-a").values()) == {"PASS"}


def test_a_nodes_own_name_in_a_value_is_no_difference(bench):
    nodes = [
        bench.doc(f"node-{n}", files=bench.env(MC_ID=f"store@node-{n}", UCX_A="1"))
        for n in "abc"
    ]

    assert set(bench.judge(*nodes).statuses("mc-env-uniform").values()) == {"PASS"}


def version(bench, *texts, line="mooncake_master --version"):
    nodes = [bench.doc(f"node-{n}", cmds={line: text}) for n, text in enumerate(texts)]
    return list(bench.judge(*nodes).by_node("mc-version-uniform").values())


def test_r15_mooncake_1384_one_node_with_another_version_fails(bench):
    good, odd = "0.3.7.post2\n", "0.3.8.post1\n"

    assert version(bench, good, good, good, odd) == ["PASS", "PASS", "PASS", "FAIL"]
    assert version(bench, good, odd) == ["WARN", "WARN"]
    assert version(bench, good, "mooncake_master version v0.3.7.post2+cu12\n") == [
        "PASS",
        "PASS",
    ]


def test_r15_the_wheel_tells_its_version(bench):
    path = "/usr/lib/python3/mooncake_transfer_engine-{}.dist-info/METADATA"
    nodes = [
        bench.doc(f"node-{n}", files={path.format(v): f"Name: x\nVersion: {v}\n"})
        for n, v in enumerate(("0.3.7.post2", "0.3.7.post2", "0.3.7.post2", "0.3.8"))
    ]

    assert list(bench.judge(*nodes).by_node("mc-version-uniform").values()) == [
        "PASS",
        "PASS",
        "PASS",
        "FAIL",
    ]


def free(bench, text, **files):
    document = bench.doc(cmds={"ss -Hltn": text}, files=files)
    return bench.judge(document).status("mc-port-free")


def test_a_port_that_another_process_holds_before_the_rollout_fails(bench):
    assert free(bench, "LISTEN 0 128 0.0.0.0:50051 0.0.0.0:*\n") == "FAIL"
    assert free(bench, "LISTEN 0 128 0.0.0.0:22 0.0.0.0:*\n") == "PASS"
    assert free(bench, "") == "UNKNOWN"
    assert free(bench, "LISTEN 0 128 0.0.0.0:500") == "UNKNOWN"


def test_a_master_that_runs_and_does_not_listen_fails(bench):
    running = {"/proc/7/cmdline": "/usr/bin/mooncake_master\0--rpc_port=50061\0"}
    row = "LISTEN 0 128 0.0.0.0:{} 0.0.0.0:*\n"

    assert free(bench, row.format(50061), **running) == "PASS"
    assert free(bench, row.format(50051), **running) == "FAIL"


def proxy(bench, **variables):
    server = "http://192.0.2.9:8080/metadata"
    files = bench.env(MOONCAKE_TE_META_DATA_SERVER=server, **variables)
    return bench.judge(bench.doc(files=files)).status("mc-proxy-env")


def test_a_proxy_that_catches_the_metadata_fails(bench):
    assert proxy(bench, http_proxy="http://p:3128") == "FAIL"
    assert proxy(bench, http_proxy="http://p:3128", no_proxy="192.0.2.9") == "PASS"
    assert proxy(bench) == "PASS"


def test_a_node_on_which_no_service_runs_yet_is_not_undetermined(bench):
    document = bench.doc(cmds={"uname -r": "6.8\n"}, collector={"services": 0})

    seen = bench.judge(document)

    for check in ("mem-memlock", "mem-free", "mc-master-reach", "mc-proxy-env"):
        assert seen.status(check) == "SKIP", check

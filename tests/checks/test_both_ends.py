"""Nodes act in pairs: over veth rails in namespaces, over a real sshd, over fakes."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from checks import both_ends
from checks.fleet import CollectOptions, collect_fleet
from checks.judge import judge
from checks.prober import framed
from inventory import Completed, HostEntry, SshError, SshProblem

CHECK = "act-tcp-handshake"
RAILS = 2


def _sibling(name, path):
    spec = spec_from_file_location(name, Path(__file__).parents[1] / path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_SPACES = _sibling("routing_namespaces", "checks/routing/conftest.py")
_SSH = _sibling("inventory_sshd_active", "inventory/conftest.py")
namespace = _SPACES.namespace
sshd, host = _SSH.sshd, _SSH.host


def node(name, addresses, **more):
    rails = [
        {"name": f"rail{at}", "device": f"eth{at}", "address": address}
        for at, address in enumerate(addresses)
    ]
    fields = {"address": "192.0.2.1", "python": sys.executable, "rails": rails}
    return HostEntry(name=name, **(fields | more))


def document(name, **collector):
    return {
        "schema": "preflight.facts/1",
        "collector": {"active": True, "selected": [], **collector},
        "node": {"hostname": name},
        "cmds": {},
        "files": {},
        "verbs": {},
    }


class Pipe:
    """A running program as `inventory.Channel` shows it."""

    def __init__(self, argv):
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def feed(self, data):
        self.process.stdin.write(data)
        self.process.stdin.close()

    def recv(self, size=65536, *, timeout_s):
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        return os.read(self.process.stdout.fileno(), size)

    def close(self):
        self.process.stdout.close()
        assert self.process.wait(20) in {0, -13}, "it ends when we hang up"


class Inside:
    """A session with a node that is a network namespace."""

    def __init__(self, space):
        enter = f"--net=/proc/{space._holder.pid}/ns/net"
        self.prefix = ["nsenter", enter, "--"]
        self.open_pipes = []

    def run_python(self, source, args=(), *, timeout_s):
        argv = [*self.prefix, sys.executable, "-", *args]
        done = subprocess.run(
            argv, input=source, capture_output=True, timeout=timeout_s
        )
        return Completed(
            argv=tuple(argv), rc=done.returncode, stdout=done.stdout, stderr=done.stderr
        )

    def open(self, argv, *, timeout_s=10.0):
        return Pipe([*self.prefix, *argv])

    def close(self):
        pass


class Cluster:
    """Nodes with a rail on each of two switches, all of them namespaces."""

    def __init__(self, namespace, names):
        self.switch = namespace()
        for rail in range(RAILS):
            self.switch.ip(f"link add br{rail} type bridge")
            self.switch.ip(f"link set br{rail} up")
        self.spaces, self.hosts = {}, []
        for last, name in enumerate(names, 1):
            self.spaces[name] = self._node(namespace, last)
            addresses = [f"198.18.{rail}.{last}" for rail in range(RAILS)]
            self.hosts.append(node(name, addresses))

    def _node(self, namespace, last):
        space = namespace()
        space.ip("link set lo up")
        for rail in range(RAILS):
            far = f"n{last}r{rail}"
            space.ip(f"link add eth{rail} type veth peer name {far}")
            space.ip(f"link set {far} netns {self.switch._holder.pid}")
            self.switch.ip(f"link set {far} master br{rail}")
            self.switch.ip(f"link set {far} up")
            space.ip(f"addr add 198.18.{rail}.{last}/24 dev eth{rail}")
            space.ip(f"link set eth{rail} up")
        return space

    def nft(self, name, rule, *, hook="filter hook input priority 0"):
        if shutil.which("nft") is None:
            pytest.skip("needs nft: apt install nftables")
        chain = f"chain c {{\ntype {hook};\n{rule}\n}}"
        self.spaces[name].run("nft", "-f", "-", text=f"table ip t {{\n{chain}\n}}\n")

    def acted(self):
        """Documents of all nodes: their addresses, and what came of acting."""
        documents = [document(host.name) for host in self.hosts]
        for each, (name, space) in zip(documents, self.spaces.items(), strict=True):
            rc, stdout, stderr = space.facts("ip -j -d addr")["ip -j -d addr"]
            each["cmds"]["ip -j -d addr"] = {"rc": rc, "stdout": stdout}
            assert each["node"]["hostname"] == name, stderr
        both_ends.act(
            self.hosts,
            documents,
            session=lambda entry: Inside(self.spaces[entry.name]),
        )
        for name, space in self.spaces.items():
            assert space.run("ss", "-Hltn").stdout == self.listening[name]
        return documents

    @property
    def listening(self):
        return dict.fromkeys(self.spaces, "")


def verdicts(documents):
    report = judge(documents, nics=("eth0", "eth1"))
    assert report.own_faults == ()
    return {
        (f.node, f.subject.split(" ")[0]): f for f in report.findings if f.id == CHECK
    }


def statuses(documents):
    return {key: f.status.value for key, f in verdicts(documents).items()}


NAMES = ("node-a", "node-b", "node-c")
ALL_PASS = {(name, f"rail{rail}"): "PASS" for name in NAMES for rail in range(RAILS)}


@pytest.fixture
def cluster(namespace):
    return Cluster(namespace, NAMES)


def test_every_rail_of_a_ring_stands_both_ways_and_nothing_is_left_behind(cluster):
    documents = cluster.acted()

    assert statuses(documents) == ALL_PASS
    lines = [line for line in documents[0]["cmds"] if line.startswith("connect ")]
    assert len(lines) == 2 * 2 * RAILS, "both ports of both neighbours on each rail"
    assert sum("198.18.0.2:12001 from 198.18.0.1" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("iif eth1 tcp dport 12001 drop", "12001: ETIMEDOUT"),
        ("iif eth1 tcp dport 15000-17000 reject with tcp reset", "ECONNREFUSED"),
    ],
    ids=["dropped", "reset"],
)
def test_a_filter_on_one_rail_is_found_on_its_node_and_rail(cluster, rule, told):
    cluster.nft("node-b", rule)

    found = verdicts(cluster.acted())

    bad = [key for key, f in found.items() if f.status == "FAIL"]
    assert bad == [("node-b", "rail1")]
    assert told in found["node-b", "rail1"].observed
    assert {f.status.value for key, f in found.items() if key not in bad} == {"PASS"}


def test_a_filter_on_the_way_out_of_one_node_is_found_there(cluster):
    out = "filter hook output priority 0"
    cluster.nft("node-c", "oif eth0 tcp dport 12001 drop", hook=out)

    found = verdicts(cluster.acted())

    assert [k for k, f in found.items() if f.status == "FAIL"] == [("node-c", "rail0")]


def test_a_rail_that_is_masqueraded_is_found_though_it_connects(cluster):
    cluster.spaces["node-a"].ip("addr add 198.18.0.99/24 dev eth0")
    nat = "nat hook postrouting priority 100"
    cluster.nft("node-a", "oif eth0 snat to 198.18.0.99", hook=nat)

    found = verdicts(cluster.acted())

    assert [k for k, f in found.items() if f.status == "FAIL"] == [("node-a", "rail0")]
    assert "198.18.0.99 instead of 198.18.0.1" in found["node-a", "rail0"].observed


SERVICE = """
import socket, sys
server = socket.create_server(("0.0.0.0", 12001))
print("ready", flush=True)
for _ in range(4):
    server.accept()[0].close()
sys.stdin.read()
"""


def test_a_service_that_holds_the_handshake_port_is_connected_to(cluster, monkeypatch):
    enter = Inside(cluster.spaces["node-b"]).prefix
    with subprocess.Popen(
        [*enter, sys.executable, "-c", SERVICE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as service:
        assert service.stdout.readline() == b"ready\n"
        held = cluster.spaces["node-b"].run("ss", "-Hltn").stdout
        listening = {**cluster.listening, "node-b": held}
        monkeypatch.setattr(Cluster, "listening", listening)

        documents = cluster.acted()
        service.stdin.close()

    assert statuses(documents) == ALL_PASS
    line = "connect 198.18.0.2:12001 from 198.18.0.1"
    assert documents[0]["cmds"][line]["stdout"] == "connected\n"


def test_a_rail_that_lost_its_address_is_no_target_and_never_a_pass(cluster):
    cluster.spaces["node-b"].ip("addr del 198.18.1.2/24 dev eth1")

    documents = cluster.acted()

    assert not any("198.18.1.2:" in line for line in documents[0]["cmds"])
    listen = documents[1]["cmds"]["listen 198.18.1.2:12001"]
    assert (listen["rc"], listen["stderr"]) == (1, "EADDRNOTAVAIL")
    told = statuses(documents)
    assert told["node-a", "rail1"] == "PASS", "its other neighbour is reached"
    assert told.get(("node-b", "rail1")) != "PASS"


def test_listeners_that_end_too_early_are_no_reason_to_blame_anybody(
    cluster, monkeypatch
):
    monkeypatch.setattr(both_ends, "LISTEN_S", 0.0)

    documents = cluster.acted()

    assert set(statuses(documents).values()) == {"UNKNOWN"}
    entries = [e for d in documents for k, e in d["cmds"].items() if "connect " in k]
    assert {(e["rc"], e["stderr"]) for e in entries} <= {
        (2, "refused, and nobody may have listened"),
        (2, "connected, and nobody greeted"),
        (0, ""),
    }


def test_two_nodes_are_one_edge_tried_from_both_sides(namespace):
    documents = Cluster(namespace, NAMES[:2]).acted()

    assert set(statuses(documents).values()) == {"PASS"}
    assert sum("connect " in line for line in documents[0]["cmds"]) == 2 * RAILS


# A real sshd


def test_over_ssh_two_nodes_listen_and_connect_at_their_own_addresses(host):
    base = [int(part) for part in _SSH.own_address().split(".")]
    here, there = (f"127.{base[1] + 10}.{base[2]}.{last}" for last in (1, 2))
    hosts = [
        host(name=name, rails=[{"name": "rail0", "device": "lo", "address": address}])
        for name, address in (("node-1", here), ("node-2", there))
    ]

    documents = collect_fleet(hosts, CollectOptions(active=True))

    for mine, peer, source, target in (
        (documents[0], "node-2", here, there),
        (documents[1], "node-1", there, here),
    ):
        stood = f"connected, seen as {source}, by {peer}\n"
        assert mine["cmds"][f"connect {target}:12001 from {source}"]["stdout"] == stood
        assert mine["cmds"][f"listen {source}:12001"]["stdout"] == "listening\n"
        assert mine["collector"].get("active_error") is None
        assert "probes" in mine["verbs"]


# Fakes


class Fake:
    """A session that remembers; answers as told."""

    def __init__(self, log, entry, answer=None, ready=True):
        self.log, self.entry, self.answer, self.ready = log, entry, answer, ready

    def run_python(self, source, args=(), *, timeout_s):
        self.log.append(("try", self.entry.name, args[0]))
        if isinstance(self.answer, Exception):
            raise self.answer
        text = framed(self.answer or {"cmds": {}, "probes": []})
        return Completed(argv=(), rc=0, stdout=text.encode(), stderr=b"")

    def open(self, argv, *, timeout_s=10.0):
        self.log.append(("listen", self.entry.name, argv[-1]))
        if not self.ready:
            raise SshError(SshProblem.TIMEOUT, host=self.entry.name, detail="late")
        return FakeStream(self.log, self.entry)

    def close(self):
        self.log.append(("close", self.entry.name, ""))


class FakeStream:
    def __init__(self, log, entry):
        self.log, self.entry, self.said = log, entry, False

    def feed(self, data):
        assert data == both_ends.PROBER.read_bytes()

    def recv(self, size=0, *, timeout_s):
        if self.said:
            raise TimeoutError
        self.said = True
        doors = [
            f'{{"address": "{rail.address}", "port": {port}, "error": ""}}'
            for rail in self.entry.rails
            for port in (12001, 15001)
        ]
        return f"Welcome!\n###READY [{', '.join(doors)}]\n".encode()

    def close(self):
        self.log.append(("hang up", self.entry.name, ""))


@pytest.mark.parametrize(
    "said",
    [
        b"###READY nonsense\n",
        b'###READY [{"door": 1}]\n',
        b'###READY [{"address": "198.18.0.1", "port": 22, "error": ""}]\n',
        b"",
    ],
    ids=["no JSON", "other fields", "a port of somebody else", "nothing"],
)
def test_what_a_listener_says_is_not_believed_beyond_what_was_asked(said, monkeypatch):
    monkeypatch.setattr(FakeStream, "recv", lambda *_, timeout_s: said)

    documents, log = acted(2)

    plans = [both_ends.json.loads(text) for kind, _, text in log if kind == "try"]
    assert [plan["pairs"] for plan in plans] == [[], []]
    assert "no listener: " in documents[0]["collector"]["active_error"]


def test_a_prober_that_breaks_is_told_with_its_last_words(monkeypatch):
    broken = Completed(argv=(), rc=1, stdout=b"", stderr=b"Traceback\nOops: 1\n")
    monkeypatch.setattr(Fake, "run_python", lambda *_, timeout_s: broken)

    documents, _ = acted(2)

    assert "ended with 1: Oops: 1" in documents[0]["collector"]["active_error"]


def acted(count, *, answers=None, late=(), documents=None, rails=True, **more):
    hosts = [
        node(f"node-{at:03d}", [f"198.18.{at >> 8}.{at & 255}"] if rails else [])
        for at in range(count)
    ]
    documents = documents or [document(each.name) for each in hosts]
    log = []
    both_ends.act(
        hosts,
        documents,
        session=lambda entry: Fake(
            log, entry, (answers or {}).get(entry.name), entry.name not in late
        ),
        **more,
    )
    return documents, log


def names(log, what):
    return [name for kind, name, _ in log if kind == what]


def test_every_listener_is_ready_before_anybody_tries_and_all_are_let_go():
    _, log = acted(5)

    kinds = [kind for kind, _, _ in log]
    assert kinds.index("try") > max(
        at for at, kind in enumerate(kinds) if kind == "listen"
    )
    for what in ("listen", "try", "hang up", "close"):
        assert sorted(names(log, what)) == [f"node-{at:03d}" for at in range(5)]


def test_a_large_ring_acts_in_groups_and_every_edge_is_tried_once_from_both_sides():
    _, log = acted(100)

    edges = set()
    inside = []
    for kind, name, text in log:
        if kind == "try":
            plan = both_ends.json.loads(text)
            inside += [name] if plan["inside"] is not None else []
            for each in plan["pairs"]:
                edge = (name, each["peer"], each["port"])
                assert edge not in edges
                edges.add(edge)
    pairs = {edge[:2] for edge in edges}
    assert pairs == {(other, one) for one, other in pairs}
    assert len(pairs) == 200
    assert len(edges) == 400
    assert len(inside) == len(set(inside)) == 100, "what is inside is tried once"
    running = most = 0
    for kind, _, _ in log:
        running += (kind == "listen") - (kind == "hang up")
        most = max(most, running)
    assert most <= both_ends.TOGETHER


def test_where_rails_may_cross_each_rail_also_tries_the_next_one_of_its_peer():
    log = []
    hosts = [node(name, [f"198.18.{n}.{at}" for n in range(3)]) for at, name in TWO]

    both_ends.act(
        hosts,
        [document(each.name) for each in hosts],
        session=lambda entry: Fake(log, entry),
        cross_rail=True,
    )

    plan = next(t for kind, name, t in log if (kind, name) == ("try", "node-a"))
    pairs = [each for each in both_ends.json.loads(plan)["pairs"] if each["rc"]]
    assert [(each["from"], each["to"]) for each in pairs] == [
        ("198.18.0.1", "198.18.0.2"),
        ("198.18.0.1", "198.18.1.2"),
        ("198.18.1.1", "198.18.1.2"),
        ("198.18.1.1", "198.18.2.2"),
        ("198.18.2.1", "198.18.2.2"),
        ("198.18.2.1", "198.18.0.2"),
    ]
    listen = next(t for kind, name, t in log if (kind, name) == ("listen", "node-b"))
    assert both_ends.json.loads(listen)["most"] == 6 * 3 + both_ends.SPARE


def test_rails_of_other_names_are_not_tried():
    log = []
    hosts = [node("node-a", ["198.18.0.1"]), node("node-b", ["", "198.18.1.2"])]

    both_ends.act(
        hosts,
        [document(each.name) for each in hosts],
        session=lambda entry: Fake(log, entry),
    )

    assert names(log, "listen") == []


TWO = ((1, "node-a"), (2, "node-b"))


def test_a_listener_takes_as_many_connections_as_are_expected_and_a_few():
    _, log = acted(3)

    listen = next(t for kind, name, t in log if (kind, name) == ("listen", "node-000"))
    plan = both_ends.json.loads(listen)
    assert plan["rails"] == ["198.18.0.0"]
    assert plan["ports"] == [12001, [15000, 17000]]
    assert plan["most"] == 2 * 3 + both_ends.SPARE
    assert plan["seconds"] == both_ends.LISTEN_S < 90


def test_a_peer_whose_listener_did_not_start_is_not_connected_to():
    documents, log = acted(3, late=("node-001",))

    plans = {
        name: both_ends.json.loads(text) for kind, name, text in log if kind == "try"
    }
    assert {p["peer"] for p in plans["node-000"]["pairs"]} == {"node-002"}
    assert documents[1]["collector"]["active_error"].startswith("no listener: ")


def test_a_node_that_could_not_try_keeps_its_document_and_says_why():
    problem = SshError(SshProblem.LOST, host="node-001", detail="connection closed")

    documents, _ = acted(2, answers={"node-001": problem})

    assert "connection closed" in documents[1]["collector"]["active_error"]
    assert "active_error" not in documents[0]["collector"]


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("unforeseen"), {"odd": 1}, {"cmds": {"x": 1}, "probes": []}],
    ids=["raises", "other fields", "no entry"],
)
def test_one_odd_node_does_not_lose_the_others(answer):
    documents, _ = acted(3, answers={"node-001": answer})

    assert documents[1]["collector"]["active_error"].startswith("nothing was tried: ")
    assert "probes" not in documents[1]["verbs"]
    assert documents[0]["verbs"]["probes"] == documents[2]["verbs"]["probes"] == []


def test_a_refusal_is_kept_where_the_listener_stood_through():
    line = "connect 198.18.0.1:12001 from 198.18.0.0"
    refused = {line: {"rc": 1, "stdout": "", "stderr": "ECONNREFUSED"}}

    documents, _ = acted(2, answers={"node-000": {"cmds": refused, "probes": []}})

    assert documents[0]["cmds"][line]["stderr"] == "ECONNREFUSED"


def test_lost_nodes_are_left_out_of_the_ring():
    documents = [document(f"node-{at:03d}") for at in range(4)]
    documents[1]["collector"]["error"] = {"kind": "refused", "reason": ""}

    _, log = acted(4, documents=documents)

    assert "node-001" not in {name for _, name, _ in log}
    plan = next(t for kind, name, t in log if (kind, name) == ("try", "node-000"))
    peers = {each["peer"] for each in both_ends.json.loads(plan)["pairs"]}
    assert peers == {"node-002", "node-003"}


def test_nodes_without_rails_only_try_what_is_inside_of_them():
    documents = [document("node-000", selected=["mlx5_0"]), document("node-001")]

    _, log = acted(2, rails=False, documents=documents)

    assert names(log, "listen") == []
    plan = both_ends.json.loads(next(t for _, name, t in log if name == "node-000"))
    assert (plan["pairs"], plan["inside"]) == ([], [])
    assert plan["nics"] == ["mlx5_0"]


def test_without_active_nothing_is_opened():
    log = []
    hosts = [node("node-a", ["198.18.0.1"]), node("node-b", ["198.18.0.2"])]

    collect_fleet(hosts, CollectOptions(), session=lambda entry: Fake(log, entry))

    assert names(log, "listen") == []
    assert len(names(log, "try")) == 2, "one collection a node"


def test_a_whole_group_of_silent_nodes_is_bounded_in_time():
    began = time.monotonic()

    acted(8, late=tuple(f"node-{at:03d}" for at in range(8)))

    assert time.monotonic() - began < 20

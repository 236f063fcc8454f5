"""The program that acts on a node: it listens no wider and no longer than asked."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from checks import prober
from checks.both_ends import PROBER
from checks.framing import decode
from checks.here import SYSTEM_PYTHON

TOKEN = "0123456789abcdef"
FABRIC = Path(__file__).parent / "fake_fabric.py"
MODULES = ("addr", "cq", "device", "mr", "pd", "qp", "wr")


def own(last):
    """An address of the loopback net that other test processes do not use."""
    return f"127.{78 + (os.getpid() >> 14 & 7)}.{os.getpid() >> 6 & 255}.{last}"


HERE, THERE = own(1), own(2)


def listening(**more):
    return {
        "act": "listen",
        "name": "node-b",
        "token": TOKEN,
        "rails": [THERE],
        "ports": [12001, [15000, 17000]],
        "seconds": 30,
        "most": 8,
        **more,
    }


def trying(*pairs, **more):
    return {
        "act": "try",
        "name": "node-a",
        "token": TOKEN,
        "seconds": 12,
        "inside": None,
        "nics": [],
        "pairs": list(pairs),
        **more,
    }


def pair(port, **more):
    base = {"from": HERE, "to": THERE, "port": port, "peer": "node-b"}
    return {**base, "ours": True, "rc": False, **more}


@contextlib.contextmanager
def listener(env=None, **more):
    """(the process, what it bound); it must end when we hang up."""
    command = [sys.executable, str(PROBER), json.dumps(listening(**more))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    try:
        line = process.stdout.readline().decode()
        assert line.startswith("###READY ")
        yield process, json.loads(line[9:])
    finally:
        process.stdout.close()
        assert process.wait(10) in {0, -13}


def tried(*pairs, env=None, **more):
    command = [sys.executable, str(PROBER), json.dumps(trying(*pairs, **more))]
    done = subprocess.run(command, capture_output=True, timeout=60, env=env)
    assert done.stderr == b""
    return decode(done.stdout)


def entry(document, port):
    return document["cmds"][f"connect {THERE}:{port} from {HERE}"]


def greeting(port):
    with socket.create_connection((THERE, port), 5, (HERE, 0)) as wire:
        return wire.recv(200).decode()


def test_its_grammar_is_that_of_python_3_6_and_it_needs_the_standard_library_only():
    tree = ast.parse(PROBER.read_text(encoding="utf-8"), feature_version=(3, 6))
    names = {
        (alias.name if isinstance(node, ast.Import) else node.module).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }

    assert names - {"pyverbs"} <= sys.stdlib_module_names


def test_it_binds_the_address_of_the_rail_and_one_port_of_the_range():
    with listener() as (_, doors):
        fixed, ranged = doors

        assert [door["address"] for door in doors] == [THERE, THERE]
        assert [door["error"] for door in doors] == ["", ""]
        assert fixed["port"] == 12001
        assert ranged["port"] in range(15000, 17001)
        for door in doors:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HERE, door["port"]), 5)


def test_a_connection_of_rail_to_rail_stands_and_both_ends_know_each_other():
    with listener() as (_, doors):
        ports = [door["port"] for door in doors]
        document = tried(*(pair(port) for port in ports))

    for port in ports:
        told = entry(document, port)
        assert told["rc"] == 0
        assert told["stdout"] == f"connected, seen as {HERE}, by node-b\n"
        assert told["bytes"] == len(told["stdout"])


def test_where_nobody_listens_it_is_refused():
    told = entry(tried(pair(12001)), 12001)

    assert (told["rc"], told["stdout"], told["stderr"]) == (1, "", "ECONNREFUSED")


def test_an_address_that_is_not_ours_says_nothing_of_the_path():
    document = tried(pair(12001, **{"from": "192.0.2.77"}))

    (told,) = document["cmds"].values()
    assert told["rc"] == 2
    assert told["stderr"] == "no connection from 192.0.2.77: EADDRNOTAVAIL"


def test_no_connection_is_begun_without_time_for_it():
    told = entry(tried(pair(12001), seconds=1), 12001)

    assert (told["rc"], told["stderr"]) == (2, "there was no time for it")


@pytest.mark.parametrize(
    ("said", "rc", "stderr"),
    [
        (b"preflight 1234 127.0.0.1\n", 1, "another end answered"),
        (b"SSH-2.0-something\r\n", 1, "another end answered"),
        (b"", 2, "connected, and nobody greeted"),
    ],
)
def test_somebody_else_at_the_address_is_told_apart(said, rc, stderr):
    with socket.create_server((THERE, 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, str(PROBER), json.dumps(trying(pair(port)))]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            server.settimeout(20)
            guest, _ = server.accept()
            with guest:
                guest.sendall(said)
                document = decode(process.stdout.read())

    told = entry(document, port)
    assert (told["rc"], told["stderr"]) == (rc, stderr)


def test_a_service_that_holds_the_port_need_not_greet():
    with socket.create_server((THERE, 0)) as server:
        port = server.getsockname()[1]

        told = entry(tried(pair(port, ours=False)), port)

    assert (told["rc"], told["stdout"]) == (0, "connected\n")


def test_a_held_port_is_told_and_one_of_a_range_passed_over():
    with socket.create_server((THERE, 12001)) as server:
        held = server.getsockname()[1]
        with listener(ports=[held, [held, held + 1]]) as (_, doors):
            fixed, ranged = doors

    assert fixed["error"] == "EADDRINUSE"
    assert (ranged["port"], ranged["error"]) == (held + 1, "")


def test_it_ends_with_its_own_deadline():
    with listener(seconds=0.5) as (process, _):
        assert process.wait(20) == 0


def test_it_ends_when_nobody_reads_it_any_more():
    with listener(seconds=600) as (process, _):
        process.stdout.close()

        assert process.wait(20) == 0


def test_it_takes_so_many_connections_says_so_and_refuses_the_next():
    with listener(most=2) as (process, doors):
        port = doors[0]["port"]
        assert [greeting(port)[:10] for _ in range(2)] == ["preflight "] * 2
        assert process.stdout.readline() == b"###FULL\n"
        with pytest.raises(ConnectionRefusedError):
            greeting(port)


@pytest.mark.parametrize("line", [b"{}\n", b"hello\n", b'{"token": "guess"}\n', b"\n"])
def test_a_stranger_gets_a_greeting_and_nothing_else(line):
    with listener() as (_, doors):
        door = (THERE, doors[0]["port"])
        with socket.create_connection(door, 5) as wire:
            assert TOKEN.encode() not in wire.recv(200)
            wire.sendall(line)
            wire.settimeout(10)

            assert wire.recv(200) == b""


# RC exchanges, over pyverbs that is a fabric of files


@pytest.fixture
def fabric(tmp_path):
    """Makes (environment, root of sysfs) of two devices, as told."""

    def make(faults=None, mtus=(5, 5), kind="RoCE v2", addresses=(HERE, THERE)):
        package = tmp_path / "python" / "pyverbs"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "fabric.py").write_text(FABRIC.read_text())
        for name in MODULES:
            (package / f"{name}.py").write_text("from pyverbs.fabric import *\n")
        enums = "from pyverbs.fabric import Enums\nglobals().update(vars(Enums))\n"
        (package / "enums.py").write_text(enums)
        ports = {}
        for at, (address, mtu) in enumerate(zip(addresses, mtus, strict=True)):
            device(tmp_path / "root", f"mlx5_{at}", address, kind)
            gids = {"3": prober.gid_text(address)}
            ports[f"mlx5_{at}"] = {"mtu": mtu, "gids": gids}
        shared = tmp_path / "fabric"
        shared.mkdir()
        (shared / "ports.json").write_text(json.dumps(ports))
        env = {
            **os.environ,
            "PYTHONPATH": str(tmp_path / "python"),
            "FABRIC": str(shared),
            "FAULTS": json.dumps(faults or {}),
        }
        return env, str(tmp_path / "root")

    return make


def device(root, name, address, kind):
    """A port that is up; slot 2 is of RoCE v1, 3 of the kind that is told."""
    port = root / f"sys/class/infiniband/{name}/ports/1"
    (port / "gids").mkdir(parents=True)
    (port / "gid_attrs/types").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    for index, each in ((2, "IB/RoCE v1"), (3, kind)):
        (port / f"gids/{index}").write_text(f"{prober.gid_text(address)}\n")
        (port / f"gid_attrs/types/{index}").write_text(f"{each}\n")


def across(fabric, **more):
    """Rows of an exchange from mlx5_0 to mlx5_1 behind a listener."""
    env, root = fabric(**more)
    with listener(env, sysroot=root) as (_, doors):
        asked = pair(doors[-1]["port"], rc=True)
        return tried(asked, env=env, sysroot=root)["probes"]


def shown(rows):
    return [(row["kind"], row["from"], row["to"], row["errno"]) for row in rows]


def test_a_message_there_and_back_and_a_read_between_two_nodes(fabric, tmp_path):
    rows = across(fabric)

    assert shown(rows) == [
        ("rc-pingpong", "mlx5_0", "mlx5_1", 0),
        ("read", "mlx5_0", "mlx5_1", 0),
    ]
    assert {(row["peer"], row["gid_index"]) for row in rows} == {("node-b", 3)}
    assert not list((tmp_path / "fabric").glob("qp-*")), "queue pairs were destroyed"


def test_ports_of_two_mtus_agree_on_the_smaller_one(fabric):
    assert [row["errno"] for row in across(fabric, mtus=(3, 5))] == [0, 0]


@pytest.mark.parametrize("code", [110, 22, 61, 19])
def test_the_errno_of_rtr_is_told(fabric, code):
    rows = across(fabric, faults={"rtr": {prober.gid_text(THERE): code}})

    assert [row["errno"] for row in rows] == [code, None]
    assert f"RTR: Failed to modify QP state to RTR. Errno: {code}" in rows[0]["error"]


def test_what_the_peer_could_not_do_is_no_verdict_on_this_end(fabric):
    rows = across(fabric, faults={"rtr": {prober.gid_text(HERE): 110}})

    assert [row["errno"] for row in rows] == [None, None]
    assert rows[0]["error"].startswith("node-b: RTR: ")


def test_a_completion_without_an_answer_is_a_timeout(fabric):
    rows = across(fabric, faults={"status": {"mlx5_0": 12}})

    assert [row["errno"] for row in rows] == [110, None]
    assert "transport retry counter exceeded (status 12)" in rows[0]["error"]


def test_an_answer_that_does_not_come_may_be_the_slowness_of_the_peer(fabric):
    rows = across(fabric, faults={"mute": ["mlx5_1"]})

    assert [row["errno"] for row in rows] == [None, None]
    assert rows[0]["error"] == "no message came in time"


def test_a_read_of_other_bytes_fails_though_it_completes(fabric):
    rows = across(fabric, faults={"corrupt": ["mlx5_0"]})

    assert [row["errno"] for row in rows] == [0, 5]
    assert "other bytes" in rows[1]["error"]


def test_a_device_that_cannot_be_opened_is_no_verdict_on_the_path(fabric):
    rows = across(fabric, faults={"open": {"mlx5_0": 13}})

    assert [row["errno"] for row in rows] == [None, None]
    assert "Permission denied" in rows[0]["error"]


def test_a_transition_that_hangs_in_the_kernel_is_left_behind(fabric):
    env, root = fabric(faults={"hang": [prober.gid_text(THERE)]})

    with listener(env, sysroot=root) as (_, doors):
        asked = pair(doors[-1]["port"], rc=True)
        rows = tried(asked, env=env, sysroot=root, seconds=6)["probes"]

    assert [row["errno"] for row in rows] == [None, None]
    assert rows[0]["error"] == "there was no time for it"


def test_only_the_gid_of_version_2_that_holds_the_address_is_used(fabric):
    assert across(fabric, kind="IB/RoCE v1") == []


def inside(fabric, *, addresses=(HERE, THERE), nics=(), asked=(), **more):
    env, root = fabric(addresses=addresses, mtus=(5,) * len(addresses), **more)
    document = tried(env=env, sysroot=root, inside=list(asked), nics=list(nics))
    assert document["cmds"] == {}
    return document["probes"]


def test_all_pairs_of_one_node_are_tried_both_ways_and_each_port_with_itself(fabric):
    addresses = tuple(own(last) for last in range(1, 5))
    nics = [f"mlx5_{at}" for at in range(4)]

    rows = inside(fabric, addresses=addresses, nics=nics)

    assert {row["errno"] for row in rows} == {0}
    pairs = [(r["from"], r["to"]) for r in rows if r["kind"] == "read"]
    assert sorted(pairs) == sorted((one, other) for one in nics for other in nics)


def test_only_devices_that_are_judged_take_part_or_rails_that_are_named(fabric):
    rows = inside(fabric, nics=["mlx5_1"])

    assert {(row["from"], row["to"]) for row in rows} == {("mlx5_1", "mlx5_1")}


def test_named_rails_are_found_by_their_address(fabric):
    rows = inside(fabric, asked=[HERE])

    assert {(row["from"], row["to"]) for row in rows} == {("mlx5_0", "mlx5_0")}


def test_one_direction_that_fails_leaves_the_other_untried(fabric):
    faults = {"rtr": {prober.gid_text(THERE): 110}}

    rows = inside(fabric, asked=[HERE, THERE], faults=faults)

    told = {(r["from"], r["to"]): r["errno"] for r in rows if r["kind"] != "read"}
    assert told == {
        ("mlx5_0", "mlx5_0"): 0,
        ("mlx5_0", "mlx5_1"): 110,
        ("mlx5_1", "mlx5_0"): None,
        ("mlx5_1", "mlx5_1"): 110,
    }


def test_without_devices_nothing_is_tried(tmp_path):
    assert tried(inside=[], nics=["mlx5_0"], sysroot=str(tmp_path))["probes"] == []


def test_without_pyverbs_the_reason_is_told(fabric, tmp_path):
    env, root = fabric()
    (tmp_path / "python/pyverbs/qp.py").write_text("raise ImportError('no such')\n")

    document = tried(env=env, sysroot=root, inside=[HERE])

    assert {row["errno"] for row in document["probes"]} == {None}
    assert "ImportError: no such" in document["probes"][0]["error"]


REAL = """
import json, sys
sys.path.insert(0, {path!r})
import prober
verbs = prober.load_verbs()
place = {{"device": "none_0", "port": 1, "index": 3, "gid": ""}}
peer = {{"gid": prober.gid_text("198.18.0.2"), "qpn": 17, "psn": 5, "mtu": 5}}
attributes = prober.attributes_of(verbs, place, peer, 3, 9)
init = verbs.qp.QPInitAttr(
    qp_type=verbs.enums.IBV_QPT_RC, cap=verbs.qp.QPCap(max_send_wr=4, max_recv_wr=4))
end = prober.End.__new__(prober.End)
end.verbs = verbs
class Memory: buf, lkey = 4096, 7
end.mr = Memory
end._receive()
work = end._work(prober.READ, "IBV_WR_RDMA_READ", 8192)
work.set_wr_rdma(5, 6)
problem = ""
try:
    prober.End(verbs, place)
except prober.Untried as error:
    problem = str(error)
route = attributes.ah_attr
print(json.dumps([attributes.path_mtu, attributes.rq_psn, attributes.sq_psn,
    attributes.dest_qp_num, route.sgid_index, str(route.dgid), work.opcode, problem]))
"""


def test_the_distributions_pyverbs_takes_what_is_given_to_it():
    found = subprocess.run(
        [str(SYSTEM_PYTHON), "-c", "import pyverbs.qp"],
        capture_output=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(f"no pyverbs for {SYSTEM_PYTHON}: apt-get install python3-pyverbs")
    program = REAL.format(path=str(PROBER.parent))

    done = subprocess.run(
        [str(SYSTEM_PYTHON), "-c", program], capture_output=True, timeout=60, check=True
    )

    *told, problem = json.loads(done.stdout)
    assert told == [3, 5, 9, 17, 3, prober.gid_text("198.18.0.2"), 4]
    assert problem.startswith("none_0: ")


OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.[678].*/bin/python3"))


@pytest.mark.skipif(not OLD_PYTHONS, reason="needs Python 3.6 to 3.8 beside this one")
@pytest.mark.parametrize("python", OLD_PYTHONS, ids=lambda path: path.parts[-3])
def test_an_old_python_acts_too(python):
    with listener() as (_, doors):
        asked = json.dumps(trying(pair(doors[0]["port"]), inside=[]))
        done = subprocess.run(
            [python, "-", asked],
            input=PROBER.read_bytes(),
            capture_output=True,
            timeout=60,
            check=True,
        )

    assert entry(decode(done.stdout), 12001)["rc"] == 0
    assert done.stderr == b""

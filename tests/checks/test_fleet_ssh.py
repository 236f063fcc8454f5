"""The fleet over a real sshd: what a node does to us is reported as exactly that."""

from __future__ import annotations

import json
import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from checks.cli import main
from checks.fleet import CollectOptions, collect_fleet
from checks.judge import judge


def _ssh_fixtures():
    """The sshd of the inventory's tests; fixtures of a sibling are not ours to see."""
    path = Path(__file__).parents[1] / "inventory" / "conftest.py"
    spec = spec_from_file_location("inventory_sshd", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_SSH = _ssh_fixtures()
sshd, host, program = _SSH.sshd, _SSH.host, _SSH.program
relay, fault_server = _SSH.relay, _SSH.fault_server


def collected(*hosts, node_s=15.0):
    return collect_fleet(hosts, CollectOptions(), node_s=node_s)


def problem(*hosts, **options):
    """The kind of the last host's failure."""
    return collected(*hosts, **options)[-1]["collector"]["error"]["kind"]


def test_a_node_is_collected_in_one_round_trip_and_judged(host):
    (document,) = collected(host(cohort="lab", roles=("store",)))

    assert document["node"]["hostname"] == "node-1"
    assert document["node"]["cohort"] == "lab"
    assert document["collector"]["late"] is False
    before, after = document["collector"]["bracket"]
    assert before <= document["node"]["wall"]["t"] <= after
    report = judge([document])
    (reachable,) = [f for f in report.findings if f.id == "meta-reachable"]
    assert reachable.status == "PASS"


def test_a_node_that_hangs_is_a_timeout(host, program):
    program("hangs", "sleep 60")

    assert problem(host(python="hangs"), node_s=2.0) == "timeout"


def test_a_node_that_prints_garbage_is_garbage(host, program):
    program("babbles", "cat > /dev/null; echo hello, this is not JSON")

    assert problem(host(python="babbles")) == "garbage"


def test_a_node_whose_output_ends_half_way_is_truncated(host, program):
    program("stops", """cat > /dev/null; echo '{"schema": "preflight.fa'""")

    assert problem(host(python="stops")) == "truncated"


def test_a_node_without_python_says_so(host):
    assert problem(host(python="no-python-here")) == "no_python"


def test_a_node_without_sudo_says_so(host):
    assert problem(host(sudo=True)) == "no_sudo"


def test_a_node_whose_key_nobody_knows_is_not_talked_to(host, tmp_path):
    empty = tmp_path / "nobody"
    empty.write_text("")

    assert problem(host(known_hosts=empty)) == "host_key"


def test_a_node_that_refuses_is_refused(host, sshd):
    port = _SSH.free_port(sshd.address)
    known = host().known_hosts
    known.write_text(known.read_text() + f"[{sshd.address}]:{port} {sshd.host_key}\n")

    assert problem(host(port=port)) == "refused"


def test_a_node_that_does_not_let_us_in_is_auth(host, tmp_path):
    _SSH.keygen(tmp_path / "stranger")

    assert problem(host(key_file=tmp_path / "stranger")) == "auth"


def test_a_node_that_accepts_and_says_nothing_is_a_timeout(host, sshd, fault_server):
    silent = fault_server(lambda connection: silent.hold())
    address = {"address": silent.address, "port": silent.port}

    assert problem(host(**address), node_s=2.0) == "timeout"


def test_a_connection_lost_half_way_is_lost(host, sshd, relay, program, tmp_path):
    marker = tmp_path / "started"
    program("slow", f"echo x > {marker}; sleep 20")
    server = relay.server
    known = host().known_hosts
    known.write_text(f"[{server.address}]:{server.port} {sshd.host_key}\n")
    entry = host(address=server.address, port=server.port, python="slow")

    def cut():
        while not marker.exists():
            if ended.wait(0.02):
                return
        relay.cut()

    ended = threading.Event()
    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        kind = problem(entry)
    finally:
        ended.set()
        cutter.join(10)

    assert kind == "lost"


def test_one_ill_node_does_not_hold_up_the_others(host, program):
    program("hangs", "sleep 60")
    ill = host(name="node-2", python="hangs")

    documents = collected(host(), ill, node_s=6.0)

    assert "error" not in documents[0]["collector"]
    assert documents[1]["collector"]["error"]["kind"] == "timeout"


def test_the_command_reports_an_unreachable_node_and_ends_undetermined(
    host, sshd, tmp_path, capsys
):
    entry = host()
    inventory = tmp_path / "inventory.yaml"
    ssh = {
        "ansible_host": entry.address,
        "ansible_port": entry.port,
        "ansible_user": entry.user,
        "ansible_ssh_private_key_file": str(entry.key_file),
        "known_hosts": str(entry.known_hosts),
    }
    hosts = {
        "node-1": {**ssh, "ansible_python_interpreter": sys.executable},
        "node-2": {**ssh, "ansible_port": _SSH.free_port(sshd.address)},
    }
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
    words = ["--inventory", str(inventory), "--only", "meta-reachable"]

    code = main([*words, "--format", "json"])

    told = capsys.readouterr()
    assert told.out, told.err
    findings = json.loads(told.out)["findings"]
    assert {f["node"]: f["status"] for f in findings} == {
        "node-1": "PASS",
        "node-2": "UNKNOWN",
    }
    assert "2/2" in told.err
    assert "node-2: refused" in told.err
    assert code == 3

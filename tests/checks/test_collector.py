"""The collector: old grammar, bounded, read-only, and careful with counters."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from checks import collector
from checks.facts import Facts
from checks.framing import decode
from checks.parse.wheel_version import versions

SOURCE = Path(collector.__file__)
BDF = "0000:1a:00.0"


def put(root, path, text):
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def device(root, name="mlx5_0", *, bdf=BDF, phys="5: LinkUp", netdev="ens1f0np0"):
    base = f"/sys/class/infiniband/{name}"
    real = root / "sys/devices/pci0000:17/0000:17:01.0" / bdf
    real.mkdir(parents=True)
    (real / "numa_node").write_text("0\n")
    put(root, f"{base}/fw_ver", "28.43.2566\n")
    (root / base.lstrip("/") / "device").symlink_to(
        f"../../../devices/pci0000:17/0000:17:01.0/{bdf}"
    )
    pci = root / "sys/bus/pci/devices"
    pci.mkdir(parents=True, exist_ok=True)
    (pci / bdf).symlink_to(f"../../../devices/pci0000:17/0000:17:01.0/{bdf}")
    port = f"{base}/ports/1"
    put(root, f"{port}/phys_state", f"{phys}\n")
    put(root, f"{port}/state", "4: ACTIVE\n")
    for index, gid in enumerate(["fe80:0000:0000:0000:0000:5eff:fe00:0001"]):
        put(root, f"{port}/gids/{index}", f"{gid}\n")
        put(root, f"{port}/gid_attrs/types/{index}", "RoCE v2\n")
        put(root, f"{port}/gid_attrs/ndevs/{index}", f"{netdev}\n")
    for index in (1, 40, 41):
        put(root, f"{port}/gids/{index}", "0000:" * 7 + "0000\n")
    put(root, f"{port}/hw_counters/out_of_sequence", "0\n")
    put(root, f"{port}/counters/link_downed", "1\n")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(collector, "SAMPLE_GAP_S", 0.01)


def run(root, *words):
    options = ["--sysroot", str(root), "--no-commands", *words]
    return collector.collect(collector.arguments(options))


def test_its_grammar_is_that_of_python_3_6():
    ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_it_imports_the_standard_library_only():
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    names = {
        (alias.name if isinstance(node, ast.Import) else node.module).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }

    assert names - {"pyverbs"} <= sys.stdlib_module_names


def test_sent_over_stdin_it_prints_one_whole_document(tmp_path):
    command = [sys.executable, "-", "--sysroot", str(tmp_path), "--no-commands"]
    done = subprocess.run(
        command, input=SOURCE.read_bytes(), capture_output=True, timeout=20, check=True
    )

    document = decode(done.stdout)
    assert document["schema"] == "preflight.facts/1"
    assert done.stderr == b""


def test_paths_are_those_of_the_node_not_of_the_sysroot(tmp_path, quick):
    device(tmp_path)

    files = run(tmp_path)["files"]
    base = "/sys/class/infiniband/mlx5_0"
    assert files[f"{base}/fw_ver"]["text"] == "28.43.2566\n"
    assert files[f"{base}/device"]["link"].endswith(BDF)
    assert files["/sys/class/infiniband"]["entries"] == ["mlx5_0"]
    assert not any(str(tmp_path) in path for path in files)


def test_the_mode_of_rdma_cm_is_read_or_known_to_be_nobodys(tmp_path, quick):
    device(tmp_path)
    mode = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode"
    without = run(tmp_path)["files"][mode]
    put(tmp_path, mode, "RoCE v2\n")

    assert without == {"errno": "ENOENT"}
    assert run(tmp_path)["files"][mode]["text"] == "RoCE v2\n"


def test_what_is_not_there_has_its_errno(tmp_path):
    files = run(tmp_path)["files"]

    assert files["/proc/cmdline"] == {"errno": "ENOENT"}
    assert files["/sys/class/infiniband"] == {"errno": "ENOENT"}


def test_empty_gid_slots_beyond_the_first_are_left_out_unless_pinned(tmp_path, quick):
    device(tmp_path)
    put(tmp_path, "/proc/77/cmdline", "mooncake_client\0")
    put(tmp_path, "/proc/77/environ", "MC_GID_INDEX=40\0")

    files = run(tmp_path)["files"]
    gids = "/sys/class/infiniband/mlx5_0/ports/1/gids"
    assert f"{gids}/1" in files
    assert f"{gids}/40" in files
    assert f"{gids}/41" not in files
    assert "41" in files[gids]["entries"]


def test_the_group_of_a_nic_and_what_vfio_has_are_read(tmp_path, quick):
    device(tmp_path)
    other = "0000:1b:00.0"
    put(tmp_path, f"/sys/bus/pci/devices/{BDF}/iommu_group/devices/{BDF}", "")
    put(tmp_path, f"/sys/bus/pci/devices/{BDF}/iommu_group/devices/{other}", "")
    put(tmp_path, f"/sys/bus/pci/devices/{other}/class", "0x010802\n")
    put(tmp_path, f"/sys/bus/pci/drivers/vfio-pci/{other}", "")
    put(tmp_path, "/sys/bus/pci/drivers/nvme/bind", "")

    files = run(tmp_path)["files"]

    group = f"/sys/bus/pci/devices/{BDF}/iommu_group/devices"
    assert files[group] == {"entries": [BDF, other]}
    assert files["/sys/bus/pci/drivers"] == {"entries": ["nvme", "vfio-pci"]}
    assert files["/sys/bus/pci/drivers/vfio-pci"] == {"entries": [other]}
    assert "/sys/bus/pci/drivers/nvme" not in files
    assert files[f"/sys/bus/pci/devices/{other}/class"]["text"] == "0x010802\n"


def test_virtual_functions_are_read_once_whoever_has_them(tmp_path, quick):
    pci = tmp_path / "sys/bus/pci/devices"
    for bdf in (BDF, "0000:1a:00.2"):
        (pci / bdf).mkdir(parents=True)
    (pci / BDF / "virtfn0").symlink_to("../0000:1a:00.2")
    (pci / BDF / "sriov_numvfs").write_text("1\n")
    (pci / "0000:1a:00.2/driver").symlink_to("../../drivers/vfio-pci")
    for name in ("eth0", "pf0vf0"):
        put(tmp_path, f"/sys/class/net/{name}/mtu", "9000\n")
        place = tmp_path / f"sys/class/net/{name}/device"
        place.symlink_to(f"../../../bus/pci/devices/{BDF}")

    files = run(tmp_path)["files"]

    base = "/sys/bus/pci/devices"
    assert files[f"{base}/{BDF}/virtfn0"] == {"link": "../0000:1a:00.2"}
    assert files[f"{base}/{BDF}/sriov_numvfs"]["text"] == "1\n"
    assert files[f"{base}/0000:1a:00.2/driver"]["link"].endswith("vfio-pci")
    assert files[f"{base}/0000:1a:00.2/net"] == {"errno": "ENOENT"}
    assert sum("virtfn" in path for path in files) == 1
    assert files["/sys/class/net/eth0/phys_switch_id"] == {"errno": "ENOENT"}


def test_files_of_the_boot_are_known_by_the_devices_they_name(tmp_path):
    for name in ("br-ex", "br-int", "eth0", "wlan0"):
        put(tmp_path, f"/sys/class/net/{name}/mtu", "1500\n")
    plan = "network:\n  ethernets:\n    eth0: {}  # br-int\n  password: hunter2\n"
    put(tmp_path, "/etc/netplan/50.yaml", plan)
    put(tmp_path, "/etc/systemd/network/br.network", "[Match]\nName=br-*\nKind=*\n")
    put(tmp_path, "/etc/network/interfaces", "auto lo\n")
    put(tmp_path, "/etc/network/interfaces.d/a b", "iface br-ex:0 inet manual\n")

    document = run(tmp_path)

    assert document["cmds"]["configured netdevs"]["stdout"] == (
        "# 4 files\n"
        "/etc/netplan/50.yaml eth0\n"
        "/etc/systemd/network/br.network br-ex br-int\n"
        "/etc/network/interfaces\n"
        "/etc/network/interfaces.d/a_b br-ex\n"
    )
    assert "hunter2" not in json.dumps(document)


def test_files_that_the_boot_does_not_read_do_not_count(tmp_path):
    put(tmp_path, "/sys/class/net/br-ex/mtu", "1500\n")
    kept = "/etc/systemd/network/10-br.network.d/a.conf"
    put(tmp_path, kept, "[Match]\nName=br-ex\n")
    for path in (
        "/etc/netplan/01.yaml.bak",
        "/etc/netplan/README",
        "/etc/systemd/network/br.network.disabled",
        "/etc/NetworkManager/system-connections/br.nmconnection~",
        "/etc/network/interfaces.d/br.dpkg-old",
        "/etc/sysconfig/network-scripts/ifcfg-br-ex.rpmsave",
    ):
        put(tmp_path, path, "br-ex\n")

    told = run(tmp_path)["cmds"]["configured netdevs"]["stdout"]

    assert told == f"# 1 files\n{kept} br-ex\n"


def test_interrupts_of_a_nic_are_one_text_with_their_number(tmp_path, quick):
    device(tmp_path)
    for number, cpus in ((121, "0-47\n"), (99, "3\n")):
        put(tmp_path, f"/sys/bus/pci/devices/{BDF}/msi_irqs/{number}", "msix\n")
        put(tmp_path, f"/proc/irq/{number}/smp_affinity_list", cpus)

    told = run(tmp_path)["cmds"][f"irqs {BDF}"]

    assert told["stdout"] == "# 2 interrupts\n99 3\n121 0-47\n"
    assert told["bytes"] == len(told["stdout"])


def test_interrupts_that_may_not_be_listed_are_not_none(tmp_path):
    put(tmp_path, f"/sys/bus/pci/devices/{BDF}/msi_irqs", "no directory\n")
    reader = collector.Collector(str(tmp_path), collector.Deadline(20), False)

    collector.read_interrupts(reader, [BDF, "0000:aa:00.0"])
    told, _ = reader.snapshot()
    denied, none = (told[f"irqs {bdf}"] for bdf in (BDF, "0000:aa:00.0"))

    assert (denied["rc"], denied["stderr"]) == (1, "msi_irqs: ENOTDIR")
    assert (none["rc"], none["stdout"]) == (0, "# 0 interrupts\n")


def test_only_disks_of_this_node_are_asked_for_their_health(tmp_path):
    for name, kind in (("nvme0", "pcie\n"), ("nvme1", "rdma\n")):
        put(tmp_path, f"/sys/class/nvme/{name}/transport", kind)
    reader = collector.Collector(str(tmp_path), collector.Deadline(20), False)

    jobs = collector.disk_jobs(reader)

    assert jobs == [["nvme", "smart-log", "/dev/nvme0", "-o", "json"]]


@pytest.fixture
def proxy():
    """A kube-proxy that tells its mode, on a free port of loopback."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/proxyMode" else 404)
            self.end_headers()
            self.wfile.write(b"ipvs")

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_program_of_the_node_is_asked_over_http(tmp_path, proxy):
    reader = collector.Collector(str(tmp_path), collector.Deadline(20), True)
    for path in ("/proxyMode", "/healthz"):
        collector.get(reader, "127.0.0.1", proxy, path)

    told = {line.rsplit("/")[-1]: entry for line, entry in reader.cmds.items()}

    assert f"GET http://127.0.0.1:{proxy}/proxyMode" in reader.cmds
    assert (told["proxyMode"]["rc"], told["proxyMode"]["stdout"]) == (0, "ipvs")
    assert (told["healthz"]["rc"], told["healthz"]["stderr"]) == (1, "404")


def test_that_nobody_listens_is_a_fact(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reader = collector.Collector(str(tmp_path), collector.Deadline(20), True)

    collector.get(reader, "127.0.0.1", port, "/proxyMode")

    (entry,) = reader.cmds.values()
    assert (entry["rc"], entry["stderr"]) == (1, "ECONNREFUSED")


@pytest.fixture
def name_server():
    """Answers one question on loopback; `answer` makes bytes of the query."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.bind(("127.0.0.1", 0))
        link.settimeout(5)

        def once(answer):
            def serve():
                query, sender = link.recvfrom(512)
                link.sendto(answer(query), sender)

            thread = threading.Thread(target=serve)
            thread.start()
            entry = collector.resolve(
                "127.0.0.1", "master.kv.svc.cluster.local", 5, link.getsockname()[1]
            )
            thread.join()
            return entry

        yield once


def reply(query, *records, code=0):
    flags = (0x8180 | code).to_bytes(2, "big")
    count = len(records).to_bytes(2, "big")
    head = query[:2] + flags + b"\0\1" + count + b"\0\0\0\0"
    return head + query[12:] + b"".join(records)


def record(data, kind=1, name=b"\xc0\x0c"):
    kind_and_class = kind.to_bytes(2, "big") + b"\0\1"
    return name + kind_and_class + b"\0\0\0\x1e" + len(data).to_bytes(2, "big") + data


def test_a_name_server_is_asked_and_its_addresses_are_kept(name_server):
    alias = record(b"\3kv1\xc0\x0c", kind=5)
    named = record(bytes([10, 96, 0, 9]), name=b"\3kv1\7cluster\0")

    entry = name_server(lambda q: reply(q, alias, record(bytes([10, 96, 0, 1])), named))

    assert (entry["rc"], entry["stdout"]) == (0, "10.96.0.1\n10.96.0.9\n")
    assert entry["bytes"] == len(entry["stdout"])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda q: reply(q, code=3), "NXDOMAIN"),
        (lambda q: reply(q, code=11), "response code 11"),
        (reply, "no address"),
        (lambda q: reply(q, record(b"\x0a"))[:-1], "an answer that cannot be read"),
        (lambda q: reply(q, record(b"abcd"))[:-6], "an answer that cannot be read"),
        (lambda q: q[:7], "an answer that cannot be read"),
        (lambda q: b"\0\0" + reply(q)[2:-1] + b"x" * 8, "another answer"),
    ],
)
def test_an_answer_without_an_address_says_why(name_server, monkeypatch, answer, told):
    monkeypatch.setattr(os, "urandom", lambda count: b"\x12\x34"[:count])

    entry = name_server(answer)

    assert (entry["stdout"], entry["stderr"]) == ("", told)
    assert entry["rc"] == (2 if "answer" in told else 1)


def test_a_name_server_that_is_silent_or_gone_is_a_fact():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        late = collector.resolve("127.0.0.1", "a.svc", 0.05, port)
    gone = collector.resolve("127.0.0.1", "a.svc", 1.0, port)

    assert (late["rc"], late["stderr"]) == (1, "no answer")
    assert (gone["rc"], gone["stderr"]) == (1, "ECONNREFUSED")


@pytest.mark.parametrize(
    "written",
    [
        'clusterDNS:\n- 10.96.0.10\nclusterDomain: "kv.example"\n',
        "clusterDNS: [10.96.0.10]\nclusterDomain: kv.example\n",
        "clusterDomain: kv.example\nclusterDNS:\n  - '10.96.0.10'\n",
    ],
)
def test_the_names_that_services_use_are_asked_of_the_clusters_server(
    tmp_path, monkeypatch, written
):
    put(tmp_path, "/var/lib/kubelet/config.yaml", written)
    monkeypatch.setattr(collector, "resolve", lambda *asked: {"stderr": asked[:2]})
    reader = collector.Collector(str(tmp_path), collector.Deadline(20), True)
    services = [
        {"MOONCAKE_MASTER": "master.kv.svc:50051"},
        {"MC_MASTER": "http://other.kv.svc.kv.example:50051/"},
        {"MC_MASTER": "192.0.2.200:50051"},
    ]

    with ThreadPoolExecutor(2) as pool:
        collector.ask_cluster_dns(reader, services, pool)

    assert sorted(reader.cmds) == [
        f"dns 10.96.0.10 {name}.svc.kv.example"
        for name in ("kubernetes.default", "master.kv", "other.kv")
    ]


@pytest.mark.parametrize("written", ["clusterDNS:\nclusterDomain: c.local\n", "x: 1\n"])
def test_a_kubelet_without_a_name_server_has_nobody_asked(tmp_path, written):
    put(tmp_path, "/var/lib/kubelet/config.yaml", written)
    reader = collector.Collector(str(tmp_path), collector.Deadline(20), True)

    with ThreadPoolExecutor(2) as pool:
        collector.ask_cluster_dns(reader, [{"MC_MASTER": "master.kv.svc"}], pool)

    assert reader.cmds == {}


def test_the_wheels_of_services_and_of_the_system_are_read(tmp_path):
    info = "mooncake_transfer_engine-0.3.13.post1.dist-info/METADATA"
    inside = f"/srv/kv cache/lib/python3.11/site-packages/{info}"
    system = f"/usr/local/lib/python3.10/dist-packages/{info}"
    for path in (inside, system):
        put(tmp_path, path, "Metadata-Version: 2.1\nVersion: 0.3.13.post1\n")
    program = "/srv/kv cache/bin/python3\0-m\0mooncake.mooncake_store_service\0"
    put(tmp_path, "/proc/77/cmdline", program)
    put(tmp_path, "/opt/x/lib/python3.11/site-packages/other.dist-info/METADATA", "")

    document = run(tmp_path)

    assert {path for path in document["files"] if "METADATA" in path} == {
        inside,
        system,
    }
    assert versions(Facts(document)) == dict.fromkeys([inside, system], "0.3.13.post1")


def test_counters_are_sampled_twice_on_selected_ports(tmp_path, quick):
    device(tmp_path)

    files = run(tmp_path)["files"]
    path = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence"
    first, second = files[path]
    assert first["text"] == second["text"] == "0\n"
    assert first["t"] < second["t"]


def test_r54_gpud_1164_counters_of_other_ports_are_never_touched(tmp_path, quick):
    device(tmp_path)
    device(tmp_path, "mlx5_1", bdf="0000:2a:00.0", phys="3: Disabled", netdev="aux0")
    device(tmp_path, "mlx5_2", bdf="0000:3a:00.0", netdev="ens3f0np0")
    before = {path: path.stat().st_atime_ns for path in tmp_path.rglob("*counters/*")}

    files = run(tmp_path, "--nics", "mlx5_0")["files"]
    touched = {path for path in files if "counters/" in path}
    assert all("/mlx5_0/" in path for path in touched)
    assert len(touched) == 2
    after = {path: path.stat().st_atime_ns for path in before}
    assert {p: t for p, t in after.items() if "mlx5_0" not in str(p)} == {
        p: t for p, t in before.items() if "mlx5_0" not in str(p)
    }


def test_without_a_selection_a_port_that_is_off_is_not_touched(tmp_path, quick):
    device(tmp_path)
    device(tmp_path, "mlx5_1", bdf="0000:2a:00.0", phys="3: Disabled", netdev="aux0")

    document = run(tmp_path)
    assert document["collector"]["selected"] == ["mlx5_0"]
    assert not any("mlx5_1" in p for p in document["files"] if "counters/" in p)


def test_only_allow_listed_variables_of_services_are_kept(tmp_path):
    put(tmp_path, "/proc/77/cmdline", "mooncake_client\0--api-key=hunter2\0-v\0")
    environ = "MC_GID_INDEX=\0HOME=/root\0MC_TOKEN=s3cret\0http_proxy=http://u:pw@p:1\0"
    put(tmp_path, "/proc/77/environ", environ)
    put(tmp_path, "/proc/78/cmdline", "bash\0")
    put(tmp_path, "/proc/78/environ", "MC_GID_INDEX=3\0")

    document = run(tmp_path)
    text = document["files"]["/proc/77/environ"]["text"]
    assert text == "MC_GID_INDEX=\0http_proxy=http://***@p:1\0"
    assert "/proc/78/environ" not in document["files"]
    told = json.dumps(document)
    assert not any(secret in told for secret in ("hunter2", "s3cret", "u:pw"))


def test_nothing_is_written(tmp_path, quick):
    device(tmp_path)

    def digest():
        return {
            str(path): (
                os.lstat(path).st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            )
            for path in tmp_path.rglob("*")
        }

    before = digest()
    run(tmp_path)

    assert digest() == before


def tool(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_command_that_hangs_is_killed_with_its_children_and_is_a_fact(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(collector, "COMMAND_S", 0.3)
    slow = tool(tmp_path, "slow", "echo half; sleep 30 & sleep 30")
    began = time.monotonic()

    entry = collector.execute([slow], collector.Deadline(20))

    assert time.monotonic() - began < 3
    assert entry["timeout"] is True
    assert entry["stdout"] == "half\n"


def test_a_tool_that_is_not_there_is_told(tmp_path):
    entry = collector.execute(["no-such-tool-here"], collector.Deadline(20))

    assert (entry["rc"], entry["timeout"]) == (127, False)


def test_a_command_after_the_budget_is_not_started(tmp_path):
    marker = tmp_path / "ran"
    late = tool(tmp_path, "late", f"touch {marker}")

    entry = collector.execute([late], collector.Deadline(0))

    assert entry["timeout"] is True
    assert not marker.exists()


def test_output_is_measured_in_bytes_and_rc_and_stderr_are_kept(tmp_path):
    told = tool(tmp_path, "told", "printf 'gr\\303\\274n'; echo oops >&2; exit 3")

    entry = collector.execute([told], collector.Deadline(20))

    assert (entry["rc"], entry["stdout"], entry["stderr"]) == (3, "grün", "oops\n")
    assert entry["bytes"] == 5


def test_output_without_end_is_bounded_and_marked_as_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(collector, "MAX_OUTPUT", 1 << 16)
    endless = tool(tmp_path, "endless", "while :; do echo yyyyyyyyyyyyyyyyyyyyyy; done")

    entry = collector.execute([endless], collector.Deadline(20))

    assert len(entry["stdout"]) < 1 << 18
    assert entry["bytes"] > len(entry["stdout"])


def test_commands_speak_c(tmp_path):
    says = tool(tmp_path, "says", 'echo "$LC_ALL"')

    assert collector.execute([says], collector.Deadline(20))["stdout"] == "C\n"


def test_serial_numbers_are_hashed_and_stay_distinct():
    one = collector.redact('{"serial_number":"MT2343X01234"}')
    other = collector.redact('{"serial_number":"MT2343X01235"}')

    assert "MT2343X0123" not in one + other
    assert one != other
    assert json.loads(one)


def test_the_long_tail_of_a_log_begins_with_a_whole_line(tmp_path, monkeypatch):
    monkeypatch.setattr(collector, "MAX_FILE", 1000)
    lines = "".join(f"line {n:04d}\n" for n in range(1000))
    put(tmp_path, "/var/log/openvswitch/ovs-vswitchd.log", lines)

    entry = run(tmp_path)["files"]["/var/log/openvswitch/ovs-vswitchd.log"]
    assert entry["text"].startswith("line ")
    assert entry["text"].endswith("line 0999\n")
    assert entry["bytes"] == len(entry["text"])


def test_this_machine_is_read_within_the_budget():
    began = time.monotonic()

    document = collector.collect(collector.arguments([]))

    assert time.monotonic() - began < collector.BUDGET_S
    assert document["cmds"]["uname -r"]["rc"] == 0
    assert document["node"]["hostname"]


def test_a_read_that_hangs_in_the_kernel_costs_only_what_comes_after(
    tmp_path, monkeypatch
):
    put(tmp_path, "/proc/cmdline", "quiet\n")
    monkeypatch.setattr(collector, "GRACE_S", 0.1)
    let_go = threading.Event()
    monkeypatch.setattr(collector, "read_netdevs", lambda _: let_go.wait(10))

    document = run(tmp_path, "--budget", "0.2")
    let_go.set()

    assert document["collector"]["late"] is True
    assert document["files"]["/proc/cmdline"]["text"] == "quiet\n"


def test_a_fault_of_its_own_is_told_with_what_was_gathered(tmp_path, monkeypatch):
    put(tmp_path, "/proc/cmdline", "quiet\n")

    def broken(_):
        raise ValueError("surprise")

    monkeypatch.setattr(collector, "read_netdevs", broken)
    document = run(tmp_path)

    assert document["collector"]["fault"] == "ValueError: surprise"
    assert document["files"]["/proc/cmdline"]["text"] == "quiet\n"


OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.[678].*/bin/python3"))


@pytest.mark.skipif(not OLD_PYTHONS, reason="needs Python 3.6 to 3.8 beside this one")
@pytest.mark.parametrize("python", OLD_PYTHONS, ids=lambda path: path.parts[-3])
def test_an_old_python_runs_it(python, tmp_path):
    device(tmp_path)

    done = subprocess.run(
        [python, "-", "--sysroot", str(tmp_path), "--budget", "3"],
        input=SOURCE.read_bytes(),
        capture_output=True,
        timeout=30,
        check=True,
    )

    assert decode(done.stdout)["collector"]["selected"] == ["mlx5_0"]
    assert done.stderr == b""

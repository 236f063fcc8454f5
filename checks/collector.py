"""Collects the facts of one node as a document `preflight.facts/1`, and judges nothing.

One file, standard library, Python 3.6 grammar: it is sent to a node over the standard
input of `python3 -`. It writes nothing, sets nothing, and ends within 20 s: every
command has 5 s, a command that hangs is itself a fact. Output is one line of JSON and a
sentinel with its SHA-256, so that a connection lost half-way is seen:

    {"schema": "preflight.facts/1", ...}
    ###END <sha256 of the line>###

Documents above one mebibyte are compressed: `###GZIP <base64>` instead of the JSON.

Counters are read of selected ports only: reading them on a NIC that the firmware keeps
to itself floods the kernel's log (gpud#1164, node_exporter#3434). Values that are
judged by their change are sampled twice, at least two seconds apart.
"""

import argparse
import base64
import errno
import fnmatch
import glob
import gzip
import hashlib
import http.client
import json
import os
import re
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

VERSION = "1"
SCHEMA = "preflight.facts/1"
BUDGET_S = 20.0
COMMAND_S = 5.0
SAMPLE_GAP_S = 2.0
GRACE_S = 2.0
WORKERS = 6
MAX_OUTPUT = 4 << 20
MAX_FILE = 256 << 10
MAX_PLAIN = 1 << 20
MAX_PROCESSES = 64
MAX_WHEELS = 8
MAX_GPUS = 32
MAX_PROBES = 64
MAX_MEMBERS = 64
MAX_DISKS = 32
MAX_IRQS = 512
MAX_VFS = 512
MAX_NAMES = 6
MAX_CONFIGURED = 256
GID_SLOTS = 16
NO_TOOL = 127
IB = "/sys/class/infiniband"
PCI = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
NVME = "/sys/class/nvme"
BDF = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
KUBELET = "/var/lib/kubelet/config.yaml"
CLUSTER_DNS = re.compile(
    r"(?m)^clusterDNS:[ \t]*(?:\[[ \t]*|\r?\n[ \t]*-[ \t]*)?[\"']?"
    r"([0-9A-Fa-f]*[.:][0-9A-Fa-f.:]*)"
)
CLUSTER_DOMAIN = re.compile(r"(?m)^clusterDomain:\s*[\"']?([\w.-]+)")
MASTERS = ("MOONCAKE_MASTER", "MOONCAKE_MASTER_SERVER", "MC_MASTER")
DNS_S = 3.0
RCODES = {1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
ZERO_GID = re.compile(r"^[0:]*$")

FILES = (
    "/proc/cmdline /proc/modules /proc/mounts /proc/meminfo /proc/uptime /proc/version"
    " /proc/stat /proc/net/route /proc/driver/nvidia/version /proc/driver/nvidia/params"
    " /etc/os-release /etc/hosts /etc/hostname /etc/default/grub /etc/kernel/cmdline"
    " /etc/iproute2/rt_tables /run/reboot-required /var/lib/kubelet/config.yaml"
    " /proc/sys/vm/max_map_count /proc/sys/vm/nr_hugepages /proc/sys/vm/swappiness"
    " /proc/sys/vm/zone_reclaim_mode /proc/sys/vm/overcommit_memory"
    " /proc/sys/vm/min_free_kbytes /proc/sys/kernel/numa_balancing"
    " /proc/sys/kernel/dmesg_restrict /proc/sys/net/ipv4/ip_local_port_range"
    " /proc/sys/net/ipv4/ip_local_reserved_ports /proc/sys/net/ipv4/tcp_tw_reuse"
    " /proc/sys/net/ipv4/fib_multipath_hash_policy /proc/sys/net/ipv4/ip_forward"
    " /proc/sys/net/core/rmem_max /proc/sys/net/core/wmem_max"
    " /proc/sys/net/core/somaxconn /proc/sys/net/bridge/bridge-nf-call-iptables"
    " /proc/sys/net/bridge/bridge-nf-call-ip6tables"
    " /proc/sys/net/netfilter/nf_conntrack_count"
    " /proc/sys/net/netfilter/nf_conntrack_max"
    " /sys/kernel/mm/transparent_hugepage/enabled"
    " /sys/kernel/mm/transparent_hugepage/defrag"
    " /sys/devices/system/clocksource/clocksource0/current_clocksource"
    " /sys/devices/system/cpu/smt/control"
    " /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    " /var/log/openvswitch/ovs-vswitchd.log"
    " /run/openvswitch/ovs-vswitchd.pid /run/openvswitch/ovsdb-server.pid"
).split()
PATTERNS = (
    "/proc/net/bonding/*",
    "/proc/sys/net/ipv4/conf/*/rp_filter",
    "/proc/sys/net/ipv4/conf/*/arp_ignore",
    "/proc/sys/net/ipv4/conf/*/arp_announce",
    "/proc/sys/net/ipv4/conf/*/arp_filter",
    "/proc/sys/net/ipv4/conf/*/accept_local",
    "/proc/sys/net/ipv4/conf/*/ignore_routes_with_linkdown",
    "/sys/class/infiniband_verbs/*/ibdev",
    "/sys/devices/system/node/node*/meminfo",
    "/sys/devices/system/node/node*/cpulist",
    "/sys/devices/system/node/node*/hugepages/*/nr_hugepages",
    "/sys/devices/system/node/node*/hugepages/*/free_hugepages",
    "/sys/module/mlx5_core/*version",
    "/sys/module/openvswitch/*version",
    "/sys/module/ib_core/*version",
    "/sys/module/mlx5_core/parameters/*",
    "/sys/module/ib_core/parameters/*",
    "/etc/modprobe.d/*.conf",
    "/etc/sysctl.d/*.conf",
    "/etc/iproute2/rt_tables.d/*.conf",
    "/etc/systemd/system/disable-pcie-acs.service",
    "/sys/class/nvme/*/transport",
)
DIRECTORIES = (
    "/sys/bus/pci/drivers",
    "/sys/class/nvme",
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/class/net",
    "/sys/module/openvswitch",
    "/dev/infiniband",
    "/run/openvswitch",
    "/etc/cni/net.d",
    "/etc/netplan",
    "/etc/systemd/network",
    "/etc/network/interfaces.d",
    "/etc/NetworkManager/system-connections",
    "/run/NetworkManager/system-connections",
    "/etc/libibverbs.d",
    "/sys/devices/system/node",
)
CONFIGURED = (
    "/etc/netplan/*.yaml",
    "/etc/NetworkManager/system-connections/*",
    "/etc/systemd/network/*.network",
    "/etc/systemd/network/*.netdev",
    "/etc/systemd/network/*/*.conf",
    "/etc/network/interfaces",
    "/etc/network/interfaces.d/*",
    "/etc/sysconfig/network-scripts/ifcfg-*",
    "/etc/sysconfig/network/ifcfg-*",
)
LEFT_OVER = re.compile(r"(?:~|\.(?:bak|old|orig|save|disabled|rpm\w+|dpkg-\w+))$")
ALWAYS = ("mtu", "operstate", "phys_switch_id", "phys_port_name")
NETDEV_WORD = re.compile(r"[\w.@*-]+")
NETDEV = (
    "operstate carrier carrier_changes mtu speed address phys_port_name tx_queue_len"
    " phys_switch_id qos/trust"
).split()
DEVICE = (
    "numa_node vendor device sriov_numvfs sriov_totalvfs current_link_speed"
    " current_link_width max_link_speed max_link_width iommu_group/type"
    " aer_dev_correctable aer_dev_nonfatal aer_dev_fatal"
).split()
COMMANDS = (
    "ip -j -d addr",
    "ip -j -4 rule",
    "ip -j -6 rule",
    "ip -j -4 route show table all",
    "ip -j -6 route show table all",
    "ip -j neigh",
    "nmcli -t -f DEVICE,STATE,CONNECTION d",
    "rdma -j -d dev",
    "rdma -j -d link",
    "rdma -j system",
    "rdma -j resource show",
    "devlink -j dev info",
    "ibv_devinfo -v",
    "ibv_devinfo -l",
    "ofed_info -s",
    "chronyc -c tracking",
    "timedatectl show",
    "ss -Hltn",
    "systemctl --failed --plain --no-legend",
    "systemctl is-active irqbalance.service",
    "systemctl show --property=LoadState --property=UnitFileState"
    " --property=Result --property=ExecMainStartTimestampMonotonic"
    " disable-pcie-acs.service",
    "nvidia-smi topo -m",
    "lldpctl -f json0",
    "uname -r",
    "modinfo mlx5_core",
    "systemd-detect-virt",
    "mooncake_master --version",
)
OVS_TABLES = ("Open_vSwitch", "Bridge", "Port", "Interface", "Controller", "Manager")
OPENFLOW = "OpenFlow10,OpenFlow13,OpenFlow14,OpenFlow15"
OVS_COUNTERS = (
    "drop_action_of_pipeline",
    "drop_action_congestion",
    "upcall_flow_limit_hit",
    "netlink_overflow",
)
SERVICE = re.compile(r"mooncake|sglang|vllm|dynamo|refimpl")
ALLOWED_ENV = re.compile(
    r"^(MC_|MOONCAKE_|NCCL_|UCX_|NVSHMEM_|SGLANG_|VLLM_|WITH_NVIDIA_PEERMEM$"
    r"|GLOO_SOCKET_IFNAME$|CUDA_VISIBLE_DEVICES$|(?i:https?_proxy|no_proxy)$)"
)
SECRET = re.compile(r"(?i)(token|secret|passw|api_?key|credential)")
URL_PASSWORD = re.compile(r"://[^/@\s:]+:[^/@\s]+@")
SECRET_OPTION = re.compile(
    r"(?i)(--?[\w-]*(?:token|secret|passw\w*|api-?key|credential)[\w-]*[=\0 ])[^\0 ]+"
)
SERIAL = re.compile(r"(?i)(serial[ _.]?(?:number)?\"?\s*[:=]\s*\"?)([\w.-]{4,})")
LOUD = re.compile(
    r"_phy|pause|prio|discard|drop|err|symbol|crc|link_down|out_of_buffer"
)

Entry = Dict[str, Any]


class Deadline(object):
    """What is left of the collector's time."""

    def __init__(self, budget_s: float) -> None:
        self.end = time.monotonic() + budget_s

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())


class Collector(object):
    """Reads files below a root and runs commands; keeps both by their spelling."""

    def __init__(self, sysroot: str, deadline: Deadline, commands: bool) -> None:
        self.sysroot = sysroot.rstrip("/")
        self.deadline = deadline
        self.runs_commands = commands
        self.cmds = {}  # type: Dict[str, Any]
        self.files = {}  # type: Dict[str, Any]
        self.selected = []  # type: List[str]
        self.services = 0
        self.lock = threading.Lock()

    # Files

    def real(self, path: str) -> str:
        return self.sysroot + path

    def read(self, path: str) -> Optional[str]:
        """Reads and keeps a file; returns its text, or None with the errno kept."""
        entry = self.look(path)
        self.keep_file(path, entry)
        text = entry.get("text")
        return text if isinstance(text, str) else None

    def look(self, path: str) -> Entry:
        """One reading of a file: text, or the name of the errno. Bounded."""
        try:
            with open(self.real(path), "rb") as file:
                raw = _tail_of(file) if path.startswith("/var/log/") else None
                raw = file.read(MAX_FILE + 1) if raw is None else raw
        except OSError as error:
            return {"errno": errno.errorcode.get(error.errno or 0, "EIO")}
        return _text_entry(raw)

    def sample(self, path: str) -> None:
        """Reads a counter and adds it to its samples."""
        entry = self.look(path)
        entry["t"] = time.time()
        with self.lock:
            self.files.setdefault(path, []).append(entry)

    def read_each(self, base: str, leaves: Iterable[str]) -> None:
        for leaf in leaves:
            self.read(base + "/" + leaf)

    def link(self, path: str) -> str:
        """Keeps a symbolic link; returns its target, "" where there is none."""
        try:
            target = os.readlink(self.real(path))
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "EIO")
            self.keep_file(path, {"errno": name})
            return ""
        self.keep_file(path, {"link": target})
        return target

    def names(self, path: str, keep: bool = True) -> List[str]:
        """Keeps a directory; returns its entries."""
        found, why = self.listed(path)
        if keep:
            self.keep_file(path, {"errno": why} if why else {"entries": found})
        return found

    def listed(self, path: str) -> Tuple[List[str], str]:
        """The entries of a directory, and an errno where it could not be read."""
        try:
            return sorted(os.listdir(self.real(path))), ""
        except OSError as error:
            return [], errno.errorcode.get(error.errno or 0, "EIO")

    def mode(self, path: str) -> None:
        """Keeps the permissions of a device node."""
        try:
            mode = os.stat(self.real(path)).st_mode & 0o7777
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "EIO")
            self.keep_file(path, {"errno": name})
            return
        self.keep_file(path, {"mode": "%04o" % mode})

    def matching(self, pattern: str) -> List[str]:
        found = glob.glob(self.real(pattern))
        return sorted(path[len(self.sysroot) :] for path in found)

    def keep_file(self, path: str, entry: Entry) -> None:
        with self.lock:
            self.files.setdefault(path, entry)

    def snapshot(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """What there is by now; samples that still come in do not change it."""
        with self.lock:
            cmds, files = dict(self.cmds), dict(self.files)
            for kept in (cmds, files):
                for key, entry in kept.items():
                    if isinstance(entry, list):
                        kept[key] = list(entry)
        return cmds, files

    # Commands

    def run(self, *argv: str, **options: Any) -> Entry:
        """Runs and keeps a command. `again` adds a sample, `digest` shortens output."""
        line = " ".join(argv)
        if not self.runs_commands:
            return {}
        entry = execute(list(argv), self.deadline, options.get("digest"))
        with self.lock:
            if options.get("again"):
                entry["t"] = time.time()
                self.cmds.setdefault(line, []).append(entry)
            else:
                self.cmds[line] = entry
        return entry

    def tell(self, line: str, entry: Entry) -> None:
        """Keeps what was read without a command, by a line that says what it is."""
        with self.lock:
            self.cmds[line] = entry

    def output(self, *argv: str, **options: Any) -> str:
        return str(self.run(*argv, **options).get("stdout", ""))


def execute(
    argv: List[str], deadline: Deadline, digest: Optional[Callable[[str], str]] = None
) -> Entry:
    """Runs one command to its end, its deadline or its bound; never raises."""
    began = time.monotonic()
    if shutil.which(argv[0], path=_environment()["PATH"]) is None:
        return {
            "rc": NO_TOOL,
            "stdout": "",
            "stderr": "not found",
            "ms": 0,
            "timeout": False,
        }
    limit = min(COMMAND_S, deadline.left())
    if limit <= 0:
        return _late("the budget of the collector is spent", began)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        return {"rc": 126, "stdout": "", "stderr": name, "ms": 0, "timeout": False}
    outputs, ended, whole = _drain(process, began + limit)
    rc = _end(process, ended)
    stdout = redact(outputs[0].decode("utf-8", "replace"))
    stdout = digest(stdout) if digest is not None else stdout
    return {
        "rc": rc,
        "stdout": stdout,
        "stderr": redact(outputs[1].decode("utf-8", "replace"))[:8192],
        "ms": int((time.monotonic() - began) * 1000),
        "timeout": not ended,
        "bytes": len(stdout.encode("utf-8", "replace")) + (0 if whole else 1),
    }


def _drain(process: Any, end: float) -> Tuple[List[bytes], bool, bool]:
    """Reads both pipes until they close: (outputs, in time, whole)."""
    outputs = [bytearray(), bytearray()]
    chooser = selectors.DefaultSelector()
    for at, pipe in enumerate((process.stdout, process.stderr)):
        chooser.register(pipe, selectors.EVENT_READ, at)
    whole = True
    while chooser.get_map():
        left = end - time.monotonic()
        if left <= 0 or not whole:
            break
        for key, _ in chooser.select(left):
            chunk = os.read(key.fd, 65536)
            outputs[key.data].extend(chunk)
            whole = whole and len(outputs[key.data]) < MAX_OUTPUT
            if not chunk:
                chooser.unregister(key.fileobj)
    ended = not chooser.get_map() or not whole
    chooser.close()
    return [bytes(each) for each in outputs], ended, whole


def _end(process: Any, ended: bool) -> int:
    """Its return code; a process that does not end is killed with all it started."""
    try:
        process.wait(0.2 if ended else 0.0)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            pass  # stuck in the kernel: it is left to init, its pipes are closed
    process.stdout.close()
    process.stderr.close()
    return -9 if process.returncode is None else int(process.returncode)


def _told(rc: int, stdout: str, stderr: str = "", began: float = 0.0) -> Entry:
    """What something else than a command told, as commands are kept."""
    ms = int((time.monotonic() - began) * 1000) if began else 0
    return {
        "rc": rc,
        "stdout": stdout,
        "stderr": stderr,
        "ms": ms,
        "timeout": False,
        "bytes": len(stdout.encode("utf-8", "replace")),
    }


def _late(reason: str, began: float) -> Entry:
    ms = int((time.monotonic() - began) * 1000)
    return {"rc": -1, "stdout": "", "stderr": reason, "ms": ms, "timeout": True}


def _environment() -> Dict[str, str]:
    kept = ("HOME", "KUBECONFIG", "OVS_RUNDIR", "XDG_RUNTIME_DIR")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    path = os.environ.get("PATH", "")
    found["PATH"] = ":".join(
        part
        for part in (
            path,
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        if part
    )
    found["LC_ALL"] = "C"
    return found


def redact(text: str) -> str:
    """Takes out passwords in URLs, values of secret options; serials are hashed."""
    text = URL_PASSWORD.sub("://***@", text)
    text = SECRET_OPTION.sub(r"\1***", text)
    return SERIAL.sub(_hash_serial, text)


def _hash_serial(match: Any) -> str:
    return (
        str(match.group(1)) + hashlib.sha256(match.group(2).encode()).hexdigest()[:12]
    )


def _text_entry(raw: bytes) -> Entry:
    text = redact(raw[:MAX_FILE].decode("utf-8", "replace"))
    size = len(text.encode("utf-8", "replace"))
    return {"text": text, "bytes": size + (1 if len(raw) > MAX_FILE else 0)}


def _tail_of(file: Any) -> bytes:
    """The end of a log, from the beginning of a line."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_FILE))
    raw = bytes(file.read(MAX_FILE))
    return raw if size <= MAX_FILE else raw[raw.find(b"\n") + 1 :]


# What is read, in the order of need


def read_services(collector: Collector) -> List[Dict[str, str]]:
    """Processes of Mooncake and engines: limits, status, allow-listed environment."""
    found = []  # type: List[Dict[str, str]]
    for path in collector.matching("/proc/[0-9]*/cmdline"):
        pid = path.split("/")[2]
        line = str(collector.look(path).get("text", ""))
        if int(pid) == os.getpid() or not SERVICE.search(line.partition("\0--")[0]):
            continue
        if "preflight" in line or len(found) >= MAX_PROCESSES:
            continue
        collector.read(path)
        collector.read_each("/proc/" + pid, ("limits", "status"))
        found.append(_read_environment(collector, pid, line))
    return found


def _read_environment(collector: Collector, pid: str, line: str) -> Dict[str, str]:
    path = "/proc/%s/environ" % pid
    entry = collector.look(path)
    kept = {}  # type: Dict[str, str]
    if "text" in entry:
        for item in str(entry["text"]).split("\0"):
            name, _, value = item.partition("=")
            if ALLOWED_ENV.match(name) and not SECRET.search(name):
                kept[name] = redact(value)
        text = "".join("%s=%s\0" % pair for pair in sorted(kept.items()))
        entry = {"text": text, "bytes": len(text.encode("utf-8", "replace"))}
    collector.keep_file(path, entry)
    return dict(kept, **{"": line})


def read_wheels(collector: Collector, services: List[Dict[str, str]]) -> None:
    """What is installed of Mooncake, beside the programs that run and where it may be.

    A service of a virtual environment is started by a program of its `bin`.
    """
    homes = ["/usr", "/usr/local", "/opt/*"]
    for service in services:
        program = service.get("", "").partition("\0")[0]
        if program.startswith("/") and "/bin/" in program:
            homes.insert(0, glob.escape(program.rpartition("/bin/")[0]))
    found = set()  # type: Set[str]
    for home in homes:
        for kind in ("site-packages", "dist-packages"):
            info = "/lib/python3*/%s/mooncake*.dist-info/METADATA" % kind
            found.update(collector.matching(home + info))
    for path in sorted(found)[:MAX_WHEELS]:
        collector.read(path)


class Ports(object):
    """RDMA devices, and which of them may be touched."""

    def __init__(
        self, collector: Collector, asked: List[str], services: List[Dict[str, str]]
    ) -> None:
        self.collector = collector
        self.devices = collector.names(IB)
        self.netdevs = {}  # type: Dict[str, str]
        self.bdfs = {}  # type: Dict[str, str]
        self.pinned = _pinned_gids(services)
        for device in self.devices:
            self._read(device)
        self.selected = self._select(asked, services)

    def _read(self, device: str) -> None:
        base = IB + "/" + device
        read = self.collector
        target = read.link(base + "/device")
        bdf = target.rsplit("/", 1)[-1]
        read.read_each(
            base, ("fw_ver", "board_id", "hca_type", "node_guid", "node_type", "parent")
        )
        if BDF.match(bdf):
            self.bdfs[device] = bdf
            read.read_each(base + "/device", DEVICE)
            read.names(base + "/device/net")
            if os.path.lexists(read.real(base + "/device/physfn")):
                read.link(base + "/device/physfn")
        for port in read.names(base + "/ports"):
            where = "%s/ports/%s" % (base, port)
            read.read_each(where, ("state", "phys_state", "rate", "link_layer"))
            cma = "/sys/kernel/config/rdma_cm/%s/ports/%s" % (device, port)
            read.read_each(cma, ("default_roce_mode", "default_roce_tos"))
            self._read_gids(device, where)
        read.read(base + "/tc/1/traffic_class")

    def _read_gids(self, device: str, where: str) -> None:
        """GIDs of used slots, of the first ones, and of those that are pinned."""
        read = self.collector
        for index in sorted(read.names(where + "/gids"), key=_natural):
            path = "%s/gids/%s" % (where, index)
            entry = read.look(path)
            empty = ZERO_GID.match(str(entry.get("text", "")).strip() or "x")
            if (
                empty
                and not (index.isdigit() and int(index) < GID_SLOTS)
                and index not in self.pinned
            ):
                continue
            read.keep_file(path, entry)
            read.read("%s/gid_attrs/types/%s" % (where, index))
            name = read.read("%s/gid_attrs/ndevs/%s" % (where, index))
            if name and name.strip():
                self.netdevs.setdefault(device, name.strip())

    def _select(self, asked: List[str], services: List[Dict[str, str]]) -> List[str]:
        """The devices whose counters may be read: the selector of the judge."""
        named = asked or _mooncake_devices(services)
        if named:
            return [
                d
                for d in self.devices
                if {d, self.netdevs.get(d), self.bdfs.get(d)} & set(named)
            ]
        for service in services:
            text = service.get("NCCL_IB_HCA", "").strip()
            if text:
                return [d for d in self.devices if _nccl_takes(text, d)]
        return [d for d in self.devices if not self._is_off(d)]

    def _is_off(self, device: str) -> bool:
        base = "%s/%s" % (IB, device)
        off = [
            "isabled" in str(self.collector.look(path).get("text", ""))
            or "leep" in str(self.collector.look(path).get("text", ""))
            for path in self.collector.matching(base + "/ports/*/phys_state")
        ]
        virtual = os.path.lexists(self.collector.real(base + "/device/physfn"))
        default = self.netdevs.get(device) in _default_devices(self.collector)
        return virtual or default or bool(off and all(off))

    def counters(self) -> List[str]:
        """Paths of the counters of the selected devices."""
        found = []  # type: List[str]
        for device in self.selected:
            for kind in ("counters", "hw_counters"):
                pattern = "%s/%s/ports/*/%s/*" % (IB, device, kind)
                found.extend(self.collector.matching(pattern))
        return [path for path in found if not path.endswith("/lifespan")]


def _natural(text: str) -> Tuple[int, str]:
    return (int(text), "") if text.isdigit() else (1 << 30, text)


def _pinned_gids(services: List[Dict[str, str]]) -> Set[str]:
    return {
        value.strip()
        for service in services
        for name, value in service.items()
        if name.endswith("GID_INDEX")
    }


def _mooncake_devices(services: List[Dict[str, str]]) -> List[str]:
    for name in ("MC_MS_FILTERS", "MOONCAKE_DEVICE"):
        for service in services:
            words = re.split(r"[,;\s]+", service.get(name, ""))
            if any(words):
                return [word for word in words if word]
    for service in services:
        match = re.search(r"--disaggregation-ib-device[=\0]([^\0]+)", service[""])
        if match:
            return match.group(1).split(",")
    return []


def _nccl_takes(text: str, device: str) -> bool:
    deny = text.startswith("^")
    text = text.lstrip("^")
    exact = text.startswith("=")
    names = [word.split(":")[0] for word in text.lstrip("=").split(",") if word]
    hit = any(device == n if exact else device.startswith(n) for n in names)
    return hit != deny


def _default_devices(collector: Collector) -> Set[str]:
    rows = str(collector.look("/proc/net/route").get("text", "")).splitlines()[1:]
    fields = [row.split() for row in rows]
    return {f[0] for f in fields if len(f) > 7 and f[1] == "00000000" == f[7]}


def read_files(collector: Collector) -> None:
    for path in FILES:
        collector.read(path)
    for pattern in PATTERNS:
        for path in collector.matching(pattern):
            collector.read(path)
    for path in DIRECTORIES:
        collector.names(path)
    for path in collector.matching("/dev/infiniband/*"):
        collector.mode(path)


def read_netdevs(collector: Collector) -> None:
    for name in collector.names("/sys/class/net", keep=False):
        base = "/sys/class/net/" + name
        if not os.path.isdir(collector.real(base)):
            continue
        for leaf in NETDEV:
            if leaf in ALWAYS or os.path.exists(collector.real(base + "/" + leaf)):
                collector.read(base + "/" + leaf)
        for leaf in ("device", "master"):
            if os.path.lexists(collector.real(base + "/" + leaf)):
                collector.link(base + "/" + leaf)
        if os.path.lexists(collector.real(base + "/device/physfn")):
            collector.link(base + "/device/physfn")
        for path in collector.matching(base + "/ecn/*/*/*") + collector.matching(
            base + "/ecn/*/cnp_*"
        ):
            collector.read(path)


def read_functions(collector: Collector) -> None:
    """Virtual functions of NICs: their drivers, and whether their devices are here.

    Representors have the NIC as their device, too: each NIC is read once.
    """
    seen = set()  # type: Set[str]
    left = MAX_VFS
    for path in collector.matching("/sys/class/net/*/device/virtfn0"):
        place = os.path.realpath(collector.real(path.rsplit("/", 1)[0]))
        bdf = os.path.basename(place)
        if bdf in seen or not BDF.match(bdf):
            continue
        seen.add(bdf)
        collector.read(PCI + "/%s/sriov_numvfs" % bdf)
        for each in collector.matching(PCI + "/%s/virtfn*" % bdf)[:left]:
            left -= 1
            other = collector.link(each).rsplit("/", 1)[-1]
            if BDF.match(other):
                collector.link(PCI + "/%s/driver" % other)
                collector.names(PCI + "/%s/net" % other)


def read_configured(collector: Collector) -> None:
    """Which files of the boot's network configuration name which devices that exist.

    They hold keys of VPNs and wireless networks: their text is not kept.
    """
    names = collector.names("/sys/class/net", keep=False)
    paths = [path for each in CONFIGURED for path in collector.matching(each)]
    paths = [
        path
        for path in paths
        if os.path.isfile(collector.real(path)) and not LEFT_OVER.search(path)
    ]
    lines = ["# %d files\n" % len(paths)]
    for path in paths[:MAX_CONFIGURED]:
        entry = collector.look(path)
        found = _named(str(entry["text"]), names) if "text" in entry else ["?"]
        lines.append(" ".join([path.replace(" ", "_")] + found) + "\n")
    collector.tell("configured netdevs", _told(0, "".join(lines)))


def _named(text: str, names: List[str]) -> List[str]:
    """Devices that a text names, or matches by a pattern such as `br-*`."""
    rows = [line.partition("#")[0] for line in text.splitlines()]
    words = set(NETDEV_WORD.findall("\n".join(rows)))
    patterns = [w for w in words if "*" in w and re.search("[a-z]", w)]
    return [
        name
        for name in names
        if name in words or any(fnmatch.fnmatchcase(name, p) for p in patterns)
    ]


def gpus(collector: Collector) -> List[str]:
    """PCI addresses of NVIDIA and AMD display or 3D controllers."""
    found = []
    for bdf in collector.names(PCI, keep=False):
        base = PCI + "/" + bdf
        kind = str(collector.look(base + "/class").get("text", ""))
        vendor = str(collector.look(base + "/vendor").get("text", "")).strip()
        if kind.startswith(("0x0300", "0x0302", "0x1200")) and vendor in (
            "0x10de",
            "0x1002",
        ):
            found.append(bdf)
    return found[:MAX_GPUS]


def read_pci(collector: Collector, devices: List[str]) -> List[str]:
    """Facts of PCI devices; returns them with every bridge above them."""
    every = []  # type: List[str]
    for bdf in devices:
        base = PCI + "/" + bdf
        collector.link(base)
        collector.read_each(base, DEVICE)
        above = [
            p for p in os.path.realpath(collector.real(base)).split("/") if BDF.match(p)
        ]
        every.extend(part for part in above + [bdf] if part not in every)
    return every


def read_groups(collector: Collector, nics: List[str]) -> None:
    """What else is in the IOMMU groups of NICs, and what VFIO has taken."""
    for name in collector.names(DRIVERS, keep=False):
        if "vfio" in name:
            collector.names(DRIVERS + "/" + name)
    for bdf in nics:
        for other in collector.names(PCI + "/%s/iommu_group/devices" % bdf)[
            :MAX_MEMBERS
        ]:
            base = PCI + "/" + other
            collector.read(base + "/class")
            if os.path.lexists(collector.real(base + "/physfn")):
                collector.link(base + "/physfn")


def read_interrupts(collector: Collector, nics: List[str]) -> None:
    """Where interrupts of a NIC may run, in one text: `irqs BDF`, N lines `IRQ CPUS`.

    A file for each of some hundred interrupts would be as much as all other facts.
    """
    for bdf in nics:
        numbers, why = collector.listed(PCI + "/%s/msi_irqs" % bdf)
        if why not in ("", "ENOENT"):
            collector.tell("irqs " + bdf, _told(1, "", "msi_irqs: " + why))
            continue
        lines = ["# %d interrupts\n" % len(numbers)]
        for number in sorted(numbers, key=_natural)[:MAX_IRQS]:
            path = "/proc/irq/%s/smp_affinity_list" % number
            cpus = str(collector.look(path).get("text", "")).strip()
            lines.append("%s %s\n" % (number, cpus or "?"))
        collector.tell("irqs " + bdf, _told(0, "".join(lines)))


def disk_jobs(collector: Collector) -> List[List[str]]:
    """The health of every NVMe disk of this node; those over a network are others'."""
    jobs = []
    for name in collector.names(NVME, keep=False)[:MAX_DISKS]:
        path = "%s/%s/transport" % (NVME, name)
        kind = str(collector.look(path).get("text", "pcie")).strip()
        if re.match(r"^nvme\d+$", name) and kind == "pcie":
            jobs.append(["nvme", "smart-log", "/dev/" + name, "-o", "json"])
    return jobs


def rule_tables(text: str) -> List[str]:
    """Tables that rules name, besides the reserved ones."""
    try:
        rows = json.loads(text)
    except ValueError:
        return []
    names = [str(row.get("table", "")) for row in rows if isinstance(row, dict)]
    return sorted({n for n in names if n and n not in ("local", "main", "default")})[
        :256
    ]


def node_jobs(collector: Collector, ports: Ports, options: Any) -> List[List[str]]:
    """Command lines about the node itself, and about each NIC."""
    jobs = [line.split(" ") for line in COMMANDS]
    jobs.append(["getent", "hosts", socket.gethostname()])
    netdevs = sorted({ports.netdevs[d] for d in ports.devices if d in ports.netdevs})
    for name in netdevs:
        jobs.extend(
            ["ethtool", flag, name]
            for flag in ("-i", "-k", "-a", "--show-fec", "-g", "-l")
        )
        jobs.extend(
            ["dcb", "-j", what, "show", "dev", name] for what in ("pfc", "app", "ets")
        )
        jobs.append(["mlnx_qos", "-i", name])
    for bdf in sorted({ports.bdfs[d] for d in ports.selected if d in ports.bdfs}):
        jobs.append(["mstconfig", "-d", bdf, "-e", "q"])
        jobs.append(["devlink", "-j", "dev", "eswitch", "show", "pci/" + bdf])
    for peer in options.peers[:MAX_PROBES]:
        source, _, target = peer.partition(">")
        jobs.append(["ip", "-j", "route", "get", target, "from", source])
        if options.active:
            # a small packet beside the large one: is it the size, or the peer?
            for size in (56, options.ping_bytes):
                words = "ping -c 1 -W 1 -M do -s %d -I" % size
                jobs.append(words.split() + [source, target])
    if options.nft:
        jobs.append(["nft", "-j", "list", "ruleset"])
    return jobs


def has_ovs(collector: Collector) -> bool:
    present = [collector.real(p) for p in ("/run/openvswitch", "/var/run/openvswitch")]
    return any(os.path.isdir(path) for path in present)


def ovs_jobs() -> List[List[str]]:
    base = ["ovs-vsctl", "--timeout=5", "--format=json", "list"]
    jobs = [base + [table] for table in OVS_TABLES if table != "Open_vSwitch"]
    jobs.extend(
        ["ovs-appctl", "-T", "3", what]
        for what in ("version", "bond/show", "lacp/show")
    )
    jobs.append(["ovs-vswitchd", "--version"])
    return jobs


def ovs_nics(collector: Collector) -> List[str]:
    """Interfaces of bridges that are network devices; those asked already left out."""
    line = "ovs-vsctl --timeout=5 --format=json list Interface"
    try:
        table = json.loads(collector.cmds.get(line, {}).get("stdout", ""))
        name, kind = (table["headings"].index(each) for each in ("name", "type"))
        names = [row[name] for row in table["data"] if row[kind] in ("", "system")]
    except (ValueError, KeyError, TypeError):
        return []
    asked = {line.split(" ")[-1] for line in collector.cmds if "ethtool -k " in line}
    return sorted(n for n in set(map(str, names)) - asked if n[:1] != "-")[:64]


def read_bridges(collector: Collector, pool: Any) -> None:
    """Flows of every bridge; a bridge has one row in the table."""
    text = collector.output("ovs-vsctl", "--timeout=5", "list-br")
    ofctl = ["ovs-ofctl", "-O", OPENFLOW, "dump-flows"]
    lines = [ofctl + [name] for name in text.split()[:64]]
    lines += [["ethtool", "-k", name] for name in ovs_nics(collector)]
    list(pool.map(lambda argv: collector.run(*argv), lines))
    flows = ("ovs-appctl", "dpctl/dump-flows", "-m", "type=offloaded")
    collector.run(*flows, digest=_first_lines)


def read_tables(collector: Collector, pool: Any) -> None:
    """Every table that a rule names, by itself: an absent one says so only then."""
    told = collector.cmds.get("ip -j -4 rule", {})
    lines = [
        ["ip", "-j", "route", "show", "table", name]
        for name in rule_tables(str(told.get("stdout", "")))
    ]
    list(pool.map(lambda argv: collector.run(*argv), lines))


def _first_lines(text: str) -> str:
    """A count and the first of many flows: a table of offloaded flows may be huge."""
    lines = text.splitlines()
    return "# %d flows\n%s" % (len(lines), "".join(line + "\n" for line in lines[:20]))


def _loud_lines(text: str) -> str:
    """Of some thousand NIC counters those that tell of loss, pauses and links."""
    return "".join(line + "\n" for line in text.splitlines() if LOUD.search(line))


def take_samples(collector: Collector, ports: Ports, pool: Any, ovs: bool) -> None:
    """One sample of everything that is judged by its change."""
    for path in ports.counters():
        collector.sample(path)
    jobs = []  # type: List[Tuple[List[str], Any]]
    for device in ports.selected:
        if device in ports.netdevs:
            jobs.append((["ethtool", "-S", ports.netdevs[device]], _loud_lines))
    if ovs:
        base = ["ovs-vsctl", "--timeout=5", "--format=json", "list", "Open_vSwitch"]
        jobs.append((base, None))
        for what in ("upcall/show", "dpctl/show"):
            jobs.append((["ovs-appctl", "-T", "3", what], None))
        for name in OVS_COUNTERS:
            jobs.append(
                (["ovs-appctl", "-T", "3", "coverage/read-counter", name], None)
            )
    list(pool.map(lambda job: collector.run(*job[0], again=True, digest=job[1]), jobs))


def read_kernel_log(collector: Collector) -> None:
    if collector.run("dmesg", "-J").get("rc") != 0:
        collector.run("dmesg")
        collector.run("journalctl", "-k", "-b", "-o", "json", "-n", "5000")


def get(collector: Collector, host: str, port: int, path: str) -> None:
    """Asks a program of this node over HTTP: `GET http://HOST:PORT/PATH`."""
    began = time.monotonic()
    link = http.client.HTTPConnection(
        host, port, timeout=min(1.5, collector.deadline.left() + 0.01)
    )
    try:
        link.request("GET", path)
        answer = link.getresponse()
        text = answer.read(MAX_FILE).decode("utf-8", "replace")
        good = answer.status == 200
        entry = _told(0 if good else 1, text, "" if good else str(answer.status), began)
    except (OSError, http.client.HTTPException) as error:
        name = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
        entry = _told(1, "", name or type(error).__name__, began)
    finally:
        link.close()
    collector.tell("GET http://%s:%d%s" % (host, port, path), entry)


def ask_cluster_dns(
    collector: Collector, services: List[Dict[str, str]], pool: Any
) -> None:
    """Asks the name server of the cluster, as pods do: `dns SERVER NAME`."""
    text = str(collector.look(KUBELET).get("text", ""))
    server = CLUSTER_DNS.search(text)
    if server is None:
        return
    domain = CLUSTER_DOMAIN.search(text)
    end = ".svc." + (domain.group(1).strip(".") if domain else "cluster.local")
    names = {"kubernetes.default" + end}
    for told in [s.get(name, "") for s in services for name in MASTERS]:
        host = told.rpartition("://")[2].partition("/")[0].partition(":")[0]
        stem, inside, rest = host.strip(".").partition(".svc")
        if inside and rest in ("", end[4:]):
            names.add(stem + end)

    def ask(name: str) -> None:
        entry = resolve(server.group(1), name, min(DNS_S, collector.deadline.left()))
        collector.tell("dns %s %s" % (server.group(1), name), entry)

    list(pool.map(ask, sorted(names)[:MAX_NAMES]))


def resolve(server: str, name: str, wait_s: float, port: int = 53) -> Entry:
    """One question to a name server over UDP, answered or not; never raises."""
    began = time.monotonic()
    kind = 28 if ":" in server else 1
    ident = os.urandom(2)
    words = [word.encode("ascii", "replace")[:63] for word in name.split(".")]
    asked = b"".join(struct.pack("B", len(word)) + word for word in words) + b"\0"
    query = ident + b"\1\0\0\1" + b"\0" * 6 + asked + struct.pack(">HH", kind, 1)
    family = socket.AF_INET6 if kind == 28 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as link:
            link.settimeout(max(0.01, wait_s))
            link.connect((server, port))
            link.send(query)
            answer = link.recv(4096)
        if answer[:2] != ident:
            return _told(2, "", "another answer", began)
        refusal, found = _answers(answer, len(query), kind)
    except socket.timeout:
        return _told(1, "", "no answer", began)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        return _told(1, "", name, began)
    except (struct.error, IndexError, ValueError):
        return _told(2, "", "an answer that cannot be read", began)
    return _told(1 if refusal else 0, "".join(a + "\n" for a in found), refusal, began)


def _answers(answer: bytes, at: int, kind: int) -> Tuple[str, List[str]]:
    """Why there is no address, and the addresses, of an answer of a name server."""
    flags, _, count = struct.unpack(">HHH", answer[2:8])
    found = []
    for _ in range(count):
        while answer[at]:
            if answer[at] >= 0xC0:  # the rest of the name is elsewhere
                at += 1
                break
            at += 1 + answer[at]
        at += 1
        of, _, _, size = struct.unpack(">HHIH", answer[at : at + 10])
        at += 10
        if of == kind:
            family = socket.AF_INET6 if kind == 28 else socket.AF_INET
            found.append(socket.inet_ntop(family, answer[at : at + size]))
        at += size
    code = flags & 15
    refusal = RCODES.get(code, "response code %d" % code) if code else ""
    return refusal or ("" if found else "no address"), found


def read_kubernetes(collector: Collector, pool: Any) -> None:
    """Objects of this node, where somebody left us a configuration to ask with."""
    places = (
        os.environ.get("KUBECONFIG", ""),
        "/etc/kubernetes/admin.conf",
        os.path.expanduser("~/.kube/config"),
    )
    config = next((p for p in places if p and os.access(p, os.R_OK)), "")
    if not config:
        return
    os.environ.setdefault("KUBECONFIG", config)
    host = socket.gethostname()
    every = (
        "get",
        "pod",
        "-A",
        "--field-selector",
        "spec.nodeName=" + host,
        "-o",
        "json",
    )
    jobs = [
        ["kubectl", "get", "node", host, "-o", "json"],
        ["kubectl"] + list(every),
        ["kubectl", "get", "network-attachment-definitions", "-A", "-o", "json"],
        ["kubectl", "get", "sriovnetworknodestates", "-A", "-o", "json"],
        ["kubectl", "get", "nicclusterpolicies", "-o", "json"],
        ["kubectl", "get", "networkpolicies", "-A", "-o", "json"],
        ["kubectl", "get", "namespaces", "-o", "json"],
    ]
    list(pool.map(lambda argv: collector.run(*argv), jobs))


def reach(
    collector: Collector, services: List[Dict[str, str]], asked: List[str]
) -> None:
    """Tries a TCP connection to every master that is named: `connect HOST:PORT`."""
    targets = set(asked)
    targets.update(s[n] for s in services for n in MASTERS if s.get(n))
    for target in sorted(targets)[:8]:
        host, _, port = target.rpartition("://")[2].partition("/")[0].rpartition(":")
        if not (host and port.isdigit()):
            continue
        began = time.monotonic()
        told, rc = "", 0
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), min(1.5, collector.deadline.left())
            ).close()
        except OSError as error:
            rc, told = (
                1,
                errno.errorcode.get(error.errno or 0, str(error) or "timed out"),
            )
        ms = int((time.monotonic() - began) * 1000)
        entry = {
            "rc": rc,
            "stdout": "connected\n" if rc == 0 else "",
            "stderr": told,
            "ms": ms,
            "timeout": False,
        }
        collector.cmds["connect %s:%s" % (host, port)] = entry


def read_verbs() -> Entry:
    """What pyverbs tells beyond sysfs, where the distribution has it."""
    try:
        from pyverbs import device as devices  # type: ignore[import-not-found]
    except Exception as error:
        return {"error": "%s: %s" % (type(error).__name__, error)}
    found = {}  # type: Dict[str, Any]
    try:
        for each in devices.get_device_list():
            name = each.name.decode()
            with devices.Context(name=name) as context:
                attributes = context.query_device()
                port = context.query_port(1)
                found[name] = {
                    "max_mr_size": attributes.max_mr_size,
                    "fw_ver": str(attributes.fw_version),
                    "max_qp": attributes.max_qp,
                    "active_mtu": 128 << int(port.active_mtu),
                    "gid_tbl_len": port.gid_tbl_len,
                }
    except Exception as error:
        return {"error": "%s: %s" % (type(error).__name__, error)}
    return found


def gather(collector: Collector, options: Any) -> None:
    """Reads everything, in the order of need, within the budget."""
    services = read_services(collector)
    collector.services = len(services)
    ports = Ports(collector, options.nics, services)
    collector.selected = ports.selected
    ovs = has_ovs(collector)
    with ThreadPoolExecutor(WORKERS) as pool:
        take_samples(collector, ports, pool, ovs)
        sampled = time.monotonic()
        read_files(collector)
        read_wheels(collector, services)
        read_netdevs(collector)
        read_functions(collector)
        read_configured(collector)
        nics = sorted(set(ports.bdfs.values()))
        inside = read_pci(collector, nics + gpus(collector))
        read_groups(collector, nics)
        read_interrupts(collector, nics)
        jobs = node_jobs(collector, ports, options) + (ovs_jobs() if ovs else [])
        jobs.extend(disk_jobs(collector))
        jobs.extend(["lspci", "-Dvvv", "-s", bdf] for bdf in inside)
        rest = [pool.submit(collector.run, *argv) for argv in jobs]  # type: List[Any]
        rest.append(pool.submit(reach, collector, services, options.connect))
        rest.append(pool.submit(read_kernel_log, collector))
        for job in rest:
            job.result()
        read_tables(collector, pool)
        if ovs:
            read_bridges(collector, pool)
        if options.kubernetes:
            get(collector, "127.0.0.1", 10249, "/proxyMode")
            ask_cluster_dns(collector, services, pool)
            read_kubernetes(collector, pool)
        if ovs or ports.selected:
            rest_s = max(0.0, sampled + SAMPLE_GAP_S - time.monotonic())
            time.sleep(min(collector.deadline.left(), rest_s))
            take_samples(collector, ports, pool, ovs)


def collect(options: Any) -> Entry:
    """The document of this node, whatever happens to parts of it.

    A read of a sick device may hang in the kernel, where no signal reaches it. Then,
    shortly after the budget, what was gathered is told and marked as late.
    """
    began = time.monotonic()
    deadline = Deadline(options.budget)
    collector = Collector(options.sysroot, deadline, not options.no_commands)
    faults = []  # type: List[str]

    def work() -> None:
        try:
            gather(collector, options)
        except Exception as error:
            faults.append("%s: %s" % (type(error).__name__, error))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(options.budget + GRACE_S)
    document = describe(collector, options)
    told = document["collector"]
    told["duration_ms"] = int((time.monotonic() - began) * 1000)
    told["late"] = worker.is_alive()
    if faults:
        told["fault"] = faults[0]
    return document


def describe(collector: Collector, options: Any) -> Entry:
    cmds, files = collector.snapshot()
    virt = str(cmds.get("systemd-detect-virt", {}).get("stdout", "")).strip()
    boot = collector.look("/proc/sys/kernel/random/boot_id").get("text", "")
    machine = str(collector.look("/etc/machine-id").get("text", "")).strip()
    node = {
        "hostname": options.hostname or socket.gethostname(),
        "boot_id": str(boot).strip(),
        "machine_id_hash": hashlib.sha256(machine.encode()).hexdigest()[:16],
        "virt": virt,
        "wall": {"t": time.time()},
        "role": options.role,
        "cohort": options.cohort,
    }
    return {
        "schema": SCHEMA,
        "collector": {
            "version": VERSION,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "euid": os.geteuid(),
            "active": bool(options.active),
            "selected": list(collector.selected),
            "services": collector.services,
        },
        "node": {key: value for key, value in node.items() if value != ""},
        "cmds": cmds,
        "files": files,
        "verbs": {} if options.no_commands else read_verbs(),
    }


def framed(document: Entry) -> str:
    """The document as one line with its sentinel; compressed when it is large."""
    line = json.dumps(document, sort_keys=True)
    if len(line) > MAX_PLAIN:
        packed = gzip.compress(line.encode(), 6)
        line = "###GZIP " + base64.b64encode(packed).decode()
    return "%s\n###END %s###\n" % (line, hashlib.sha256(line.encode()).hexdigest())


def arguments(argv: List[str]) -> Any:
    parser = argparse.ArgumentParser(description="Collects the facts of this node.")
    parser.add_argument("--sysroot", default="", help="read paths below this directory")
    parser.add_argument("--nics", default=[], type=_listed, help="devices, by comma")
    parser.add_argument(
        "--peers", default=[], type=_listed, help="SOURCE>TARGET, by comma"
    )
    parser.add_argument(
        "--connect", default=[], type=_listed, help="HOST:PORT, by comma"
    )
    parser.add_argument("--role", default="")
    parser.add_argument("--cohort", default="")
    parser.add_argument("--hostname", default="")
    parser.add_argument("--active", action="store_true", help="send pings to the peers")
    parser.add_argument("--ping-bytes", type=int, default=1472)
    parser.add_argument("--nft", action="store_true", help="read the nftables ruleset")
    parser.add_argument(
        "--kubernetes", action="store_true", help="ask kubectl and DNS as well"
    )
    parser.add_argument("--no-commands", action="store_true", help="read files only")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds")
    return parser.parse_args(argv)


def _listed(text: str) -> List[str]:
    return [word for word in text.split(",") if word]


def main(argv: Optional[List[str]] = None) -> int:
    options = arguments(sys.argv[1:] if argv is None else argv)
    document = collect(options)
    sys.stdout.write(framed(document))
    sys.stdout.flush()
    if document["collector"]["late"]:
        os._exit(0)  # a thread hangs in the kernel and would hold us for ever
    return 0


if __name__ == "__main__":
    sys.exit(main())

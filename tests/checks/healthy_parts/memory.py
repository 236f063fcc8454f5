"""Memory, limits, clocks and the host of a healthy node, and its single faults."""

import json

NODES = "/sys/devices/system/node"
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max processes             unlimited            unlimited            processes 
Max open files            1048576              1048576              files     
Max locked memory         {memlock:<20} {memlock:<20} bytes     
Max nice priority         0                    0                    
Max realtime priority     0                    0                    
Max realtime timeout      unlimited            unlimited            us        
"""  # noqa: W291 - the kernel pads its columns
STATUS = """\
Name:\tmooncake_client
Pid:\t{pid}
Uid:\t0\t0\t0\t0
VmPin:\t       0 kB
HugetlbPages:\t       0 kB
CapInh:\t0000000000000000
CapPrm:\t{capabilities}
CapEff:\t{capabilities}
CapBnd:\t{capabilities}
Mems_allowed:\t00000000,00000001
Mems_allowed_list:\t{nodes}
"""
TRACKING = (
    "C0000201,192.0.2.1,3,1790000000.123456789,{offset},-0.000001,0.00002,-12.3,0.001,"
    "0.05,0.0004,0.0002,64.2,{leap}\n"
)
TIMEDATECTL = (
    "Timezone=Etc/UTC\nLocalRTC=no\nCanNTP=yes\nNTP={ntp}\nNTPSynchronized={synced}\n"
)
CHRONYC = "chronyc -c tracking"
SWITCH = "leaf-{}"
NVMES = ("nvme0", "nvme1")
SMART = "nvme smart-log /dev/{} -o json"
RAM_KIB = 2 << 30
FREE_PAGES = 65536
DISKS = (
    "/dev/nvme0n1p2 / ext4 rw,relatime,errors=remount-ro 0 0\n"
    "/dev/md0 /srv/pages xfs rw,noatime 0 0\n"
    "/dev/nvme0n1p2 /var/lib/kubelet/pods/1/volume-subpaths/a ext4 ro 0 0\n"
)


def _meminfo(total_kib):
    rows = {
        "MemTotal": total_kib,
        "MemFree": total_kib // 2,
        "MemAvailable": total_kib // 2,
        "SwapTotal": 0,
        "SwapFree": 0,
    }
    text = "".join(f"{name}:{value:>16} kB\n" for name, value in rows.items())
    return text + "HugePages_Total:   131072\nHugepagesize:       2048 kB\n"


def _lldp(plan):
    rows = [
        {
            "name": rail.netdev,
            "chassis": [{"name": [{"value": SWITCH.format(rail.index)}]}],
            "port": [{"id": [{"value": f"Ethernet{plan.index}"}]}],
        }
        for rail in plan.rails
    ]
    return json.dumps({"lldp": [{"interface": rows}]})


def smart(**changed):
    """The health of a disk, as `nvme` prints it."""
    health = {
        "critical_warning": 0,
        "temperature": 309,
        "avail_spare": 100,
        "spare_thresh": 10,
        "percent_used": 3,
        "power_on_hours": 8123,
        "media_errors": 0,
        "num_err_log_entries": 0,
    }
    return json.dumps({**health, **changed}, indent=2) + "\n"


def cmds(plan):
    return {
        CHRONYC: TRACKING.format(offset="0.000012345", leap="Normal"),
        "timedatectl show": TIMEDATECTL.format(ntp="yes", synced="yes"),
        "systemctl --failed --plain --no-legend": "",
        "uname -r": f"{plan.kernel}\n",
        "lldpctl -f json0": _lldp(plan),
        **{SMART.format(name): smart() for name in NVMES},
    }


def _numa(plan, number):
    base = f"{NODES}/node{number}"
    pages = f"{base}/hugepages/hugepages-2048kB"
    return {
        f"{base}/meminfo": f"Node {number} MemTotal: {RAM_KIB // 2:>16} kB\n",
        f"{base}/cpulist": f"{number * 48}-{number * 48 + 47}\n",
        f"{pages}/nr_hugepages": f"{FREE_PAGES}\n",
        f"{pages}/free_hugepages": f"{FREE_PAGES}\n",
    }


def files(plan):
    proc = f"/proc/{plan.pid}"
    sys = "/proc/sys"
    thp = "/sys/kernel/mm/transparent_hugepage"
    cpu = "/sys/devices/system/cpu"
    return {
        f"{proc}/limits": LIMITS.format(memlock="unlimited"),
        f"{proc}/status": STATUS.format(
            pid=plan.pid, capabilities="00000000a80465fb", nodes="0"
        ),
        "/proc/meminfo": _meminfo(RAM_KIB),
        "/proc/mounts": f"tmpfs /dev/shm tmpfs rw,nosuid,size=67108864k 0 0\n{DISKS}",
        f"{sys}/vm/max_map_count": "16777216\n",
        f"{sys}/vm/nr_hugepages": "131072\n",
        f"{sys}/vm/overcommit_memory": "1\n",
        f"{sys}/vm/zone_reclaim_mode": "0\n",
        f"{sys}/vm/min_free_kbytes": "4194304\n",
        f"{sys}/kernel/numa_balancing": "0\n",
        f"{sys}/net/core/rmem_max": "16777216\n",
        f"{sys}/net/core/wmem_max": "16777216\n",
        f"{sys}/net/core/somaxconn": "4096\n",
        f"{sys}/net/ipv4/tcp_tw_reuse": "2\n",
        f"{thp}/enabled": "always [madvise] never\n",
        f"{thp}/defrag": "always defer [madvise] never\n",
        f"{cpu}/cpu0/cpufreq/scaling_governor": "performance\n",
        f"{cpu}/smt/control": "off\n",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "/etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\n',
        "/run/reboot-required": {"errno": "ENOENT"},
        "/sys/class/nvme": NVMES,
        **{f"/sys/class/nvme/{name}/transport": "pcie\n" for name in NVMES},
        **_numa(plan, 0),
        **_numa(plan, 1),
    }


def env(plan):
    return {
        "MC_STORE_USE_HUGEPAGE": "1",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(plan.segment_bytes),
    }


def _file(path, text):
    def change(document, plan):
        assert path in document["files"], path
        document["files"][path] = {"text": text}

    return change


def _output(line, text):
    def change(document, plan):
        document["cmds"][line]["stdout"] = text

    return change


def _small_memlock(document, plan):
    path = f"/proc/{plan.pid}/limits"
    document["files"][path] = {"text": LIMITS.format(memlock="8388608")}
    _no_capability(document, plan)


def _finite_memlock(document, plan):
    path = f"/proc/{plan.pid}/limits"
    memlock = str(plan.segment_bytes * 16)
    document["files"][path] = {"text": LIMITS.format(memlock=memlock)}
    _no_capability(document, plan)


def _no_capability(document, plan):
    text = STATUS.format(pid=plan.pid, capabilities="00000000a80425fb", nodes="0")
    assert not int("a80425fb", 16) >> 14 & 1
    document["files"][f"/proc/{plan.pid}/status"] = {"text": text}


def _limit(name, value):
    def change(document, plan):
        path = f"/proc/{plan.pid}/limits"
        rows = document["files"][path]["text"].splitlines(keepends=True)
        changed = [
            f"{name:<25} {value:<20} {value:<20} {row.split()[-1]}\n"
            if row.startswith(name)
            else row
            for row in rows
        ]
        assert rows != changed
        document["files"][path] = {"text": "".join(changed)}

    return change


def _environ(name, value):
    def change(document, plan):
        path = f"/proc/{plan.pid}/environ"
        items = document["files"][path]["text"].split("\0")
        kept = [item for item in items if item and not item.startswith(f"{name}=")]
        document["files"][path] = {"text": "\0".join([*kept, f"{name}={value}", ""])}

    return change


def _pinned_to(nodes):
    def change(document, plan):
        text = STATUS.format(pid=plan.pid, capabilities="00000000a80465fb", nodes=nodes)
        document["files"][f"/proc/{plan.pid}/status"] = {"text": text}

    return change


def _little_memory(document, plan):
    """Without huge pages the segment must be free memory."""
    _environ("MC_STORE_USE_HUGEPAGE", "1")(document, plan)
    document["files"][f"{NODES}/node0/hugepages/hugepages-2048kB/free_hugepages"] = {
        "text": "128\n"
    }


def _no_daemon(document, plan):
    document["cmds"][CHRONYC].update(
        rc=1, stdout="506 Cannot talk to daemon\n", stderr=""
    )
    document["cmds"]["timedatectl show"]["stdout"] = TIMEDATECTL.format(
        ntp="no", synced="no"
    )


def _oops(document, plan):
    entry = document["cmds"]["dmesg -J"]
    loaded = json.loads(entry["stdout"])
    text = "watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [mooncake_client:4242]"
    loaded["dmesg"].insert(2, {"pri": 0, "time": 800.0, "msg": text})
    entry["stdout"] = json.dumps(loaded)


def _moved_cable(document, plan):
    entry = document["cmds"]["lldpctl -f json0"]
    loaded = json.loads(entry["stdout"])
    row = loaded["lldp"][0]["interface"][6]
    row["chassis"] = [{"name": [{"value": SWITCH.format(1)}]}]
    entry["stdout"] = json.dumps(loaded)


def _dead_dimm(document, plan):
    text = f"Node 1 MemTotal: {RAM_KIB // 2 - (96 << 20):>16} kB\n"
    document["files"][f"{NODES}/node1/meminfo"] = {"text": text}


def _other_snc(document, plan):
    """Two NUMA nodes a socket, each with half of its memory."""
    for number in range(4):
        for path, text in _numa(plan, number).items():
            document["files"].setdefault(path, {"text": text})
        text = f"Node {number} MemTotal: {RAM_KIB // 4:>16} kB\n"
        document["files"][f"{NODES}/node{number}/meminfo"] = {"text": text}


def _nothing_left(document, plan):
    """The segment is in huge pages, and there is no headroom beside it."""
    rows = document["files"]["/proc/meminfo"]["text"].splitlines(keepends=True)
    kept = [row for row in rows if not row.startswith("MemAvailable")]
    text = "".join([*kept, "MemAvailable:    1048576 kB\n"])
    document["files"]["/proc/meminfo"] = {"text": text}


def _of_service(plan):
    return f"mooncake_client ({plan.pid})"


OFFSET = TRACKING.format


def _disks(old, new):
    def change(document, plan):
        entry = document["files"]["/proc/mounts"]
        entry["text"] = entry["text"].replace(old, new)

    return change


MUTANTS = [
    {"check": "mem-memlock", "subject": _of_service, "change": _small_memlock},
    {"check": "mem-cap-ipc-lock", "subject": _of_service, "change": _finite_memlock},
    {
        "check": "mem-nofile",
        "subject": _of_service,
        "status": "WARN",
        "change": _limit("Max open files", "1024"),
    },
    {
        "check": "mem-nproc",
        "subject": _of_service,
        "status": "WARN",
        "change": _limit("Max processes", "4096"),
    },
    {
        "check": "mem-max-map-count",
        "status": "WARN",
        "change": _file("/proc/sys/vm/max_map_count", "65530\n"),
    },
    {"check": "mem-hugepages", "change": _little_memory},
    {
        "check": "mem-hugepage-align",
        "status": "WARN",
        "change": _environ("MOONCAKE_GLOBAL_SEGMENT_SIZE", (64 << 30) - 4096),
    },
    {
        "check": "mem-numa-balancing",
        "status": "WARN",
        "change": _file("/proc/sys/kernel/numa_balancing", "1\n"),
    },
    {"check": "mem-free", "change": _nothing_left},
    {"check": "mem-numa-balance-dimm", "status": "WARN", "change": _dead_dimm},
    {
        "check": "mem-shm",
        "status": "WARN",
        "change": _file(
            "/proc/mounts", f"shm /dev/shm tmpfs rw,size=65536k 0 0\n{DISKS}"
        ),
    },
    {"check": "cpu-numa-nodes", "status": "WARN", "change": _other_snc},
    {
        "check": "time-clocksource",
        "status": "WARN",
        "change": _file(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"
        ),
    },
    {
        "check": "time-offset",
        "change": _output(CHRONYC, OFFSET(offset="10.449391606", leap="Normal")),
    },
    {
        "check": "time-offset",
        "status": "WARN",
        "change": _output(CHRONYC, OFFSET(offset="-0.250000000", leap="Normal")),
        "note": "warning",
    },
    {
        "check": "time-offset",
        "change": _output(CHRONYC, OFFSET(offset="0.0", leap="Not synchronised")),
        "note": "leap",
    },
    {"check": "time-sync-daemon", "change": _no_daemon},
    {
        "check": "host-kernel",
        "status": "WARN",
        "change": _file("/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\n'),
    },
    {
        "check": "host-uptime",
        "status": "WARN",
        "change": _file("/run/reboot-required", "*** System restart required ***\n"),
    },
    {"check": "host-oops", "change": _oops},
    {
        "check": "host-failed-units",
        "change": _output(
            "systemctl --failed --plain --no-legend",
            "kubelet.service loaded failed failed kubelet: The Kubernetes Node Agent\n",
        ),
        "log": True,
    },
    {"check": "host-lldp", "subject": "rail6", "change": _moved_cable},
    {
        "check": "mc-numa-pin",
        "subject": _of_service,
        "status": "WARN",
        "change": _pinned_to("0-1"),
    },
    {
        "check": "disk-smart",
        "subject": "nvme1",
        "change": _output(SMART.format("nvme1"), smart(critical_warning=4)),
    },
    {
        "check": "disk-smart",
        "subject": "nvme0",
        "status": "WARN",
        "change": _output(SMART.format("nvme0"), smart(percent_used=97)),
        "note": "worn",
    },
    {
        "check": "disk-smart",
        "subject": "nvme0",
        "status": "WARN",
        "change": _output(SMART.format("nvme0"), smart(media_errors=2)),
        "note": "media",
    },
    {"check": "disk-ssd-present", "change": _disks("xfs rw", "xfs ro"), "note": "ro"},
    {"check": "disk-ssd-present", "change": _disks("/dev/md0", "none"), "note": "gone"},
]

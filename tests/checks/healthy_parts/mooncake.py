"""Ports, names, environment and version of Mooncake, and their single faults."""

WHEEL = (
    "/usr/lib/python3/dist-packages/mooncake_transfer_engine-0.3.8.post1.dist-info/"
    "METADATA"
)
HOSTS = "127.0.0.1 localhost\n{ip} {name}\n"
LISTENING = (22, 12001, 15012, 50052)


def _row(address, port):
    return f"LISTEN 0      4096   {address}:{port}      0.0.0.0:*\n"


def _ss(plan):
    ports = (*LISTENING, *((2379, 2380) if plan.index < 8 else ()))
    return "".join(_row("0.0.0.0", port) for port in ports)


def cmds(plan):
    connect = (0, "connected\n", "")
    return {
        "ss -Hltn": _ss(plan),
        f"getent hosts {plan.hostname}": f"{plan.ip}       {plan.hostname}\n",
        f"connect {plan.master}:50051": connect,
        "mooncake_master --version": "0.3.8.post1\n",
    }


def files(plan):
    return {
        "/etc/hosts": HOSTS.format(ip=plan.ip, name=plan.hostname),
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "/proc/sys/net/ipv4/ip_local_reserved_ports": "15000-17000,50051-50052\n",
        WHEEL: "Metadata-Version: 2.1\nName: mooncake-transfer-engine\n"
        "Version: 0.3.8.post1\n",
    }


def env(plan):
    return {
        "MOONCAKE_MASTER": f"{plan.master}:50051",
        "MOONCAKE_LOCAL_HOSTNAME": plan.ip,
        "MOONCAKE_TE_META_DATA_SERVER": "http://192.0.2.200:8080/metadata",
        "UCX_TLS": "rc,self",
        "http_proxy": "http://192.0.2.201:3128",
        "no_proxy": "192.0.2.200,.cluster.local",
    }


def _environ(name, value):
    def change(document, plan):
        path = f"/proc/{plan.pid}/environ"
        items = document["files"][path]["text"].split("\0")
        kept = [item for item in items if item and not item.startswith(f"{name}=")]
        text = value(plan) if callable(value) else value
        if text is not None:
            kept.append(f"{name}={text}")
        document["files"][path] = {"text": "\0".join([*kept, ""])}

    return change


def _refused(document, plan):
    entry = document["cmds"][f"connect {plan.master}:50051"]
    entry.update(rc=1, stdout="", stderr="ECONNREFUSED")


def _on_loopback(document, plan):
    path = f"getent hosts {plan.hostname}"
    document["cmds"][path]["stdout"] = f"127.0.1.1       {plan.hostname}\n"


def _etcd_on_loopback(document, plan):
    entry = document["cmds"]["ss -Hltn"]
    for port in (2379, 2380):
        entry["stdout"] = entry["stdout"].replace(
            _row("0.0.0.0", port), _row("127.0.0.1", port)
        )


def _deaf(document, plan):
    entry = document["cmds"]["ss -Hltn"]
    entry["stdout"] = entry["stdout"].replace(_row("0.0.0.0", 50052), "")


def _not_reserved(document, plan):
    path = "/proc/sys/net/ipv4/ip_local_reserved_ports"
    document["files"][path] = {"text": "\n"}


def _older(document, plan):
    document["cmds"]["mooncake_master --version"]["stdout"] = "0.3.7.post2\n"
    text = document["files"][WHEEL]["text"]
    document["files"][WHEEL] = {"text": text.replace("0.3.8.post1", "0.3.7.post2")}


def _half_upgraded(document, plan):
    document["cmds"]["mooncake_master --version"]["stdout"] = "0.3.7.post2\n"


def _unknown_device(document, plan):
    """One variable is right, and the other names a device that is not there."""
    names = [rail.device for rail in plan.rails]
    _environ("MC_MS_FILTERS", ",".join(names))(document, plan)
    _environ("MOONCAKE_DEVICE", ",".join([*names[:-1], "mlx5_70"]))(document, plan)


def _clock_ahead(document, plan):
    document["node"]["wall"] = {"t": document["node"]["wall"]["t"] + 10}


MASTER = "192.0.2.200:50051"
MUTANTS = [
    {"check": "mc-master-reach", "subject": MASTER, "change": _refused},
    {"check": "k8s-dns-hosts", "change": _on_loopback},
    {"check": "mc-etcd", "change": _etcd_on_loopback},
    {"check": "mc-port-free", "change": _deaf},
    {"check": "mc-port-ephemeral", "status": "WARN", "change": _not_reserved},
    {"check": "mc-version-uniform", "change": _older},
    {"check": "mc-version-uniform", "change": _half_upgraded, "note": "half"},
    {
        "check": "mc-local-hostname",
        "subject": "MOONCAKE_LOCAL_HOSTNAME",
        "change": _environ("MOONCAKE_LOCAL_HOSTNAME", lambda p: p.rails[2].ip),
    },
    {
        "check": "mc-local-hostname",
        "subject": "MOONCAKE_LOCAL_HOSTNAME",
        "change": _environ("MOONCAKE_LOCAL_HOSTNAME", None),
        "note": "unset",
    },
    {
        "check": "mc-env-uniform",
        "subject": "UCX_TLS",
        "status": "WARN",
        "change": _environ("UCX_TLS", "tcp"),
    },
    {
        "check": "mc-env-uniform",
        "subject": "UCX_TLS",
        "status": "WARN",
        "change": _environ("UCX_TLS", None),
        "note": "unset",
    },
    {
        "check": "mc-proxy-env",
        "change": _environ("no_proxy", ".cluster.local"),
    },
    {"check": "mc-device-names", "change": _unknown_device},
    {"check": "time-spread", "change": _clock_ahead},
]

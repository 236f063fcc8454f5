"""Mooncake: its ports, its master, its names, its environment and its version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from checks.cohort import cohorts
from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.parse.ip_addr import links
from checks.parse.listeners import Listener, is_loopback, listeners
from checks.parse.meminfo import numa_nodes
from checks.parse.proc_status import memory_nodes
from checks.parse.services import Service, services
from checks.parse.sysctl import RESERVED, covered, ephemeral_ports, reserved_ports
from checks.parse.wheel_version import versions
from checks.ports import ports as every_port
from checks.rules.declare import NotHere, Subject, check, compared, fleetwide
from checks.rules.likeness import ask, by_cohort, of_peers, of_profile
from checks.rules.service import each_store, program, service_env

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from checks.facts import Result
    from checks.node import Node
    from checks.rules.declare import Judged, Over

MASTER_PORT = 50051
METRICS_PORT = 9003
METADATA_PORT = 8080
HANDSHAKE_PORT = 12001
ENGINE_PORTS = range(15000, 17001)
ETCD_PORTS = (2379, 2380)
_FIXED = (MASTER_PORT, METRICS_PORT, METADATA_PORT, HANDSHAKE_PORT)
_MASTER_VARIABLES = ("MOONCAKE_MASTER", "MOONCAKE_MASTER_SERVER", "MC_MASTER")
_METADATA_VARIABLES = (
    "MOONCAKE_TE_META_DATA_SERVER",
    "MOONCAKE_METADATA_SERVER",
    "MC_METADATA_SERVER",
)
_PORT_FLAGS = ("--rpc_port", "--port", "--rpc-port", "--metrics_port")
_DEVICE_VARIABLES = ("MC_MS_FILTERS", "MOONCAKE_DEVICE")
_DEVICE_FLAG = "--disaggregation-ib-device"
_ANY = frozenset({"0.0.0.0", "::", "*"})
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_NO_PROXY = ("no_proxy", "NO_PROXY")
_UNIFORM = re.compile(r"^(?:MC|MOONCAKE|UCX|NCCL|NVSHMEM|SGLANG|VLLM|GLOO)_")
_OWN = re.compile(
    r"LOCAL_HOSTNAME|HOST_IP|SIDE_CHANNEL_HOST|_RANK$|NODE_ID|_PORT$|BIND_ADDRESS"
)
"""Variables whose value is each node's own: only whether they are set is compared."""
_OF_DEVICES = re.compile(r"GID_INDEX|_TC$|TRAFFIC_CLASS|FILTERS|DEVICE|IB_HCA|MTU|_SL$")


def spans(node: Node) -> dict[str, range]:
    """Ports that Mooncake listens on, by what for."""
    found = {
        "master": range(MASTER_PORT, MASTER_PORT + 1),
        "metrics": range(METRICS_PORT, METRICS_PORT + 1),
        "metadata": range(METADATA_PORT, METADATA_PORT + 1),
        "handshake": range(HANDSHAKE_PORT, HANDSHAKE_PORT + 1),
        "etcd": range(ETCD_PORTS[0], ETCD_PORTS[1] + 1),
        "transfer engine": ENGINE_PORTS,
    }
    for port in node.profile.mooncake.ports:
        found[f"profile {port}"] = range(port, port + 1)
    for service in services(node.facts):
        if program(service) == "mooncake_master":
            for port in _own_ports(service):
                found[f"master {port}"] = range(port, port + 1)
    return found


def _own_ports(service: Service) -> list[int]:
    """Ports on its command line; the built-in one of a master."""
    told = [service.option(flag) or "" for flag in _PORT_FLAGS]
    found = [int(text) for text in told if text.isdigit()]
    if program(service) == "mooncake_master" and not any(told[:3]):
        found.append(MASTER_PORT)
    return found


@check(
    "mc-port-ephemeral",
    group="mooncake",
    severity="W",
    why="an outgoing connection can hold the port when the master starts again",
    fix=(
        f"sysctl -w {RESERVED}=50051,15000-17000",
        "and a file in /etc/sysctl.d",
    ),
    source=("Mooncake: master RPC 50051", "kernel: ip-sysctl.rst"),
    needs=(
        "/proc/sys/net/ipv4/ip_local_port_range",
        "/proc/sys/net/ipv4/ip_local_reserved_ports",
    ),
)
def port_ephemeral(node: Node, _: None) -> Outcome:
    outgoing = ephemeral_ports(node.facts)
    inside = {
        name: range(max(span.start, outgoing.start), min(span.stop, outgoing.stop))
        for name, span in spans(node).items()
    }
    taken = {name: span for name, span in inside.items() if span}
    seen = f"outgoing ports {outgoing.start}-{outgoing.stop - 1}"
    if not taken:
        return ok(seen, "no port of Mooncake among them")
    reserved = reserved_ports(node.facts)
    loose = {n: span for n, span in taken.items() if not covered(span, reserved)}
    told = ", ".join(sorted({_span(span) for span in (loose or taken).values()}))
    if loose:
        return bad(f"{seen} hold {told}, not reserved", "reserved ports")
    return ok(f"{seen}; {told} reserved", "reserved ports")


def _span(span: range) -> str:
    return str(span.start) if len(span) == 1 else f"{span.start}-{span.stop - 1}"


@check(
    "mc-port-free",
    group="mooncake",
    severity="E",
    why="bind: address already in use; or the service runs and nobody can reach it",
    fix=("ss -Hltnp: who listens", "another --rpc_port, or stop the other process"),
    source=("Mooncake: troubleshooting", "R75 Mooncake#180"),
    needs=("ss -Hltn", "/proc/<pid>/cmdline"),
)
def port_free(node: Node, _: None) -> Outcome:
    every = listeners(node.facts)
    heard = {each.port for each in every}
    own = {
        port: program(service)
        for service in services(node.facts)
        for port in _own_ports(service)
    }
    deaf = [
        f"{port} ({name})" for port, name in sorted(own.items()) if port not in heard
    ]
    if deaf:
        return bad(f"nobody listens on {', '.join(deaf)}", "its services listening")
    if own:
        ports = ", ".join(str(port) for port in sorted(own))
        return ok(f"{ports} listening", "its services listening")
    if services(node.facts):
        return ok("a service runs; its ports are not told", "no port taken")
    return _before_rollout(node, every)


def _before_rollout(node: Node, every: Sequence[Listener]) -> Outcome:
    wanted = {*_FIXED, *node.profile.mooncake.ports}
    taken = [
        f"{each.port}{f' ({each.process})' if each.process else ''}"
        for each in every
        if each.port in wanted and not each.process.startswith("mooncake")
    ]
    expected = f"{', '.join(map(str, sorted(wanted)))} free"
    if taken:
        told = ", ".join(sorted(set(taken)))
        return bad(f"taken by another process: {told}", expected)
    return ok(f"{len(every)} listening sockets, none of these", expected)


def masters(node: Node) -> dict[str, str]:
    """HOST:PORT of every master that is named, with who names it."""
    found: dict[str, str] = {}
    if node.profile.mooncake.master:
        found[_target(node.profile.mooncake.master)] = "profile"
    for service in services(node.facts):
        for name in _MASTER_VARIABLES:
            text = (service.env or {}).get(name, "").strip()
            if text and "://" not in text:
                found.setdefault(_target(text), name)
    for result in _connects(node.facts):
        found.setdefault(_target(" ".join(result.reading.words)), "connect")
    for target in _probed(node.facts):
        found.setdefault(target, "probe")
    return {target: by for target, by in found.items() if target}


def _connects(facts: Facts, *target: str) -> list[Result]:
    """Our own attempts at masters; those `from` a rail went to the rail of a peer."""
    found = facts.find("connect", *target)
    return [result for result in found if "from" not in result.reading.words]


def _probed(facts: Facts) -> list[str]:
    """Masters that somebody tried by hand: `nc HOST 50051`, `curl HOST:9003`."""
    found = []
    for name in ("nc", "ncat"):
        for result in facts.find(name):
            host, port = ("", "", *result.reading.words)[-2:]
            if port == str(MASTER_PORT):
                found.append(f"{host}:{port}")
    for result in facts.find("curl"):
        urls = [urlsplit(word) for word in result.reading.words if "://" in word]
        found += [
            f"{url.hostname}:{MASTER_PORT}"
            for url in urls
            if url.netloc.endswith(f":{METRICS_PORT}")
        ]
    return found


def _target(text: str) -> str:
    """HOST:PORT, with the master's own port where none is named."""
    text = text.strip().rstrip("/")
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        return f"{text}:{MASTER_PORT}" if text else ""
    return f"{host}:{port}"


def _host(target: str) -> str:
    return target.rpartition(":")[0].strip("[]")


def _each_master(node: Node) -> list[Subject[str]]:
    found = masters(node)
    if not found:
        service_env(node)
        raise NotHere("no service names a master")
    return [
        Subject(item=target, label=target, key="master") for target in sorted(found)
    ]


@check(
    "mc-master-reach",
    group="mooncake",
    severity="C",
    why="no segment can be mounted and no object found without the master",
    fix=(
        "the address in MOONCAKE_MASTER, and what the master listens on",
        "firewall: TCP 50051 and 9003 from every node",
    ),
    source=("R75 Mooncake#2798", "R78 Mooncake#709"),
    needs=("connect HOST:PORT", "/proc/<pid>/environ"),
    over=_each_master,
)
def master_reach(node: Node, target: str) -> Outcome:
    host = _host(target)
    expected = "a TCP connection"
    if host in _ANY:
        return bad(f"{host} is no address to connect to", "the address of the master")
    if is_loopback(host) and not _is_served_here(node.facts, target):
        return bad(f"{host} is this node, and no master is here", expected)
    tried = _tries(node.facts, target)
    if not tried:
        raise Unread("missing", f"connect {target}", "not tried")
    return _best(node, [_tried(result) for result in tried], expected)


def _is_served_here(facts: Facts, target: str) -> bool:
    if any(program(each) == "mooncake_master" for each in services(facts)):
        return True
    port = target.rpartition(":")[2]
    try:
        return any(str(each.port) == port for each in listeners(facts))
    except Unread:
        return False


def _tries(facts: Facts, target: str) -> list[Result]:
    """What connected to the master: our own attempt, `nc`, or `curl` of its metrics."""
    host, port = _host(target), target.rpartition(":")[2]
    found = _connects(facts, target)
    for name in ("nc", "ncat"):
        found += [r for r in facts.find(name) if r.reading.words[-2:] == (host, port)]
    for result in facts.find("curl"):
        urls = [urlsplit(word) for word in result.reading.words if "://" in word]
        if any(url.hostname == host for url in urls):
            found.append(result)
    return found


def _tried(result: Result) -> tuple[bool, str, float]:
    """Whether it connected, what it said, and how long it took."""
    if result.rc == 127:
        result.ended()
    if result.timed_out:
        return False, "no answer", result.ms
    said = result.complaint if result.rc != 0 else "connected"
    if result.rc == 0:
        result.text()
    return result.rc == 0, said, result.ms


def _best(
    node: Node, tried: Sequence[tuple[bool, str, float]], expected: str
) -> Outcome:
    failed = [said for connected, said, _ in tried if not connected]
    if failed:
        return bad(failed[0], expected)
    slow_ms = max(ms for _, _, ms in tried)
    limit_ms = node.profile.mooncake.latency_warning_ms
    if slow_ms > limit_ms:
        told = f"{expected} within {limit_ms:.0f} ms"
        return bad(f"connected after {slow_ms:.0f} ms", told, severity="W")
    return ok("connected", expected)


@check(
    "mc-etcd",
    group="mooncake",
    severity="C",
    why="peers cannot reach metadata that listens on loopback, or is not healthy",
    fix=("--listen-client-urls http://0.0.0.0:2379 --advertise-client-urls ...",),
    source=("Mooncake: troubleshooting, etcd",),
    needs=("ss -Hltn", "curl http://HOST:2379/health", "etcdctl endpoint health"),
)
def etcd(node: Node, _: None) -> Outcome:
    expected = "healthy, listening on an address of the node"
    sick = [text for text in _health(node.facts) if text != "healthy"]
    if sick:
        return bad(sick[0], expected)
    told = bool(_health(node.facts))
    try:
        heard = [each for each in listeners(node.facts) if each.port == ETCD_PORTS[0]]
    except Unread:
        if told:
            return ok("healthy", expected)
        raise
    if heard and all(each.only_loopback for each in heard):
        return bad(f"listens on {heard[0].address} only", expected)
    if heard:
        where = ", ".join(sorted({each.address or "*" for each in heard}))
        return ok(f"listens on {where}", expected)
    if told:
        return ok("healthy", expected)
    raise NotHere("no etcd listens on this node")


def _health(facts: Facts) -> list[str]:
    """What health checks said: `healthy`, or what is wrong."""
    found = []
    for result in facts.find("curl"):
        if any(word.endswith("/health") for word in result.reading.words):
            good = result.rc == 0 and re.search(r'"health":\s*"?true', result.stdout)
            found.append("healthy" if good else f"{result.line}: {result.complaint}")
    for result in facts.find("etcdctl"):
        if "health" in result.reading.words:
            well = result.rc == 0 and "unhealthy" not in result.stdout
            found.append("healthy" if well else f"{result.line}: {result.complaint}")
    return found


@check(
    "mc-proxy-env",
    group="mooncake",
    severity="E",
    why="requests for metadata go to the proxy, which does not know the cluster",
    fix=("no_proxy=<metadata host>,<master host> in the environment of the service",),
    source=("Mooncake: troubleshooting, proxies",),
    needs=("/proc/<pid>/environ",),
)
def proxy_env(node: Node, _: None) -> Outcome:
    env = service_env(node)
    proxies = [name for name in _PROXIES if env.get(name)]
    if not proxies:
        return ok("no proxy")
    hosts = sorted(_metadata_hosts(env))
    exempt = [
        word.strip().lstrip(".*")
        for name in _NO_PROXY
        for word in env.get(name, "").split(",")
        if word.strip()
    ]
    caught = [h for h in hosts if not any(_exempts(word, h) for word in exempt)]
    expected = "no proxy, or the metadata host in no_proxy"
    if caught:
        return bad(f"{proxies[0]} catches {', '.join(caught)}", expected)
    return ok(f"{proxies[0]} is set, {', '.join(hosts) or 'no host'} exempt", expected)


def _exempts(word: str, host: str) -> bool:
    return word in {"", host} or host.endswith(f".{word}")


def _metadata_hosts(env: Mapping[str, str]) -> set[str]:
    found = set()
    for name in _METADATA_VARIABLES:
        text = env.get(name, "")
        if "://" in text:
            found.add(urlsplit(text).hostname or "")
    return found - {""}


def _named_ports(node: Node) -> list[Subject[None]]:
    """The node, touching the ports that are named: what ails them is the cause."""
    try:
        named = {name for names in _named_devices(node).values() for name in names}
        touched = [p.touches for p in every_port(node.facts) if p.touches & named]
    except Unread:
        return [Subject(item=None)]
    return [Subject(item=None, touches=frozenset().union(*touched))]


@check(
    "mc-device-names",
    group="mooncake",
    severity="C",
    why="Mooncake drops names it does not find: No matched device found",
    fix=("the names of `rdma link` in MC_MS_FILTERS or MOONCAKE_DEVICE",),
    source=("Mooncake: troubleshooting",),
    needs=("/proc/<pid>/environ", "/sys/class/infiniband", "rdma -j -d link"),
    follows=("nic-count", "nic-port-state", "nic-naming"),
    over=_named_ports,
)
def device_names(node: Node, _: None) -> Outcome:
    named = _named_devices(node)
    wanted = node.profile.mooncake.devices
    expected = "ACTIVE ports" if wanted is None else f"{wanted} devices (profile)"
    if not named:
        told = "no device is named: Mooncake finds them itself"
        return ok(told, expected) if wanted is None else bad(told, expected)
    known = {name: port for port in every_port(node.facts) for name in port.touches}
    for origin, names in named.items():
        strange = [name for name in names if name not in known]
        if strange:
            return bad(f"no such device: {', '.join(strange)} ({origin})", expected)
        down = [name for name in names if known[name].state() != "ACTIVE"]
        if down:
            return bad(f"not active: {', '.join(down)} ({origin})", expected)
        if wanted is not None and len(names) < wanted:
            return bad(f"{len(names)} devices ({origin})", expected)
    told = "; ".join(f"{name}: {', '.join(each)}" for name, each in named.items())
    return ok(told, expected)


def _named_devices(node: Node) -> dict[str, tuple[str, ...]]:
    """Devices by the variable or flag that names them; a `@` or `:port` is cut off."""
    env = service_env(node)
    texts = {name: env.get(name, "") for name in _DEVICE_VARIABLES}
    for service in services(node.facts):
        texts.setdefault(_DEVICE_FLAG, service.option(_DEVICE_FLAG) or "")
    found = {
        name: tuple(w.strip() for w in re.split(r"[,;]", text) if w.strip())
        for name, text in texts.items()
    }
    return {
        name: names
        for name, names in found.items()
        if names and not names[0].startswith(("auto", "{", "["))
    }


@compared(
    "mc-version-uniform",
    group="mooncake",
    severity="E",
    why="protocol and choice of GID differ by version: 0.3.7.post2 works, .8.post1 not",
    fix=("pip install mooncake-transfer-engine==VERSION on every node",),
    source=("R15 Mooncake#1384",),
    needs=("mooncake_master --version", "*/mooncake*.dist-info/METADATA"),
)
def version(node: Node, _: None) -> Outcome | str:
    found = versions(node.facts)
    different = sorted(set(found.values()))
    if len(different) > 1:
        told = ", ".join(f"{found[source]} ({source})" for source in sorted(found))
        return bad(told, "one version on a node")
    return different[0]


@fleetwide(
    "mc-env-uniform",
    group="mooncake",
    severity="W",
    why="a variable that one node lacks is a default that nobody chose",
    fix=("the same environment file for every node of a role",),
    source=("R06 nccl#718", "R86 vllm#27083"),
    needs=("/proc/<pid>/environ",),
    follows=(
        "roce-gid-pinned",
        "roce-gid-index-uniform",
        "roce-tclass",
        "roce-mc-mtu",
        "roce-max-mr",
        "nic-count",
        "nic-port-state",
        "gdr-peermem-loaded",
        "mem-memlock",
        "mem-hugepages",
        "mem-hugepage-align",
        "mem-free",
        "mc-local-hostname",
        "mc-master-reach",
        "mc-device-names",
        "mc-proxy-env",
    ),
)
def env_uniform(nodes: Sequence[Node]) -> Iterator[Judged]:
    for cohort in cohorts(nodes):
        names = {name for node in cohort.nodes for name in _uniform(node)}
        votes = list(ask(cohort.nodes, _held, _each_variable(names)))
        yield from (vote.judged() for vote in votes if not vote.is_open)
        for base, same in by_cohort(cohort.nodes, votes):
            for vote in same:
                said = of_profile("mc-env-uniform", vote)
                yield vote.judged(said or of_peers(str(vote.held), base))


def _uniform(node: Node) -> list[str]:
    return sorted(name for name in node.env if _UNIFORM.match(name))


def _each_variable(names: set[str]) -> Over:
    """Every variable that any like node has; of a node whose services were read."""

    def over(node: Node) -> list[Subject[str]]:
        service_env(node)
        if not names:
            raise NotHere("no variable of Mooncake, UCX or NCCL is set")
        return [
            Subject(item=name, label=name, key=name, touches=_touched(node, name))
            for name in sorted(names)
        ]

    return over


def _touched(node: Node, name: str) -> frozenset[str]:
    """A variable about devices touches them all, so that their failure explains it."""
    if not _OF_DEVICES.search(name):
        return frozenset({f"pid {each.pid}" for each in services(node.facts)})
    try:
        return frozenset().union(*(port.touches for port in node.ports))
    except Unread:
        return frozenset()


def _held(node: Node, name: str) -> str:
    value = node.env.get(name)
    if value is None:
        return "unset"
    if _OWN.search(name):
        return "set"
    return _without_own_names(node, value) if value else "empty"


def _without_own_names(node: Node, value: str) -> str:
    """A value with the node's own name and addresses taken out."""
    own = node.once("own names", lambda: _own_names(node))
    for word in own:
        if word in value:
            value = re.sub(rf"(?<![\w.]){re.escape(word)}(?![\w.])", "<own>", value)
    return value


def _own_names(node: Node) -> tuple[str, ...]:
    """The longest first: an address may begin with another one."""
    words = {node.facts.said("hostname"), *_addresses(node)} - {""}
    return tuple(sorted(words, key=lambda word: (-len(word), word)))


def _addresses(node: Node) -> tuple[str, ...]:
    """Addresses of the node besides loopback, as far as known."""
    try:
        every = links(node.facts)
    except Unread:
        return ()
    return tuple(
        address.ip
        for name, link in every.items()
        if name != "lo"
        for address in link.addresses
    )


@check(
    "mc-numa-pin",
    group="mooncake",
    severity="W",
    why="one store a NUMA node: memory of the other socket crosses the interconnect",
    fix=("numactl --cpunodebind=N --membind=N mooncake_client ...",),
    source=("article: one store per NUMA node",),
    needs=("/proc/<pid>/status", "/sys/devices/system/node"),
    over=each_store("status"),
)
def numa_pin(node: Node, service: Service) -> Outcome:
    if "mooncake" not in " ".join(service.argv):
        raise NotHere("no store")
    every = numa_nodes(node.facts)
    if len(every) < 2:
        return ok("there is one NUMA node")
    allowed = memory_nodes(node.facts, service.pid)
    told = f"memory of NUMA {', '.join(map(str, allowed))}"
    return (
        ok(told, "one NUMA node") if len(allowed) == 1 else bad(told, "one NUMA node")
    )

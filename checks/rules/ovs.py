"""Open vSwitch: whether it lives, and what its database says of ports and offload.

The database tells what vswitchd wrote last, also after it has died: what is derived
from it means something only while vswitchd answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Facts, Result, Unread
from checks.finding import Outcome, bad, ok
from checks.ovs_layout import Layout, is_virtual, layout
from checks.parse.ovs_appctl import asked, parse_version
from checks.parse.ovs_db import Row, answers, parse_table, root, row_samples, rows
from checks.parse.ovs_flows import bridges_with_flows, flows
from checks.parse.ovs_presence import RUN, is_present
from checks.rules.declare import NotHere, Subject, check, compared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.node import Node

LIST = "ovs-vsctl --timeout=5 --format=json list"
_GONE = (
    "cannot connect",
    "failed to connect",
    "cannot read pidfile",
    "connection refused",
    "no such file or directory",
    "connection reset",
    "connection timed out",
    "end of file",
    "timeout",
)
_ALARM = {142, -14}
"""What `--timeout` and `-T` end with: SIGALRM, as a shell or as Python tells it."""
_GAP_S = 1.0


def demand(node: Node) -> None:
    """Refuses where there is no Open vSwitch, and the profile does not ask for it."""
    if node.profile.ovs.is_expected:
        return
    if not is_present(node.facts):
        raise NotHere("no Open vSwitch on this node")


def on_ovs(node: Node) -> list[Subject[None]]:
    """The node, where it runs Open vSwitch."""
    demand(node)
    return [Subject(item=None)]


def each_row(node: Node, table: str) -> list[Subject[Row]]:
    """Records of a table by name."""
    demand(node)
    return [
        Subject(item=row, label=row.name, touches=frozenset({row.name}))
        for row in sorted(rows(node.facts, table), key=lambda row: row.name)
    ]


def each_interface(node: Node) -> list[Subject[Row]]:
    """Interfaces of the database by name."""
    return each_row(node, "Interface")


def each_bridge(node: Node) -> list[Subject[Row]]:
    """Bridges of the database by name."""
    return each_row(node, "Bridge")


@compared(
    "ovs-expected",
    group="ovs",
    severity="E",
    why="the node was made from another image, or its configuration did not run",
    fix=("provision the node anew, or correct `ovs.expected` of the profile",),
    source=("catalogue B.1",),
    needs=(RUN, "ip -j -d addr"),
)
def expected(node: Node, _: None) -> Outcome | str:
    present = is_present(node.facts)
    told = "runs Open vSwitch" if present else "no Open vSwitch"
    if node.profile.ovs.expected is None and not node.profile.ovs.is_expected:
        return told
    wanted = node.profile.ovs.is_expected
    said = "runs Open vSwitch (profile)" if wanted else "no Open vSwitch (profile)"
    return ok(told, said, value=told) if present == wanted else bad(told, said)


@check(
    "ovs-vswitchd-alive",
    group="ovs",
    severity="C",
    why="the database keeps link_state=up after vswitchd died: the datapath is frozen",
    fix=(
        "systemctl status ovs-vswitchd openvswitch-switch",
        "journalctl -b -u ovs-vswitchd",
        "systemctl restart openvswitch-switch, after the node is drained",
    ),
    source=("experiment: a killed vswitchd leaves link_state=up in the database",),
    needs=("ovs-appctl -T 3 version", f"{RUN}/ovs-vswitchd.pid"),
    requires=("ovs-expected",),
    over=on_ovs,
)
def alive(node: Node, _: None) -> Outcome:
    wanted = "an answer to `ovs-appctl version`"
    runs = asked(node.facts, "version")
    if not runs:
        return _alive_by_pid(node.facts, wanted)
    refused: Unread | None = None
    complaints = []
    for run in runs:
        try:
            complaint = _complaint(run)
        except Unread as error:
            refused = refused or error
            continue
        if not complaint:
            return ok(f"ovs-vswitchd {parse_version(run.stdout)} answers", wanted)
        complaints.append(complaint)
    if complaints:
        return bad(complaints[0], wanted)
    assert refused is not None
    raise refused


def _complaint(run: Result) -> str:
    """Why vswitchd did not answer; "" where it did. Unread where that is not told."""
    if run.timed_out or run.rc in _ALARM:
        return f"vswitchd does not answer within {run.ms:.0f} ms"
    run.ended()
    if run.rc == 0:
        parse_version(run.text())
        return ""
    told = run.stderr.lower()
    if "permission denied" in told or "not permitted" in told:
        raise Unread("denied", run.line, run.complaint)
    if any(word in told for word in _GONE):
        return run.stderr.strip().splitlines()[-1][:200]
    raise Unread("failed", run.line, f"rc {run.rc}: {run.complaint}")


def _alive_by_pid(facts: Facts, wanted: str) -> Outcome:
    """Without an answer, only a missing or stale pid is evidence, and of death."""
    path = f"{RUN}/ovs-vswitchd.pid"
    try:
        pid = facts.number(path)
    except Unread as error:
        if error.kind == "absent":
            return bad(f"there is no {path}", wanted)
        if error.kind == "missing":
            raise Unread("missing", "ovs-appctl version", "not collected") from None
        raise
    if not facts.exists(f"/proc/{pid}"):
        return bad(f"{path} names process {pid}, which does not run", wanted)
    raise Unread("missing", "ovs-appctl version", f"{pid} runs; nobody asked it")


@check(
    "ovs-db-reachable",
    group="ovs",
    severity="C",
    why="without its database vswitchd cannot be configured, and nobody sees its state",
    fix=(
        "systemctl status ovsdb-server",
        f"ls -l {RUN}/db.sock",
        "systemctl start ovsdb-server",
    ),
    source=("ovs-vsctl(8)",),
    needs=(f"{LIST} Open_vSwitch",),
    requires=("ovs-expected",),
    over=on_ovs,
)
def reachable(node: Node, _: None) -> Outcome:
    wanted = "ovs-vsctl reaches ovsdb-server"
    runs = answers(node.facts)
    if not runs:
        return _socket_is_gone(node.facts, wanted)
    refused: Unread | None = None
    for run in runs:
        try:
            if _is_unreachable(node.facts, run):
                return bad(_said(run), wanted)
            _whole(run)
        except Unread as error:
            refused = refused or error
            continue
        return ok("it answers", wanted)
    assert refused is not None
    raise refused


def _socket_is_gone(facts: Facts, wanted: str) -> Outcome:
    listed = facts.names(RUN)
    if "db.sock" in listed:
        raise Unread("missing", f"{LIST} Open_vSwitch", "not collected")
    return bad(f"there is no {RUN}/db.sock", wanted)


def _is_unreachable(facts: Facts, run: Result) -> bool:
    if run.timed_out or run.rc in _ALARM:
        return True
    run.ended()
    told = run.stderr.lower()
    if "database connection failed" not in told:
        return False
    if "permission denied" in told and facts.collector.get("euid") != 0:
        raise Unread("denied", run.line, run.complaint)
    return True


def _whole(run: Result) -> None:
    """Refuses an answer that is none."""
    if run.reading.words[:1] == ("list",) and _is_json(run):
        parse_table(run.json(), run.reading.words[-1])
    else:
        run.text()


def _is_json(run: Result) -> bool:
    return run.reading.option("--format", "-f") == "json"


def _said(run: Result) -> str:
    if run.timed_out or run.rc in _ALARM:
        return f"no answer within {run.ms:.0f} ms"
    return run.complaint


@check(
    "ovs-cfg-converged",
    group="ovs",
    severity="E",
    why="vswitchd has not applied what the database asks: it hangs or waits for DPDK",
    fix=("read ovs-vswitchd.log", "ovs-appctl version", "restart vswitchd"),
    source=("ovs-vswitchd.conf.db(5): next_cfg, cur_cfg",),
    needs=(f"{LIST} Open_vSwitch",),
    requires=("ovs-db-reachable", "ovs-vswitchd-alive"),
    over=on_ovs,
)
def converged(node: Node, _: None) -> Outcome:
    samples = _configurations(node.facts)
    first_t, (asked_first, _current) = samples[0]
    last_t, (wanted, current) = samples[-1]
    expected_ = "cur_cfg reaches next_cfg"
    if current >= wanted:
        return ok(f"next_cfg {wanted}, cur_cfg {current}", expected_)
    if len(samples) < 2 or _too_near(first_t, last_t):
        told = f"next_cfg {wanted}, cur_cfg {current}: one sample is not enough"
        raise Unread("missing", f"{LIST} Open_vSwitch", told)
    if any(now >= then for _, (then, now) in samples[:-1]):
        told = f"next_cfg {wanted}, cur_cfg {current}: it lags in the last sample only"
        raise Unread("missing", f"{LIST} Open_vSwitch", told)
    if current >= asked_first:
        return ok(f"next_cfg {wanted}, cur_cfg {current}: it follows", expected_)
    return bad(f"next_cfg {wanted}, cur_cfg {current} in every sample", expected_)


def _configurations(
    facts: Facts,
) -> Sequence[tuple[float | None, tuple[int, int]]]:
    try:
        return [
            (t, _configuration(row)) for t, row in row_samples(facts, "Open_vSwitch")
        ]
    except Unread as error:
        if error.kind != "missing":
            raise
        return [(None, _configuration(root(facts)))]


def _configuration(row: Row) -> tuple[int, int]:
    wanted, current = row.number("next_cfg"), row.number("cur_cfg")
    if wanted is None or current is None:
        raise Unread("empty", "Open_vSwitch.cur_cfg", "an empty set")
    return wanted, current


def _too_near(first_t: float | None, last_t: float | None) -> bool:
    return first_t is not None and last_t is not None and last_t - first_t < _GAP_S


@check(
    "ovs-iface-error",
    group="ovs",
    severity="C",
    why="vswitchd could not open the device, and `ovs-vsctl add-port` returned 0",
    fix=(
        "ip link show NAME: is the driver loaded, was the NIC renamed",
        "fix the name with udev, or ovs-vsctl del-port and add-port",
    ),
    source=("R71 ovs-issues#110", "experiment: add-port of a missing NIC returns 0"),
    needs=(f"{LIST} Interface",),
    requires=("ovs-db-reachable", "ovs-vswitchd-alive"),
    over=each_interface,
)
def iface_error(node: Node, row: Row) -> Outcome:
    error = row.word("error")
    return bad(error, "no error") if error else ok("no error", "no error")


@check(
    "ovs-iface-ofport",
    group="ovs",
    severity="E",
    why="-1: the port could not be made; empty: its bridge was never configured",
    fix=(
        "read ovs-vswitchd.log for `unknown datapath type`",
        "modprobe openvswitch, or correct Bridge.datapath_type",
    ),
    source=("experiment: an unsupported datapath_type leaves no error text",),
    needs=(f"{LIST} Interface",),
    requires=("ovs-db-reachable", "ovs-vswitchd-alive", "ovs-iface-error"),
    follows=("ovs-module-params",),
    over=each_interface,
)
def iface_ofport(node: Node, row: Row) -> Outcome:
    ofport = row.number("ofport")
    if ofport is None:
        return bad("no ofport: it was never configured", "a port number")
    if ofport < 0:
        return bad(f"ofport {ofport}: it could not be made", "a port number")
    return ok(f"ofport {ofport}", "a port number")


def _each_with_mtu(node: Node) -> list[Subject[Row]]:
    """Interfaces that have an MTU: tunnels and patch ports have none."""
    return [each for each in each_interface(node) if not is_virtual(each.item)]


@check(
    "ovs-mtu-request",
    group="ovs",
    severity="E",
    why="a port below its uplink drops large packets; `ip link set mtu` is undone",
    fix=("ovs-vsctl set Interface NAME mtu_request=MTU, on every port of the bridge",),
    source=(
        "R70",
        "R69 atmosphere#949",
        "experiment: mtu_request is applied over ip link set",
    ),
    needs=(
        f"{LIST} Interface",
        f"{LIST} Port",
        f"{LIST} Bridge",
        "/sys/class/net/*/mtu",
    ),
    requires=(
        "ovs-db-reachable",
        "ovs-vswitchd-alive",
        "ovs-iface-error",
        "ovs-iface-ofport",
    ),
    over=_each_with_mtu,
)
def mtu_request(node: Node, row: Row) -> Outcome:
    requested, mtu = row.number("mtu_request"), row.number("mtu")
    if mtu is None:
        raise Unread("empty", f"Interface.mtu of {row.name}", "it has no MTU")
    if requested is not None and requested != mtu:
        return bad(f"mtu {mtu}", f"mtu_request {requested}")
    kernel = _kernel_mtu(node.facts, row.name)
    if requested is not None and kernel not in {None, requested}:
        return bad(f"the kernel has {kernel}", f"mtu_request {requested}")
    return _beside_uplinks(node, layout(node), row, mtu)


def _beside_uplinks(node: Node, arranged: Layout, row: Row, mtu: int) -> Outcome:
    shown = f"mtu {mtu}"
    if arranged.is_uplink(row):
        least = node.profile.ovs.mtu
        if least is not None and mtu < least:
            return bad(shown, f"at least {least} (profile)")
        return ok(shown, f"at least {least} (profile)" if least else "as requested")
    uplinks = arranged.uplinks_beside(row)
    sizes = [size for size in (u.number("mtu") for u in uplinks) if size is not None]
    if sizes and mtu < max(sizes):
        names = ", ".join(u.name for u in uplinks)
        return bad(shown, f"at least {max(sizes)}, as its uplink {names}")
    return ok(shown, f"at least {max(sizes)}" if sizes else "it has no uplink beside")


def _kernel_mtu(facts: Facts, name: str) -> int | None:
    try:
        return facts.number(f"/sys/class/net/{name}/mtu")
    except Unread as error:
        if error.kind in {"missing", "absent"}:
            return None
        raise


@compared(
    "ovs-hw-offload",
    group="ovs",
    severity="E",
    why="without it traffic between VFs and the wire takes the slow path on the CPU",
    fix=(
        "ovs-vsctl set Open_vSwitch . other_config:hw-offload=true",
        "restart vswitchd: the value is read at its start only",
    ),
    source=("ovs-vswitchd.conf.db(5): other_config:hw-offload",),
    needs=(f"{LIST} Open_vSwitch",),
    requires=("ovs-db-reachable",),
    over=on_ovs,
)
def hw_offload(node: Node, _: None) -> Outcome | str:
    value = root(node.facts).map("other_config").get("hw-offload")
    if value is not None and str(value) not in {"true", "false"}:
        return bad(f"{value!r} is no boolean for OVS", "true or false in small letters")
    told = "true" if value == "true" else "unset or false (the default)"
    wanted = node.profile.ovs.hw_offload
    if wanted is None:
        return told
    expected_ = f"{str(wanted).lower()} (profile)"
    agrees = (value == "true") == wanted
    return ok(told, expected_, value=told) if agrees else bad(told, expected_)


def _drifting(node: Node, *keys: str) -> str:
    other = root(node.facts).map("other_config")
    return ", ".join(f"{key}={other.get(key, 'unset')}" for key in keys)


_DRIFT = "a tuning of one node only: its flow caches behave unlike those of its peers"


@compared(
    "ovs-max-idle",
    group="ovs",
    severity="I",
    why=_DRIFT,
    fix=("ovs-vsctl remove Open_vSwitch . other_config max-idle",),
    source=("ovs-vswitchd.conf.db(5)",),
    needs=(f"{LIST} Open_vSwitch",),
    requires=("ovs-db-reachable",),
    over=on_ovs,
)
def max_idle(node: Node, _: None) -> str:
    return _drifting(node, "max-idle")


@compared(
    "ovs-flow-limit-cfg",
    group="ovs",
    severity="I",
    why=_DRIFT,
    fix=("ovs-vsctl remove Open_vSwitch . other_config flow-limit",),
    source=("ovs-vswitchd.conf.db(5)",),
    needs=(f"{LIST} Open_vSwitch",),
    requires=("ovs-db-reachable",),
    over=on_ovs,
)
def flow_limit_cfg(node: Node, _: None) -> str:
    return _drifting(node, "flow-limit")


@compared(
    "ovs-n-handlers",
    group="ovs",
    severity="I",
    why=_DRIFT,
    fix=("set n-handler-threads and n-revalidator-threads alike on all nodes",),
    source=("ovs-vswitchd.conf.db(5)",),
    needs=(f"{LIST} Open_vSwitch",),
    requires=("ovs-db-reachable",),
    over=on_ovs,
)
def n_handlers(node: Node, _: None) -> str:
    return _drifting(node, "n-handler-threads", "n-revalidator-threads")


@compared(
    "ovs-version",
    group="ovs",
    severity="W",
    why="the package was upgraded and the daemon not restarted, or nodes differ",
    fix=("install one version everywhere", "restart vswitchd on a drained node"),
    source=("R67 ovn#160", "experiment: ovs_version of the database may be empty"),
    needs=("ovs-appctl -T 3 version", "ovs-vswitchd --version"),
    requires=("ovs-vswitchd-alive",),
    over=on_ovs,
)
def version(node: Node, _: None) -> Outcome | str:
    installed = _installed(node.facts)
    runs = [r for r in asked(node.facts, "version") if r.rc == 0]
    if not runs:
        if installed is None:
            raise Unread("missing", "ovs-appctl version", "not collected")
        return installed
    running = parse_version(runs[0].text())
    if installed is None or installed == running:
        return running
    older = _numbers(running) < _numbers(installed)
    told = f"{running} runs, {installed} is installed"
    return bad(told, "what is installed runs", severity="E" if older else "W")


def _installed(facts: Facts) -> str | None:
    try:
        return parse_version(facts.result("ovs-vswitchd").text())
    except Unread as error:
        if error.kind in {"missing", "no tool"}:
            return None
        raise


def _numbers(text: str) -> tuple[int, ...]:
    head = text.partition("-")[0]
    return tuple(int(part) for part in head.split(".") if part.isdigit())


@check(
    "ovs-tc-policy",
    group="ovs",
    severity="E",
    why="connection tracking in hardware needs the flow tables of tc in software",
    fix=("ovs-vsctl set Open_vSwitch . other_config:tc-policy=none",),
    source=("R68 sriov-network-operator PR#38",),
    needs=(f"{LIST} Open_vSwitch", "ovs-ofctl dump-flows BRIDGE"),
    requires=("ovs-db-reachable",),
    over=on_ovs,
)
def tc_policy(node: Node, _: None) -> Outcome:
    policy = str(root(node.facts).map("other_config").get("tc-policy", "unset"))
    wanted = "none, or no connection tracking in the flows"
    if policy != "skip_sw":
        return ok(policy, wanted)
    used = _tracks_connections(node.facts)
    told = f"{policy}, and flows {'track' if used else 'do not track'} connections"
    return bad(told, wanted) if used else ok(told, wanted)


def _tracks_connections(facts: Facts) -> bool:
    refused: Unread | None = None
    seen = False
    for bridge in bridges_with_flows(facts):
        try:
            found = flows(facts, bridge)
        except Unread as error:
            refused = error
            continue
        seen = True
        for flow in found:
            matched = any(name.startswith("ct_") for name in flow.match)
            if matched or "ct(" in flow.actions:
                return True
    if refused is not None or not seen:
        raise refused or Unread("missing", "ovs-ofctl dump-flows", "not collected")
    return False

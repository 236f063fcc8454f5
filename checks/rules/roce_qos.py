"""RoCE QoS: trust, PFC, traffic class, DCBX, ECN, congestion control, lossy mode."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, skip
from checks.gids import atoi
from checks.parse.dcb import NOT_SUPPORTED, dcb_dscp, dcb_pfc, dcb_willing
from checks.parse.garbled import Garbled
from checks.parse.mlnx_qos import qos
from checks.parse.mlxreg import register, register_devices
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.optional import UNREADABLE, optional
from checks.rules.roce_subjects import each_qos_netdev, is_soft, port_of, variables
from checks.rules.subjects import each_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from checks.facts import Facts
    from checks.node import Node
    from checks.ports import Port

CLASSES = ("MC_IB_TC", "NCCL_IB_TC", "UCX_IB_TRAFFIC_CLASS", "NVSHMEM_IB_TRAFFIC_CLASS")
IBGDA = "NVSHMEM_IB_ENABLE_IBGDA"
DEVX_USERS = (IBGDA, "NVSHMEM_IBGDA_NUM_RC_PER_PE", "NVSHMEM_IBGDA_NIC_HANDLER")
_TRUTHS = frozenset({"1", "true", "yes", "on", "y"})
_GLOBAL = re.compile(r"tclass\s*=\s*(\d+)", re.IGNORECASE)
_BROKEN = frozenset({"garbled", "truncated", "timeout", "empty"})
_PPCC = "PPCC"
_ROCE_ACCL = "ROCE_ACCL"
_LOSSY = ("roce_adp_retrans_en", "roce_tx_window_en", "roce_slow_restart_en")


# What the NIC does with a packet


def trust_of(facts: Facts, netdev: str) -> str:
    """`dscp` or `pcp`; both texts where the sources contradict each other."""
    return _agreed(
        {
            "mlnx_qos": lambda: _trust_of_mlnx(facts, netdev),
            "sysfs": lambda: _trust_of_sysfs(facts, netdev),
            "dcb": lambda: _trust_of_dcb(facts, netdev),
        }
    )


def pfc_of(facts: Facts, netdev: str) -> str:
    """Priorities with PFC, `3,5` or `none`; both where sources contradict."""
    return _agreed(
        {
            "dcb": lambda: _shown(dcb_pfc(facts, netdev)),
            "mlnx_qos": lambda: _shown(_pfc_of_mlnx(facts, netdev)),
        }
    )


def lossless(facts: Facts, netdev: str) -> frozenset[int]:
    """Priorities that every source says have PFC."""
    told = pfc_of(facts, netdev).split("; ")
    each = [frozenset(map(int, re.findall(r"\d+", t.split(" ")[-1]))) for t in told]
    return frozenset.intersection(*each)


def mapping_of(facts: Facts, netdev: str) -> Mapping[int, int]:
    """DSCP to priority as far as it is told."""
    found = optional(lambda: _mapping_of_mlnx(facts, netdev), UNREADABLE)
    return dcb_dscp(facts, netdev) if found is None else found


def priority_of(facts: Facts, netdev: str, dscp: int) -> int:
    """The priority of a DSCP; Unread where it is not told. DSCP 0 is priority 0."""
    mapping = mapping_of(facts, netdev)
    if dscp in mapping:
        return mapping[dscp]
    if dscp == 0:
        return 0
    raise Unread("missing", f"QoS of {netdev}", f"DSCP {dscp} is not mapped")


def _agreed(readers: Mapping[str, Callable[[], str]]) -> str:
    """What all sources that can be read say; the first refusal where none can.

    A source that was cut off or is broken could contradict the others: it refuses.
    """
    told: dict[str, str] = {}
    refused: list[Unread] = []
    for name, read in readers.items():
        try:
            told[name] = read()
        except Unread as error:
            if error.kind in _BROKEN:
                raise
            refused.append(error)
    if not told:
        telling = [error for error in refused if error.kind != "missing"]
        raise (telling or refused)[0]
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{name} {value}" for name, value in told.items())


def _trust_of_mlnx(facts: Facts, netdev: str) -> str:
    told = qos(facts, netdev)
    if not told.trust:
        raise told.told("the trust state")
    return told.trust


def _trust_of_sysfs(facts: Facts, netdev: str) -> str:
    path = f"/sys/class/net/{netdev}/qos/trust"
    text = facts.line(path).lower()
    if text not in {"dscp", "pcp", "both"}:
        raise Garbled(path, f"no trust state: {text!r}")
    return text


def _trust_of_dcb(facts: Facts, netdev: str) -> str:
    if not dcb_dscp(facts, netdev):
        raise Unread("absent", f"dcb app show dev {netdev}", "no DSCP is mapped")
    return "dscp"


def _pfc_of_mlnx(facts: Facts, netdev: str) -> tuple[int, ...]:
    told = qos(facts, netdev)
    if told.pfc is None:
        raise told.told("the priorities with PFC")
    return told.pfc


def _mapping_of_mlnx(facts: Facts, netdev: str) -> Mapping[int, int]:
    told = qos(facts, netdev)
    if told.dscp_prio is None:
        raise told.told("the mapping of DSCP")
    return told.dscp_prio


def _shown(priorities: Iterable[int]) -> str:
    return ",".join(str(each) for each in sorted(priorities)) or "none"


def _unless_virtual(node: Node, netdev: str) -> None:
    """QoS of a virtual function is set, and can be read, on its physical one only.

    Soft-RoCE has no QoS but that of the network device below it.
    """
    port = port_of(node, netdev)
    if port is not None and is_soft(port):
        raise NotHere("soft-RoCE has no QoS of its own")
    silent = [
        result
        for result in node.facts.find("dcb", "pfc", netdev)
        if NOT_SUPPORTED in result.stderr
    ]
    if silent and ((port is not None and port.is_vf()) or node.is_vm):
        raise NotHere("a virtual function: QoS is set on the physical function")


# Rules


@compared(
    "roce-trust",
    group="roce",
    severity="E",
    why="a NIC that trusts PCP puts untagged RoCE packets in priority 0, without PFC",
    fix=("mlnx_qos -i NETDEV --trust=dscp, persistently",),
    source=("R55 nccl#2383, nvshmem PR#25",),
    needs=("mlnx_qos -i NETDEV", "/sys/class/net/*/qos/trust", "dcb -j app"),
    over=each_qos_netdev,
)
def trust(node: Node, netdev: str) -> Outcome | str:
    try:
        told = trust_of(node.facts, netdev)
    except Unread:
        _unless_virtual(node, netdev)
        raise
    return _by_profile(told, node.profile.roce.trust)


@compared(
    "roce-pfc",
    group="roce",
    severity="E",
    why="without PFC on the priority of RoCE a congested switch drops its packets",
    fix=("mlnx_qos -i NETDEV --pfc=0,0,0,1,0,0,0,0 (priority 3), persistently",),
    source=("R55 nccl#2383", "R56 byteps#179, nccl#378"),
    needs=("dcb -j pfc show dev NETDEV", "mlnx_qos -i NETDEV"),
    over=each_qos_netdev,
)
def pfc(node: Node, netdev: str) -> Outcome | str:
    try:
        told = pfc_of(node.facts, netdev)
    except Unread:
        _unless_virtual(node, netdev)
        raise
    wanted = node.profile.roce.pfc_priorities
    return _by_profile(told, "" if wanted is None else _shown(wanted))


def _by_profile(told: str, wanted: str) -> Outcome | str:
    """Judged by the profile where it says something, else left to the peers."""
    if not wanted:
        contradiction = bad(told, "one value from all sources")
        return contradiction if "; " in told else told
    expected = f"{wanted} (profile)"
    return ok(told, expected, value=told) if told == wanted else bad(told, expected)


@compared(
    "roce-dscp2prio",
    group="roce",
    severity="E",
    why="a DSCP that maps to a priority without PFC is lossy, whatever the switch does",
    fix=("mlnx_qos -i NETDEV --dscp2prio set,DSCP,PRIORITY, persistently",),
    source=("R55 nccl#2383",),
    needs=("mlnx_qos -i NETDEV", "dcb -j app show dev NETDEV"),
    requires=("roce-trust",),
    follows=("roce-pfc",),
    over=each_qos_netdev,
)
def dscp2prio(node: Node, netdev: str) -> Outcome | str:
    try:
        if trust_of(node.facts, netdev) == "pcp":
            return skip("the NIC trusts PCP: DSCP decides nothing")
        mapping = mapping_of(node.facts, netdev)
    except Unread:
        _unless_virtual(node, netdev)
        raise
    wanted = node.profile.roce.traffic_class
    if wanted is None:
        return _ranges(mapping)
    dscp = wanted >> 2
    priority = priority_of(node.facts, netdev, dscp)
    seen = f"DSCP {dscp} is priority {priority}"
    on = lossless(node.facts, netdev)
    expected = f"a priority with PFC: {_shown(on)}"
    if priority in on or node.profile.roce.pfc_priorities == ():
        return ok(seen, expected, value=_ranges(mapping))
    return bad(seen, expected)


def _ranges(mapping: Mapping[int, int]) -> str:
    """`0-7:0 8-15:1 26:3`: neighbours of one priority together."""
    runs: list[list[int]] = []
    for dscp in sorted(mapping):
        if runs and runs[-1][1] == dscp - 1 and mapping[dscp] == mapping[runs[-1][0]]:
            runs[-1][1] = dscp
        else:
            runs.append([dscp, dscp])
    shown = [
        f"{low}-{high}:{mapping[low]}" if high > low else f"{low}:{mapping[low]}"
        for low, high in runs
    ]
    return " ".join(shown) or "nothing is mapped"


def _each_class_user(node: Node) -> Iterable[Subject[str]]:
    """The NICs with QoS, under the name of their RDMA device where it is known."""
    for each in each_qos_netdev(node):
        port = port_of(node, each.item)
        yield Subject(
            item=each.item,
            label=port.label if port else each.label,
            key=each.key,
            touches=each.touches | (port.touches if port else frozenset()),
        )


@check(
    "roce-tclass",
    group="roce",
    severity="W",
    why="RoCE packets of a class without PFC are dropped under load: retry exceeded",
    fix=(
        "set MC_IB_TC (and NCCL_IB_TC) to 4 x a DSCP of the lossless priority",
        "echo 106 > /sys/class/infiniband/DEVICE/tc/1/traffic_class",
        "programs that use DevX ignore the global class: set theirs",
    ),
    source=("R55 nccl#2383, nvshmem PR#25",),
    needs=(
        "/sys/class/infiniband/*/tc/1/traffic_class",
        "/proc/PID/environ",
        "mlnx_qos -i NETDEV",
        "dcb -j pfc show dev NETDEV",
        "dcb -j app show dev NETDEV",
    ),
    follows=("roce-trust", "roce-pfc", "roce-dscp2prio"),
    over=_each_class_user,
)
def traffic_class(node: Node, netdev: str) -> Outcome:
    facts = node.facts
    try:
        on = lossless(facts, netdev)
        if trust_of(facts, netdev) == "pcp":
            return skip("the NIC trusts PCP: the traffic class decides nothing")
    except Unread:
        _unless_virtual(node, netdev)
        raise
    used = _classes(node, netdev)
    expected = f"a priority with PFC: {_shown(on)}"
    if node.profile.roce.pfc_priorities == ():
        return ok(f"{_named(used)}; no priority is meant to be lossless", expected)
    wanted = node.profile.roce.traffic_class
    seen, lossy = [], []
    for name, value in used:
        priority = priority_of(facts, netdev, value >> 2)
        text = f"{name}={value}: DSCP {value >> 2}, priority {priority}"
        seen.append(text)
        if priority not in on or (wanted is not None and value >> 2 != wanted >> 2):
            lossy.append(text)
    if lossy:
        return bad("; ".join(lossy), expected, severity="E")
    if seen:
        return ok("; ".join(seen), expected)
    return _unset(priority_of(facts, netdev, 0), on, expected, wanted)


def _unset(
    priority: int, on: frozenset[int], expected: str, wanted: int | None
) -> Outcome:
    """No class is set anywhere: packets have DSCP 0."""
    seen = f"no traffic class is set: DSCP 0, priority {priority}"
    if wanted is not None and wanted >> 2:
        return bad(seen, f"traffic class {wanted} (profile)", severity="E")
    if priority in on or not on:
        return ok(seen, expected)
    return bad(seen, expected, severity="W")


def _classes(node: Node, netdev: str) -> list[tuple[str, int]]:
    """(who, traffic class) of everything that sets one, and of who bypasses it."""
    told = variables(node, (*CLASSES, *DEVX_USERS))
    found = [
        (name, atoi(value))
        for _, name, value in told
        if name in CLASSES and re.match(r"\s*\+?\d", value) and atoi(value) <= 255
    ]
    port = port_of(node, netdev)
    everywhere = _global_class(port) if port is not None else None
    if everywhere:
        found.append(("Global tclass", everywhere))
    own = {name for _, name, _ in told}
    devx = any(_is_devx(name, value) for _, name, value in told)
    if devx and "NVSHMEM_IB_TRAFFIC_CLASS" not in own:
        found.append(("DevX queue pairs of NVSHMEM, unset", 0))
    return list(dict.fromkeys(found))


def _is_devx(name: str, value: str) -> bool:
    """A process makes queue pairs by DevX, which the driver gives no class."""
    if name == IBGDA:
        return value.strip().lower() in _TRUTHS
    return name in DEVX_USERS


def _global_class(port: Port) -> int | None:
    """The class that the driver gives to all queue pairs; None where it gives none."""
    path = port.device_path("tc/1/traffic_class")
    try:
        text = port.facts.line(path)
    except Unread as error:
        if error.kind in {"missing", "absent"}:
            return None
        raise
    found = _GLOBAL.search(text)
    if found is None:
        if text:
            raise Garbled(path, f"no traffic class: {text[:60]!r}")
        return None
    return int(found.group(1)) or None


def _named(used: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in used) or "no class is set"


@check(
    "roce-dcbx-willing",
    group="roce",
    severity="W",
    why="who else may set QoS on the NIC undoes trust and PFC at the next link-up",
    fix=("mlnx_qos -i NETDEV -d os", "stop lldpad, or let it alone configure DCB"),
    source=("mlnx-tools mlnx_qos",),
    needs=("mlnx_qos -i NETDEV", "dcb -j ets show dev NETDEV"),
    over=each_qos_netdev,
)
def willing(node: Node, netdev: str) -> Outcome:
    seen: list[str] = []
    faults: list[str] = []
    refused: list[Unread] = []
    try:
        told = qos(node.facts, netdev)
        if told.lldpad_runs:
            faults.append("lldpad is running and may overwrite the settings")
        if told.dcbx:
            (seen if told.dcbx.startswith("OS") else faults).append(f"DCBX {told.dcbx}")
        else:
            refused.append(told.told("who controls DCBX"))
    except Unread as error:
        refused.append(error)
    try:
        obeys = dcb_willing(node.facts, netdev)
        (faults if obeys else seen).append("willing" if obeys else "not willing")
    except Unread as error:
        refused.append(error)
    if faults:
        return bad("; ".join(faults), "only the operating system sets QoS")
    broken = [error for error in refused if error.kind in _BROKEN]
    if seen and not broken:
        return ok(", ".join(seen), "only the operating system sets QoS")
    _unless_virtual(node, netdev)
    telling = [error for error in refused if error.kind != "missing"]
    raise (broken or telling or refused)[0]


@compared(
    "roce-buffers",
    group="roce",
    severity="I",
    why="receive buffers and cable length decide how much arrives after a pause",
    fix=("mlnx_qos -i NETDEV --buffer_size=..., --cable_len=...",),
    source=("mlnx-tools mlnx_qos",),
    needs=("mlnx_qos -i NETDEV",),
    over=each_qos_netdev,
)
def buffers(node: Node, netdev: str) -> str:
    told = qos(node.facts, netdev)
    if not told.buffers:
        raise told.told("the receive buffers")
    return f"{told.buffers}; cable {told.cable or 'not told'}"


@compared(
    "roce-ecn",
    group="roce",
    severity="W",
    why="DCQCN works only where notification and reaction are on at both ends",
    fix=("echo 1 > /sys/class/net/NETDEV/ecn/roce_np/enable/PRIORITY (and roce_rp)",),
    source=("kernel mlx5: ecn", "article: ECN"),
    needs=("/sys/class/net/*/ecn/roce_np/enable/*", "/sys/class/net/*/ecn/roce_rp/*"),
    over=each_qos_netdev,
)
def ecn(node: Node, netdev: str) -> Outcome | str:
    on = {side: _ecn_priorities(node, netdev, side) for side in ("roce_np", "roce_rp")}
    told = ", ".join(f"{side} {_shown(found)}" for side, found in on.items())
    mark = _ecn_mark(node, netdev)
    wanted = node.profile.roce.ecn_priorities
    if wanted is None:
        return f"{told}{mark}"
    expected = f"roce_np and roce_rp {_shown(wanted)} (profile)"
    if all(set(wanted) <= found for found in on.values()):
        return ok(f"{told}{mark}", expected, value=f"{told}{mark}")
    return bad(told, expected)


def _ecn_priorities(node: Node, netdev: str, side: str) -> set[int]:
    base = f"/sys/class/net/{netdev}"
    paths = node.facts.matching(f"{base}/ecn/{side}/enable/*")
    if not paths:
        node.facts.line(f"{base}/mtu")
        raise NotHere(f"the driver of {netdev} shows no {side} below ecn/")
    return {int(path.rsplit("/", 1)[-1]) for path in paths if node.facts.number(path)}


def _ecn_mark(node: Node, netdev: str) -> str:
    path = f"/sys/class/net/{netdev}/ecn/roce_np/cnp_dscp"
    try:
        return f", cnp_dscp {node.facts.number(path)}"
    except Unread as error:
        if error.kind in {"missing", "absent"}:
            return ""
        raise


def _each_nic(node: Node) -> list[Subject[frozenset[str]]]:
    """The names of every NIC: of the selected ports, else those mlxreg was asked."""
    try:
        ports = each_port(node)
    except Unread:
        names = register_devices(node.facts)
        if not names:
            raise
        named = [frozenset({name}) for name in names]
        return [Subject(item=n, label=min(n), touches=n) for n in named]
    return [
        Subject(item=each.touches, label=each.label, key=each.key, touches=each.touches)
        for each in ports
    ]


@compared(
    "roce-cc-algo",
    group="roce",
    severity="W",
    why="nodes with different congestion control share links unfairly",
    fix=(
        "mlxreg -d BDF --reg_name PPCC ... --set cmd_type=..., as on the other nodes",
    ),
    source=("OCI check_rttcc_status", "article: RTT-based congestion control"),
    needs=("mlxreg -d BDF --reg_name PPCC --get --indexes ...",),
    over=_each_nic,
)
def congestion_control(node: Node, nic: frozenset[str]) -> Outcome | str:
    fields = _opt_in(node, nic, _PPCC)
    if "value" not in fields:
        raise Garbled("mlxreg --reg_name PPCC", "no field value")
    on = bool(fields["value"] & 1)
    told = "RTT-based: on" if on else "RTT-based: off"
    wanted = node.profile.roce.rtt_cc
    if wanted is None:
        return told
    expected = f"RTT-based: {'on' if wanted else 'off'} (profile)"
    return ok(told, expected, value=told) if on == wanted else bad(told, expected)


@compared(
    "roce-lossy",
    group="roce",
    severity="W",
    why="a NIC needs either lossless priorities or its lossy-network acceleration",
    fix=("mlxreg -d BDF --reg_name ROCE_ACCL --set roce_tx_window_en=1,...",),
    source=("R79 ucx#6000",),
    needs=("mlxreg -d BDF --reg_name ROCE_ACCL --get", "dcb -j pfc show dev NETDEV"),
    over=_each_nic,
)
def lossy(node: Node, nic: frozenset[str]) -> Outcome | str:
    fields = _opt_in(node, nic, _ROCE_ACCL)
    told = ", ".join(
        f"{name.removeprefix('roce_').removesuffix('_en')} "
        f"{fields.get(name, 'not there')}"
        for name in _LOSSY
    )
    if any(not fields.get(name) for name in _LOSSY) and _is_lossy(node, nic):
        return bad(f"{told}; no priority has PFC", "lossless, or all three on")
    return told


def _is_lossy(node: Node, nic: frozenset[str]) -> bool:
    """PFC is known to be off on every priority of the NIC."""
    try:
        return any(
            nic & each.touches and not lossless(node.facts, each.item)
            for each in each_qos_netdev(node)
        )
    except Unread:
        return False


@compared(
    "roce-adaptive-routing",
    group="roce",
    severity="W",
    why="packets out of order on a path between NICs of which one forbids it are lost",
    fix=("mlxreg -d BDF --reg_name ROCE_ACCL --set adaptive_routing_forced_en=...",),
    source=("R79 ucx#6000",),
    needs=("mlxreg -d BDF --reg_name ROCE_ACCL --get",),
    over=_each_nic,
)
def adaptive_routing(node: Node, nic: frozenset[str]) -> str:
    fields = _opt_in(node, nic, _ROCE_ACCL)
    found = {k: v for k, v in sorted(fields.items()) if "adaptive_routing" in k}
    if not found:
        raise NotHere("the NIC has no adaptive routing")
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _opt_in(node: Node, nic: frozenset[str], name: str) -> Mapping[str, int]:
    """A register; registers are read on demand only, so their absence is no fault."""
    try:
        return register(node.facts, nic, name)
    except Unread as error:
        if error.kind in {"missing", "no tool"}:
            raise NotHere(f"register {name} was not read (opt-in)") from None
        raise

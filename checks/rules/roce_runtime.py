"""RoCE at run time: RDMA namespaces, largest region, counters, used-up resources."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Unread, first
from checks.finding import Outcome, bad, info, ok
from checks.gids import atoi
from checks.parse.garbled import Garbled
from checks.parse.hw_counters import SATURATED, port_counters, statistics
from checks.parse.rdma_link import core_is_absent
from checks.parse.rdma_system import netns_mode, persistent_mode
from checks.parse.verbs import pyverbs_number, verbs_device
from checks.rules.declare import NotHere, check, compared
from checks.rules.roce_subjects import not_roce, variables
from checks.rules.segment import planned
from checks.rules.subjects import each_port

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.node import Node
    from checks.parse.hw_counters import Change
    from checks.ports import Port

RETRANSMISSIONS = frozenset(
    {
        "out_of_sequence",
        "packet_seq_err",
        "local_ack_timeout_err",
        "implied_nak_seq_err",
        "rnr_nak_retry_err",
        "roce_slow_restart",
        "out_of_buffer",
        "req_cqe_error",
        "rcvd_seq_err",
        "completer_retry_err",
        "retry_exceeded_err",
        "retry_rnr_exceeded_err",
        "out_of_seq_request",
        "rcvd_rnr_err",
        "send_err",
        "RetransSegs",
        "rexmits",
        "to_retransmits",
        "seq_err_naks_rcvd",
    }
)
"""By driver: mlx5, then soft-RoCE, then others."""
CONGESTION = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
_PAUSE = re.compile(r"^[rt]x_prio\d_pause$")
_RESOURCES = ("qp", "cq", "mr")


@compared(
    "roce-rdma-netns",
    group="roce",
    severity="C",
    why="shared device plugins need shared RDMA namespaces, SR-IOV isolation exclusive",
    fix=(
        "options ib_core netns_mode=0 (exclusive) or 1 in /etc/modprobe.d",
        "rebuild the initramfs and reboot: the mode is set before drivers load",
    ),
    source=("R58 k8s-rdma-shared-dev-plugin#84", "R59 sriov-network-operator#481"),
    needs=("rdma -j system", "/sys/module/ib_core/parameters/netns_mode"),
)
def namespaces(node: Node, _: None) -> Outcome | str:
    try:
        mode = netns_mode(node.facts)
    except Unread:
        if core_is_absent(node.facts):
            raise NotHere("the kernel has no RDMA core") from None
        raise
    wanted = node.profile.roce.rdma_netns
    expected = f"{wanted} (profile)"
    if wanted and mode != wanted:
        return bad(mode, expected)
    after = persistent_mode(node.facts)
    if after and after != mode:
        return bad(
            f"{mode} now, {after} by /etc/modprobe.d",
            expected if wanted else "the same after a reboot",
            severity="W",
        )
    return ok(mode, expected, value=mode) if wanted else mode


@check(
    "roce-max-mr",
    group="roce",
    severity="C",
    why="a segment above the largest memory region of the NIC cannot be registered",
    fix=("set MC_MAX_MR_SIZE to max_mr_size, so that segments are split",),
    source=("R63 Mooncake#304", "Mooncake troubleshooting: max_mr_size"),
    needs=("ibv_devinfo -v", "pyverbs: max_mr_size", "/proc/PID/environ"),
    over=each_port,
)
def max_region(node: Node, port: Port) -> Outcome:
    segment = _largest_region(node)
    limit = first(
        lambda: verbs_device(port.facts, port.device).number("max_mr_size"),
        lambda: pyverbs_number(port.facts, port.device, "max_mr_size"),
    )
    seen = f"max_mr_size {limit}"
    expected = f"at least {segment} bytes, the largest region"
    return ok(seen, expected) if limit >= segment else bad(seen, expected)


def _largest_region(node: Node) -> int:
    """What is registered at once: the planned segment, split by MC_MAX_MR_SIZE."""
    told = variables(node, ("MC_MAX_MR_SIZE",))
    segment = planned(node)
    if segment is None:
        raise NotHere("no segment is planned: no process and no profile tells one")
    parts = [atoi(value) for _, _, value in told]
    return min([segment, *[part for part in parts if part > 0]])


def _changes(port: Port, names: frozenset[str]) -> tuple[list[Change], list[Unread]]:
    """Changes of the counters of a port that have these names, and refusals."""
    every = port_counters(port.facts, port.path("")[:-1])
    found = [every[name][1] for name in sorted(names & every.keys())]
    changes = [each for each in found if not isinstance(each, Unread)]
    return changes, [each for each in found if isinstance(each, Unread)]


@check(
    "roce-counters-retrans",
    group="roce",
    severity="W",
    why="packets are lost or repeated now: no flow control, bad link or slow receiver",
    fix=("compare PFC, trust and traffic class", "look at link_downed, symbol errors"),
    source=("R56 byteps#179, nccl#378", "gpud#943"),
    needs=("/sys/class/infiniband/*/ports/*/hw_counters/*",),
    requires=("nic-port-state",),
    over=each_port,
)
def retransmissions(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    changes, refused = _changes(port, RETRANSMISSIONS)
    live = [each for each in changes if not (each.saturated or each.reset)]
    limit = node.profile.roce.retransmissions_per_s
    expected = f"at most {limit:g} a second of each"
    many = [each for each in live if _is_above(each, limit)]
    if many:
        return bad(", ".join(str(each) for each in many), expected)
    if refused:
        raise refused[0]
    if not live:
        where = port.path("hw_counters")
        raise Unread("missing", where, "no counter of retransmissions moves")
    return ok(f"{len(live)} counters, none above it", expected)


def _is_above(each: Change, limit: float) -> bool:
    """Without times, any change is above the limit."""
    rate = each.per_second
    return each.delta > 0 if rate is None else rate > limit


@check(
    "roce-counters-congestion",
    group="roce",
    severity="I",
    why="notifications and pauses show congestion control at work, they harm nothing",
    fix=("nothing to do; watch the trend",),
    source=("article: ECN, CNP and PFC counters", "R56 byteps#179"),
    needs=(
        "/sys/class/infiniband/*/ports/*/hw_counters/*",
        "ethtool -S NETDEV",
    ),
    over=each_port,
)
def congestion(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    changes, refused = _changes(port, frozenset(CONGESTION))
    try:
        every = statistics(port.facts, port.netdev())
        changes += [each for name, each in every.items() if _PAUSE.match(name)]
    except Unread as error:
        refused.append(error)
    live = [each for each in changes if not (each.saturated or each.reset)]
    if not live:
        where = port.path("hw_counters")
        raise refused[0] if refused else Unread("missing", where, "none was sampled")
    moved = [str(each) for each in live if each.delta]
    return info(", ".join(moved) or "quiet", "a trend, no verdict")


@check(
    "roce-counter-wrap",
    group="roce",
    severity="I",
    why="a counter full of ones has stopped counting: its change means nothing",
    fix=("reset it: perfquery -x -R, or reload the driver",),
    source=("gpud PR#943",),
    needs=(
        "/sys/class/infiniband/*/ports/*/counters/*",
        "/sys/class/infiniband/*/ports/*/hw_counters/*",
    ),
    over=each_port,
)
def wrapped(node: Node, port: Port) -> Outcome:
    every = port_counters(port.facts, port.path("")[:-1])
    seen = [name for name, (value, _) in every.items() if value >= 0]
    if not seen:
        raise Unread("missing", port.path("counters"), "no counter was read")
    full = [
        f"{name}={every[name][0]} is saturated: excluded"
        for name in sorted(seen)
        if _is_full(*every[name])
    ]
    told = f"{len(seen)} counters, none saturated"
    return info("; ".join(full) or told, "none saturated")


def _is_full(value: int, change: Change | Unread) -> bool:
    """All ones, and in both samples where there are two."""
    if isinstance(change, Unread):
        return value in SATURATED
    return change.saturated


@check(
    "roce-qp-resources",
    group="roce",
    severity="W",
    why="a device that is nearly out of QPs, CQs or MRs refuses the next connection",
    fix=("rdma resource show: who holds them?", "a leak of MKEYs needs a reboot"),
    source=("Mooncake#1845",),
    needs=("rdma -j resource show", "ibv_devinfo -v"),
    over=each_port,
)
def resources(node: Node, port: Port) -> Outcome:
    used = _used(node, port)
    device = verbs_device(port.facts, port.device)
    share = node.profile.roce.resource_share
    expected = f"at most {share:.0%} of what the device has"
    seen: list[str] = []
    full: list[str] = []
    for kind in _RESOURCES:
        if not isinstance(used.get(kind), int):
            continue
        limit = device.number(f"max_{kind}")
        text = f"{kind} {used[kind]} of {limit}"
        (full if used[kind] > share * limit else seen).append(text)
    if full:
        return bad(", ".join(full), expected)
    if not seen:
        raise Garbled("rdma -j resource show", f"no counts of {port.device}")
    return ok(", ".join(seen), expected)


def _used(node: Node, port: Port) -> Mapping[str, int]:
    rows = node.facts.result("rdma", "resource").json()
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("ifname") == port.device:
            return row
    raise Unread("absent", "rdma -j resource show", f"it does not name {port.device}")

"""Whether a node was read at all, and how long that took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, unknown
from checks.rules.declare import check

if TYPE_CHECKING:
    from checks.node import Node


@check(
    "meta-reachable",
    group="meta",
    severity="C",
    why="a node that does not answer, or answers cut off, cannot be judged ready",
    fix=("log in by hand with the same user and key", "see the reason observed"),
    source=("Primus node_smoke: nodes that never reported are placeholders, not lost",),
    needs=("collector.error",),
)
def reachable(node: Node, _: None) -> Outcome:
    error = node.facts.collector.get("error")
    if isinstance(error, dict):
        return unknown(f"{error.get('kind', 'error')}: {error.get('reason', '')}")
    if error:
        return unknown(error)
    if not node.facts.tells_something:
        return unknown("nothing could be read on this node")
    return ok("facts were collected")


BUDGET_S = 20


@check(
    "meta-collector-time",
    group="meta",
    severity="W",
    why="tools that hang are the first sign of a sick driver or a sick node",
    fix=("see which commands timed out in the facts, and run them by hand",),
    source=("Primus node_smoke: a hung tool is itself a finding",),
    needs=("collector.duration_ms",),
)
def collector_time(node: Node, _: None) -> Outcome:
    told = node.facts.collector
    expected = f"a whole collection within {BUDGET_S} s"
    if told.get("fault"):
        return bad(f"the collector broke: {told['fault']}", expected)
    if told.get("late") is True:
        return bad("a read hung in the kernel", expected)
    took_ms = told.get("duration_ms")
    if not node.facts.tells_something:
        raise Unread("missing", "facts", "nothing could be read on this node")
    if not isinstance(took_ms, int | float):
        raise Unread("missing", "collector.duration_ms", "not told")
    seen = f"{took_ms / 1000:.1f} s"
    return ok(seen, expected) if took_ms <= BUDGET_S * 1000 else bad(seen, expected)

"""Whether a node was read at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.finding import Outcome, ok, unknown
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
    return ok("facts were collected")

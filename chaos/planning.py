"""`chaos plan`: a cluster and a fault in words, with nothing started."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chaos.faults as build
from chaos.errors import UsageError
from chaos.systems import load_system
from chaos.systems.base import ClusterSpec
from chaos.targets.planned import PlannedTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.systems.base import Cluster

_NAME_MOST = 200
_MOST_DIGITS = 18
KINDS = tuple(sorted(set(build.__all__) - {"links_of"}))


def plan_cluster(
    system: str, *, stores: int, engines: int, time_scale: float
) -> tuple[Cluster, list[str]]:
    """The cluster as the suites would start it, and the command of every role."""
    spec = ClusterSpec(stores=stores, engines=engines, time_scale=time_scale)
    target = PlannedTarget(Path("results"))
    return load_system(system).plan(spec, target)


def plan_fault(
    cluster: Cluster, kind: str, target: str, parameters: Sequence[str]
) -> list[str]:
    """The exact steps that a fault would take.

    Raises:
        UsageError: There is no such fault, target or parameter.
    """
    if kind not in KINDS:
        raise UsageError(
            f"no fault is called {kind!r}", f"there are {', '.join(KINDS)}"
        )
    if not target:
        raise UsageError(f"{kind} needs a target", f"try: chaos plan {kind} store-3")
    _require_target(cluster, target)
    make = getattr(build, kind)
    values = dict(_parameter(text) for text in parameters)
    try:
        inspect.signature(make).bind(cluster, None, target, **values)
    except TypeError as error:
        raise UsageError(f"{kind}: {error}", f"takes {_takes(make)}") from None
    steps: list[str] = make(cluster, None, target, **values).plan()
    return steps


def _require_target(cluster: Cluster, target: str) -> None:
    """Nobody shall believe in a plan for a role or a link that is not there."""
    links = [link.name for link in cluster.links]
    known = [*cluster.masters, *cluster.stores, *cluster.engines, *links]
    if target not in known:
        near = difflib.get_close_matches(target[:_NAME_MOST], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`chaos plan` lists them"
        raise UsageError(f"no role or link is called {target[:_NAME_MOST]!r}", hint)


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text[:_NAME_MOST]!r} is not NAME=VALUE")
    is_number = value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    return name, int(value) if is_number else value


def _takes(make: Any) -> str:
    names = list(inspect.signature(make).parameters)[3:]
    return ", ".join(f"{name}=..." for name in names) or "no parameter"

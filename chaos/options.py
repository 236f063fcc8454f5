"""The options of a run: default < environment `MOONQUAKE_*` < command line."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

TARGETS = ("local", "netns", "ssh")
_LEAST_TTL_S = 3.0

DEFAULTS: Mapping[str, Any] = {
    "target": "local",
    "inventory": "",
    "fault_ttl": 30.0,
    "system": "refimpl",
    "mooncake_profile": "default",
    "time_scale": 0.1,
    "results": "results",
    "inconclusive": "fail",
    "duration": 0.0,
}
_NAMES = (
    *DEFAULTS,
    "seed",
    "defect",
    "require",
    "block",
    "slow",
    "arm",
    "max_nodes_down",
)
_SEED_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator asked for; `given` names the options given on purpose.

    `fault_ttl_s` is how long anything broken on a host outlives us at most.
    `max_nodes_down` None sets no limit of its own.
    """

    target: str
    inventory: str
    arm: bool
    fault_ttl_s: float
    max_nodes_down: int | None
    system: str
    mooncake_profile: str = "default"
    seed: int
    time_scale: float
    results: str
    inconclusive: str
    defects: tuple[str, ...]
    duration_s: float
    require: frozenset[str]
    block: int | None
    slow: bool
    given: frozenset[str]

    @property
    def plans_only(self) -> bool:
        """Whether nothing may be started or broken: other machines, and not armed."""
        return self.target == "ssh" and not self.arm


def add_options(parser: pytest.Parser) -> None:
    """Adds ours to pytest's, in a group of their own."""
    group = parser.getgroup("moonquake", "chaos suites (moonquake)")
    add = group.addoption
    add("--target", choices=list(TARGETS), help="where the system runs (local)")
    add("--inventory", metavar="FILE", help="the hosts of --target ssh")
    add(
        "--arm",
        action="store_true",
        default=None,
        help="really break other machines; without it, what would run is printed",
    )
    add(
        "--fault-ttl",
        type=float,
        metavar="S",
        help="seconds after which a host heals itself when we are gone (30)",
    )
    add(
        "--max-nodes-down",
        type=int,
        metavar="N",
        help="skip what would take more hosts down at one time",
    )
    add("--system", metavar="NAME", help="the system under test (refimpl)")
    add(
        "--mooncake-profile",
        metavar="NAME",
        help="settings of --system mooncake: default or tuned (default)",
    )
    add("--seed", type=int, metavar="N", help="of every random choice; printed")
    add("--time-scale", type=float, metavar="X", help="factor on time constants (0.1)")
    add("--results", metavar="DIR", help="where results are written (results)")
    add(
        "--inconclusive",
        choices=["fail", "skip"],
        help="what a test becomes when nothing could be told (fail)",
    )
    add(
        "--defect",
        action="append",
        metavar="NAME",
        help="switch a defect of the system on, to see the suites turn red",
    )
    add("--duration", type=float, metavar="S", help="seconds a soak lasts")
    add(
        "--require",
        action="append",
        metavar="CAP",
        help="refuse to run, instead of skip tests, where this capability is missing",
    )
    add("--block", type=int, metavar="N", help="use exactly this block of addresses")
    add("--slow", action="store_true", default=None, help="run the slow suites as well")


def read_options(
    config: pytest.Config, environ: Mapping[str, str] = os.environ
) -> Options:
    """Resolves every option.

    Raises:
        UsageError: A value makes no sense.
    """
    given = {name for name in _NAMES if config.getoption(name) is not None}
    values = {name: _value(config, environ, name) for name in _NAMES}
    seed = values["seed"]
    scale = _number("time_scale", values["time_scale"])
    if not (math.isfinite(scale) and scale > 0):
        raise UsageError(f"--time-scale {scale:g} is not a positive factor")
    target = _target(str(values["target"]), str(values["inventory"]))
    return Options(
        target=target,
        inventory=str(values["inventory"]),
        arm=bool(values["arm"]),
        fault_ttl_s=_ttl(values["fault_ttl"]),
        max_nodes_down=_nodes(values["max_nodes_down"]),
        system=str(values["system"]),
        mooncake_profile=str(values["mooncake_profile"]),
        seed=int(_number("seed", seed)) if seed is not None else new_seed(),
        time_scale=scale,
        results=str(values["results"]),
        inconclusive=str(values["inconclusive"]),
        defects=tuple(_words(values["defect"])),
        duration_s=_number("duration", values["duration"]),
        require=frozenset(_words(values["require"])),
        block=None if values["block"] is None else int(values["block"]),
        slow=bool(values["slow"]),
        given=frozenset(given),
    )


def new_seed() -> int:
    """A seed that fits every generator and is short enough to type."""
    return random.SystemRandom().randrange(1, _SEED_LIMIT)


def _value(config: pytest.Config, environ: Mapping[str, str], name: str) -> Any:
    value = config.getoption(name)
    if value is None:
        value = environ.get(f"MOONQUAKE_{name.upper()}") or None
    return DEFAULTS.get(name) if value is None else value


def _target(name: str, inventory: str) -> str:
    """A name that environment or command line gave; `ssh` needs to know its hosts."""
    if name not in TARGETS:
        raise UsageError(
            f"no target is called {name!r}", f"there are {', '.join(TARGETS)}"
        )
    if name == "ssh" and not inventory:
        fix = "name its hosts: --inventory inventory/staging.example.yaml"
        raise UsageError("--target ssh has no inventory", fix)
    return name


def _ttl(value: Any) -> float:
    ttl_s = _number("fault_ttl", value)
    if not (math.isfinite(ttl_s) and ttl_s >= _LEAST_TTL_S):
        problem = f"--fault-ttl {ttl_s:g} is too short to be renewed in time"
        raise UsageError(problem, f"take {_LEAST_TTL_S:g} s or more")
    return ttl_s


def _nodes(value: Any) -> int | None:
    if value is None:
        return None
    nodes = int(_number("max_nodes_down", value))
    if nodes < 1:
        raise UsageError(f"--max-nodes-down {nodes} allows no fault at all")
    return nodes


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} {value!r} is not a number") from None


def _words(value: Any) -> list[str]:
    """A list of words, from an option given often or one comma-separated text."""
    texts = [value] if isinstance(value, str) else list(value or ())
    return [word for text in texts for word in text.split(",") if word]

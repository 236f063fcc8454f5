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

DEFAULTS: Mapping[str, Any] = {
    "target": "local",
    "system": "refimpl",
    "time_scale": 0.1,
    "results": "results",
    "inconclusive": "fail",
    "duration": 0.0,
}
_NAMES = (*DEFAULTS, "seed", "defect", "require", "block", "slow")
_SEED_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator asked for; `given` names the options given on purpose."""

    target: str
    system: str
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


def add_options(parser: pytest.Parser) -> None:
    """Adds ours to pytest's, in a group of their own."""
    group = parser.getgroup("moonquake", "chaos suites (moonquake)")
    add = group.addoption
    add("--target", choices=["local"], help="where the system runs (local)")
    add("--system", metavar="NAME", help="the system under test (refimpl)")
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
    return Options(
        target=str(values["target"]),
        system=str(values["system"]),
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


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} {value!r} is not a number") from None


def _words(value: Any) -> list[str]:
    """A list of words, from an option given often or one comma-separated text."""
    texts = [value] if isinstance(value, str) else list(value or ())
    return [word for text in texts for word in text.split(",") if word]

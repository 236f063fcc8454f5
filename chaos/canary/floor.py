"""The noise floor: what two equal arms differ by, beyond what their rows explain.

An A/A run knows its own sampling error, but not that one host is 2 % slower than the
other, or that whoever starts second finds warm caches. Several A/A runs show it: their
estimates scatter more than their own intervals say. What is left is kept in a file and
added to every later interval, in quadrature.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scipy import stats

from chaos.canary.errors import FloorError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chaos.canary.policy import Policy
    from chaos.canary.result import GateJudgement, GateResult

SCHEMA = "canary.floor/1"
MIN_RUNS = 5
# The spread of few runs is uncertain; their sum of squares is divided by this quantile
# of chi-squared, so that the floor is too high rather than too low.
_CAUTION = 0.4
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """Standard deviations between equal arms by judgement, on the scale judged.

    `default` is for judgements of ratios that it has no figure of its own for.
    """

    sd: Mapping[str, float] = field(default_factory=dict)
    runs: int = 0
    default: float = 0.0
    source: str = ""

    def of(self, name: str, *, ratio: bool) -> float:
        """The floor of one judgement, 0 when nothing is known of it."""
        return self.sd.get(name, self.default if ratio else 0.0)

    @classmethod
    def from_runs(cls, results: Sequence[GateResult]) -> NoiseFloor:
        """The floor that these A/A results show.

        Raises:
            FloorError: fewer than 5 results, or one of them twice: it would scatter
                less than runs do.
        """
        seen = [result.judgements for result in results]
        if any(one in seen[:at] for at, one in enumerate(seen)):
            raise FloorError(
                "one A/A run was given twice", "name verdicts of different runs"
            )
        if len(results) < MIN_RUNS:
            raise FloorError(
                f"a noise floor needs {MIN_RUNS} A/A runs, there are {len(results)}",
                "run the same build in both arms more often",
            )
        found: dict[str, list[tuple[float, float]]] = {}
        for result in results:
            for each in result.of("relative"):
                own = _own(each)
                if own is not None:
                    found.setdefault(each.name, []).append(own)
        sd = {n: _excess(rows) for n, rows in found.items() if len(rows) >= MIN_RUNS}
        return cls(sd=sd, runs=len(results))

    def to_document(self) -> dict[str, Any]:
        """Plain JSON of schema `canary.floor/1`."""
        return {
            "schema": SCHEMA,
            "runs": self.runs,
            "default": self.default,
            "sd": dict(self.sd),
        }

    def write(self, path: Path) -> None:
        """Keeps it in a file, whole or not at all."""
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(self.to_document(), indent=2) + "\n", "utf-8")
        part.replace(path)


def floor_of(policy: Policy, folder: Path) -> NoiseFloor | None:
    """The floor that a policy names: a file beside it (`folder`), or one number.

    Raises:
        FloorError: the file cannot be used.
    """
    named = policy.noise_floor
    if isinstance(named, str):
        return read_floor(folder / named)
    return None if named is None else NoiseFloor(default=named, source="policy")


def read_floor(path: Path) -> NoiseFloor:
    """The floor of a file.

    Raises:
        FloorError: it is missing, no JSON, of another schema, or has bad numbers.
    """
    fix = "write one with `canary floor`, or take noise_floor out"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FloorError(f"{path}: is longer than {_MAX_BYTES >> 20} MiB", fix)
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"is no JSON ({error})"
        raise FloorError(f"{path}: {reason}", fix) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise FloorError(f"{path}: schema is not {SCHEMA!r}", fix)
    sd, default = document.get("sd"), document.get("default", 0.0)
    runs = document.get("runs", 0)
    if not isinstance(sd, dict):
        raise FloorError(f"{path}: has no sd", fix)
    for name, value in [*sd.items(), ("default", default), ("runs", runs)]:
        if not _is_size(value):
            raise FloorError(f"{path}: {name} {value!r} is no number from 0 on", fix)
    return NoiseFloor(sd=sd, runs=int(runs), default=default, source=str(path))


def _is_size(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < math.inf


def _own(judgement: GateJudgement) -> tuple[float, float] | None:
    """Estimate and standard error of one judgement, on the scale judged."""
    numbers = judgement.numbers
    estimate, se = numbers.get("scaled_estimate"), numbers.get("own_se")
    if estimate is None or se is None or not math.isfinite(estimate + se):
        return None
    return estimate, se


def _excess(rows: Sequence[tuple[float, float]]) -> float:
    """What the estimates scatter by (around no difference) beyond their own errors."""
    squares = sum(estimate**2 for estimate, _ in rows)
    upper = squares / float(stats.chi2.ppf(_CAUTION, len(rows)))
    own = sum(se**2 for _, se in rows) / len(rows)
    return math.sqrt(max(0.0, upper - own))

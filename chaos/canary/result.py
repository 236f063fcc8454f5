"""What the gate answers: one judgement a rule, and the verdict over all of them.

Values of "relative" judgements: `baseline` and `canary` are in the metric's own unit;
`estimate`, `low`, `high` and `detectable` are ratios (canary / baseline) for quantiles
and means, differences (canary - baseline) for rates. Of "slo" judgements the estimate
is the canary's. The interval is two one-sided bounds, each at 1 - alpha.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = "canary.verdict/1"
RESIDUAL = "residual_faults"

Family = Literal["invariant", "slo", "relative", "validity"]
FAMILIES: tuple[Family, ...] = ("invariant", "validity", "slo", "relative")
OnInconclusive = Literal["block", "warn", "extend"]

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_INCONCLUSIVE = 3
EXIT_RESIDUAL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudgement:
    """One rule judged once: what was seen, against which limit, on how many rows."""

    name: str
    family: Family
    metric: str
    verdict: Verdict
    limit: str
    reason: str
    baseline: float | None = None
    canary: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    """Of the hypothesis that the harm is no larger than the smallest that counts."""
    adjusted_p: float | None = None
    """The same after Holm over the relative family."""
    n_baseline: int = 0
    n_canary: int = 0
    detectable: float | None = None
    """The smallest true change that this many samples would show 4 times of 5."""
    needs: int | None = None
    """Samples an arm still needed for a decision; None: decided, or more won't help."""
    design: str = ""
    """"paired", "unpaired", or "" where nothing is compared."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Further figures: clusters, design effect, noise floor, ..."""

    def to_document(self) -> dict[str, Any]:
        """Plain JSON; infinite and undefined numbers are null."""
        document = asdict(self) | {"numbers": dict(self.numbers)}
        document["verdict"] = self.verdict.value
        return cast("dict[str, Any]", _finite(document))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> GateJudgement:
        """Reads what `to_document` wrote.

        Raises:
            ValueError: a field is missing or no verdict.
        """
        known = {each.name for each in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        try:
            return cls(**{**values, "verdict": Verdict(document["verdict"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"no judgement of {SCHEMA}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict of a gate with everything it rests on."""

    verdict: Verdict
    judgements: tuple[GateJudgement, ...]
    on_inconclusive: OnInconclusive = "block"
    extend_by: int | None = None
    """Samples an arm that would decide all open judgements; None: none, or no number
    of them would."""
    floor: Mapping[str, float] = field(default_factory=dict)
    """The noise floor used: standard deviation of a judgement between equal arms."""
    notes: tuple[str, ...] = ()
    policy_name: str = ""
    seed: int | None = None
    aborted_early: bool = False
    """Judged before the planned end by the always-valid test; can only be FAIL."""
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`meta` of each arm (system, build, seed, time_scale, requests, ...)."""

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 INCONCLUSIVE, 5 a fault of ours was left behind."""
        if self._residual:
            return EXIT_RESIDUAL
        if self.verdict is Verdict.INCONCLUSIVE:
            warn = self.on_inconclusive == "warn"
            return EXIT_PASS if warn else EXIT_INCONCLUSIVE
        return EXIT_PASS if self.verdict is Verdict.PASS else EXIT_FAIL

    @property
    def worst_first(self) -> tuple[GateJudgement, ...]:
        """All judgements, the most severe first, families in their order."""
        return tuple(
            sorted(
                self.judgements,
                key=lambda j: (-j.verdict.severity, FAMILIES.index(j.family)),
            )
        )

    def of(self, family: Family) -> tuple[GateJudgement, ...]:
        """The judgements of one family, in the order of the policy."""
        return tuple(j for j in self.judgements if j.family == family)

    def to_document(self) -> dict[str, Any]:
        """Plain JSON of schema `canary.verdict/1`."""
        document = {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "exit_code": self.exit_code,
            "policy": self.policy_name,
            "seed": self.seed,
            "on_inconclusive": self.on_inconclusive,
            "extend_by": self.extend_by,
            "aborted_early": self.aborted_early,
            "floor": dict(self.floor),
            "notes": list(self.notes),
            "arms": {name: dict(meta) for name, meta in self.arms.items()},
            "judgements": [each.to_document() for each in self.judgements],
        }
        return cast("dict[str, Any]", _finite(document))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> GateResult:
        """Reads what `to_document` wrote.

        Raises:
            ValueError: another schema, a field is missing, or the verdict is better
                than its judgements.
        """
        if document.get("schema") != SCHEMA:
            raise ValueError(f"schema is {document.get('schema')!r}, not {SCHEMA!r}")
        try:
            judgements = _judgements(document["judgements"])
            return cls(
                verdict=_checked(Verdict(document["verdict"]), judgements),
                judgements=judgements,
                on_inconclusive=document["on_inconclusive"],
                extend_by=document["extend_by"],
                floor=document["floor"],
                notes=tuple(document["notes"]),
                policy_name=document["policy"],
                seed=document["seed"],
                aborted_early=document["aborted_early"],
                arms=document["arms"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no verdict of {SCHEMA}: {error!r}") from error

    @property
    def _residual(self) -> bool:
        return any(
            j.metric == RESIDUAL and j.verdict is Verdict.FAIL for j in self.judgements
        )


def worst(judgements: Iterable[GateJudgement]) -> Verdict:
    """The worst verdict; nothing judged is INCONCLUSIVE, never PASS."""
    verdicts = [judgement.verdict for judgement in judgements]
    if not verdicts:
        return Verdict.INCONCLUSIVE
    return max(verdicts, key=lambda verdict: verdict.severity)


def _checked(verdict: Verdict, judgements: tuple[GateJudgement, ...]) -> Verdict:
    """A verdict that is better than what it rests on was not made by the gate."""
    least = worst(judgements)
    if verdict.severity < least.severity:
        raise ValueError(
            f"verdict {verdict.value}, but its judgements say {least.value}"
        )
    return verdict


def _judgements(documents: Iterable[Mapping[str, Any]]) -> tuple[GateJudgement, ...]:
    return tuple(GateJudgement.from_document(each) for each in documents)


def _finite(value: object) -> object:
    """The same with None for every number that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value

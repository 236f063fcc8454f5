"""What a gate asks of a canary, as a file says it: the pydantic models of a policy.

Three families: *invariants* are counters that must be there and be 0; *slos* are
absolute limits of the canary alone; *relative* rules compare canary and baseline.
`validity` says when nothing may be concluded at all. `suites/canary/*.yaml` are
examples; `default_policy()` is `suites/canary/default.yaml`.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from chaos.canary.errors import PolicyError
from chaos.scenario.errors import Problem, ScenarioError
from chaos.scenario.load import MAX_BYTES, read_yaml
from chaos.scenario.quantities import duration_s, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA: Final = "canary.policy/1"
MAX_RULES = 64
RATES = ("hit_rate", "error_rate")
Statistic = Literal["quantile", "mean", "rate", "exceedance", "paired"]

Duration = Annotated[float, BeforeValidator(duration_s)]
Share = Annotated[float, BeforeValidator(share)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]{1,64}$")]
Quantile = Annotated[float, Field(gt=0, lt=1)]


_OPTIONAL = {"required": False}
_DEFAULT_RULES: tuple[dict[str, Any], ...] = (
    {"metric": "ttft_s", "quantile": 0.5, "max_ratio": 1.05},
    {"metric": "ttft_s", "quantile": 0.95, "max_ratio": 1.1},
    {"metric": "ttft_s", "quantile": 0.99, "max_ratio": 1.16},
    {
        "metric": "ttft_s",
        "statistic": "exceedance",
        "quantile": 0.99,
        "max_delta": 0.003,
    },
    {"metric": "ttft_s", "statistic": "paired", "max_ratio": 1.05} | _OPTIONAL,
    {
        "metric": "cache_wait_s",
        "statistic": "paired",
        "max_ratio": 1.25,
        "resolution": 0.001,
    }
    | _OPTIONAL,
    {"metric": "tpot_s", "quantile": 0.5, "max_ratio": 1.05} | _OPTIONAL,
    {"metric": "tpot_s", "quantile": 0.99, "max_ratio": 1.16} | _OPTIONAL,
    {"metric": "rpcs", "statistic": "mean", "max_ratio": 1.05} | _OPTIONAL,
    {"metric": "hit_rate", "max_delta": 0.008},
    {"metric": "error_rate", "max_delta": 0.0005},
)


class _Model(BaseModel):
    """Frozen, nothing beside the named fields, no infinities."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )


class SloRule(_Model):
    """An absolute limit of the canary: a quantile, or the mean, at most so long."""

    metric: Word
    quantile: Quantile | None = None
    """None: the mean, for service levels that name one."""
    at_most: Duration
    """The system's own time at factor 1; it scales with `time_scale` of the arm."""
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.99
    required: bool = True
    """False: not judged when the metric was not measured in either arm."""

    @property
    def name(self) -> str:
        which = "mean" if self.quantile is None else _percentile(self.quantile)
        return f"{self.metric} {which}"


class RelativeRule(_Model):
    """How much worse than the baseline the canary may be in one statistic.

    `quantile`: ratio of the marginal quantiles. `mean`: ratio of means. `rate`:
    difference of `hit_rate` or `error_rate`. `exceedance`: difference of the shares of
    requests slower than `factor` times the baseline's quantile, for tails that are
    thinner than the quantile. `paired`: median ratio of the same request in both arms;
    it is judged only where requests can be paired.
    """

    metric: Word
    statistic: Statistic = "quantile"
    quantile: Quantile | None = None
    factor: Annotated[float, Field(ge=1, le=1000)] = 1.5
    max_ratio: Annotated[float, Field(gt=1, le=1000)] | None = None
    max_delta: Annotated[Share, Field(gt=0)] | None = None
    worse: Literal["up", "down"] = "up"
    min_samples: Annotated[int, Field(ge=10, le=10_000_000)] = 100
    """Rows an arm below which nothing is judged."""
    resolution: Annotated[float, Field(gt=0)] = 1e-6
    """Smaller values count as this one, so that ratios of nothing mean nothing."""
    required: bool = True
    """False: not judged when the metric was not measured in either arm."""

    @model_validator(mode="before")
    @classmethod
    def _inferred(cls, value: Any) -> Any:
        """The two rates are rates, and fewer hits are worse, without saying so."""
        if not isinstance(value, dict) or value.get("metric") not in RATES:
            return value
        worse = "down" if value["metric"] == "hit_rate" else "up"
        return {"statistic": "rate", "worse": worse} | value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.statistic == "rate") != (self.metric in RATES):
            raise ValueError(f"rates are {' and '.join(RATES)}, and they are no more")
        if self.worse != _worse_of(self.metric, self.worse):
            raise ValueError(
                f"{self.metric} is worse when it goes"
                f" {_worse_of(self.metric, self.worse)}; leave `worse` out"
            )
        if (self.quantile is None) == (self.statistic in ("quantile", "exceedance")):
            raise ValueError(
                "needs a quantile for `quantile` and `exceedance`, and only for them"
            )
        if self.is_ratio and (self.max_ratio is None or self.max_delta is not None):
            raise ValueError("needs max_ratio, e.g. max_ratio: 1.1, and no max_delta")
        if not self.is_ratio and (self.max_delta is None or self.max_ratio is not None):
            raise ValueError("needs max_delta, e.g. max_delta: 0.5%, and no max_ratio")
        return self

    @property
    def is_ratio(self) -> bool:
        return self.statistic in ("quantile", "mean", "paired")

    @property
    def limit(self) -> float:
        """The allowed harm on the scale that is judged: a log ratio or a difference."""
        if self.max_ratio is not None:
            return math.log(self.max_ratio)
        assert self.max_delta is not None
        return self.max_delta

    @property
    def name(self) -> str:
        if self.statistic == "rate":
            return self.metric
        which = "" if self.quantile is None else _percentile(self.quantile)
        words = {
            "quantile": which,
            "mean": "mean",
            "paired": "paired",
            "exceedance": f"over {self.factor:g}x {which}",
        }
        return f"{self.metric} {words[self.statistic]}"


def _worse_of(metric: str, said: Literal["up", "down"]) -> Literal["up", "down"]:
    """Of rates and times nobody chooses what is worse: a rule that is turned round
    passes what it should stop."""
    if metric == "hit_rate":
        return "down"
    return "up" if metric == "error_rate" or metric.endswith("_s") else said


class Validity(_Model):
    """When nothing can be concluded; null switches a check off, on purpose."""

    max_lag_ratio: Annotated[float, Field(gt=0)] | None = 0.1
    """p99 lag of the load generator over the smallest median latency judged."""
    max_mix_distance: Annotated[Share, Field(gt=0)] | None = 0.05
    """Total variation between the classes of requests of both arms."""
    max_clock_skew_s: Annotated[float, Field(gt=0)] | None = 1.0
    min_span_ratio: Annotated[Share, Field(gt=0)] | None = 0.9
    """Shorter over longer measured time of the two arms: one may have died."""
    max_baseline_errors: Share | None = 0.1
    """Errors of the baseline above which it is no measure for anything."""
    max_unpaired: Share = 0.01
    """Share of requests of paired arms without a partner in the other; at most as many
    as may fail more (`error_rate`)."""
    max_unmeasured: Share = 0.01
    """How far the shares of rows without a value may lie apart between the arms; at
    most a fifth of the share that a quantile leaves above itself."""
    min_clusters: Annotated[int, Field(ge=2, le=1000)] = 8
    """Sessions an arm below which their spread cannot be told."""


class EarlyAbort(_Model):
    """Stops before the planned end, for harm only, by a test valid at every look."""

    enabled: bool = True
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.005
    """Spent over all looks and all relative rules together, beside the final alpha."""


class Policy(_Model):
    """One gate: its rules, its error rates, and what an open verdict means."""

    schema_: Literal["canary.policy/1"] = Field(default=SCHEMA, alias="schema")
    name: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    alpha: Annotated[float, Field(gt=0, le=0.1)] = 0.01
    """Chance of a wrong PASS at the limit of a rule, and of any wrong FAIL."""
    min_effect: Annotated[float, Field(ge=0, lt=1)] = 0.33
    """Harm that counts: this part of the allowed change, on the scale judged."""
    invariants: tuple[Word, ...] = Field(default=(), max_length=MAX_RULES)
    slos: tuple[SloRule, ...] = Field(default=(), max_length=MAX_RULES)
    relative: tuple[RelativeRule, ...] = Field(default=(), max_length=MAX_RULES)
    validity: Validity = Field(default_factory=Validity)
    noise_floor: str | float | None = None
    """A file written from A/A runs, or one standard deviation (of log ratios)."""
    host_spread: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Assumed (modelled) standard deviation between hosts, on the log scale: used when
    arms run on hosts of their own, fewer than 4 an arm, and no floor was measured."""
    early_abort: EarlyAbort = Field(default_factory=EarlyAbort)
    on_inconclusive: Literal["block", "warn", "extend"] = "block"

    @model_validator(mode="after")
    def _names_are_single(self) -> Self:
        relative = [rule.name for rule in self.relative]
        slos = [rule.name for rule in self.slos]
        for rules in (relative, slos, list(self.invariants)):
            doubled = sorted({one for one in rules if rules.count(one) > 1})
            if doubled:
                raise ValueError(f"{doubled[0]!r} is judged twice; keep one of them")
        if not (self.invariants or self.slos or self.relative):
            raise ValueError("asks for nothing; list invariants, slos or relative")
        if isinstance(self.noise_floor, float) and self.noise_floor < 0:
            raise ValueError("noise_floor is a standard deviation, 0 or more")
        return self


def default_policy() -> Policy:
    """The gate for those who did not write one: `suites/canary/default.yaml`."""
    return Policy(
        name="default",
        invariants=("wrong_bytes", "hangs", "residual_faults"),
        relative=tuple(RelativeRule.model_validate(rule) for rule in _DEFAULT_RULES),
    )


def load_policy(path: Path) -> Policy:
    """The policy of a file.

    Raises:
        PolicyError: It cannot be read or used; every problem has its line.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PolicyError([f"{path}:1: is longer than {MAX_BYTES >> 10} KiB"])
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8 text"
        raise PolicyError([f"{path}: {reason}; name a policy file"]) from error
    return parse_policy(text, str(path))


def parse_policy(text: str, file: str = "policy.yaml") -> Policy:
    """The policy of a text; `file` is what errors call it.

    Raises:
        PolicyError: It cannot be used; every problem has its line.
    """
    try:
        document, lines = read_yaml(text, file)
    except ScenarioError as error:
        raise PolicyError(error.lines) from None
    try:
        return Policy.model_validate(document)
    except ValidationError as error:
        told = [(_line(lines, one.location), one) for one in _problems(error)]
    told.sort(key=lambda row: (row[0], row[1].field))
    raise PolicyError([problem.told(file, line) for line, problem in told])


def _problems(error: ValidationError) -> Iterable[Problem]:
    for row in error.errors(include_url=False, include_context=False):
        place = tuple(row["loc"])
        if row["type"] == "missing":
            yield Problem(location=place, what="is missing", fix="add it")
        elif row["type"] == "extra_forbidden":
            yield Problem(
                location=place,
                what="is no field here",
                fix=_near(place),
                value=row["input"],
            )
        else:
            what = row["msg"].removeprefix("Value error, ")
            value = row["input"] if not isinstance(row["input"], dict) else None
            yield Problem(location=place, what=what[:1].lower() + what[1:], value=value)


def _near(place: tuple[str | int, ...]) -> str:
    """The field that was probably meant, or all there are."""
    models: Mapping[str, type[BaseModel]] = {
        "slos": SloRule,
        "relative": RelativeRule,
        "validity": Validity,
        "early_abort": EarlyAbort,
    }
    model = models.get(str(place[0]), Policy) if len(place) > 1 else Policy
    names = [field.alias or name for name, field in model.model_fields.items()]
    close = difflib.get_close_matches(str(place[-1]), names, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"


def _line(
    lines: Mapping[tuple[str | int, ...], int], place: tuple[str | int, ...]
) -> int:
    """The line of the place, or of the nearest place around it."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)


def _percentile(quantile: float) -> str:
    """0.995 as p99.5."""
    return f"p{round(quantile * 100, 6):g}"

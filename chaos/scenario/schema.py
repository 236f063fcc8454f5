"""A scenario as a file says it: the pydantic models behind `suites/scenarios/*.yaml`.

All times are the system's own, at factor 1: `--time-scale 0.1` plays the file in a
tenth of the time, with the same number of requests. What cannot be said of one field
alone (does the role exist, do the faults overlap) is judged in `check.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    field_validator,
    model_validator,
)

from chaos.safety.abort import Condition, Measure
from chaos.safety.limits import BlastLimits
from chaos.scenario.quantities import duration_s, share, size_bytes
from chaos.systems.base import ClusterSpec

MAX_STEPS = 64
MAX_TOGETHER = 8
MAX_TIMES = 100
MAX_CONDITIONS = 16

Oracle = Literal["O1", "O2", "O3", "O4", "O5", "O11", "recovery"]
ORACLES: tuple[Oracle, ...] = ("O1", "O2", "O3", "O4", "O11", "recovery")
ROLE_KINDS = ("master", "store", "engine")

Duration = Annotated[float, BeforeValidator(duration_s)]
Share = Annotated[float, BeforeValidator(share)]
Size = Annotated[int, BeforeValidator(size_bytes)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """A number drawn evenly between two, both included when they are whole."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """One of these values, each as likely as the other."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChoice:
    """Which role: a named one, any of a kind or of a list, or each in turn."""

    names: tuple[str, ...] = ()
    kind: str = ""
    each: bool = False

    def __str__(self) -> str:
        if self.kind:
            return f"{'each' if self.each else 'any'} {self.kind}"
        return " or ".join(self.names)


def _drawn_duration(value: object) -> Between | OneOf | float:
    """A duration, or the choice of one."""
    choice = _choice(value, duration_s)
    return duration_s(value) if choice is None else choice


def _drawn_scalar(value: object) -> object:
    """A parameter of a fault: a plain value or the choice of one."""
    choice = _choice(value, _scalar)
    return _scalar(value) if choice is None else choice


def _scalar(value: object) -> Any:
    if isinstance(value, str | int | float | bool):
        return value
    raise ValueError("is neither a plain value nor {between: [..]} nor {one_of: [..]}")


def _choice(value: object, of: Any) -> Between | OneOf | None:
    """`{between: [low, high]}` or `{one_of: [a, b]}`; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    if len(value) != 1 or next(iter(value)) not in ("between", "one_of"):
        raise ValueError("is a choice: {between: [low, high]} or {one_of: [a, b]}")
    (how, values) = next(iter(value.items()))
    if not isinstance(values, list) or not values:
        raise ValueError(f"{how} needs a list of values")
    found = [of(each) for each in values]
    if how == "one_of":
        return OneOf(values=tuple(found))
    if len(found) != 2 or isinstance(found[0], str) or not found[0] <= found[1]:
        raise ValueError("between needs two numbers, the smaller one first")
    return Between(low=found[0], high=found[1])


def _role_choice(value: object) -> RoleChoice:
    """`store-1`, `{any: store}`, `{each: store}` or `{one_of: [store-1, store-2]}`."""
    if isinstance(value, str) and value:
        return RoleChoice(names=(value,))
    if isinstance(value, Mapping) and len(value) == 1:
        (how, what) = next(iter(value.items()))
        if how in ("any", "each") and what in ROLE_KINDS:
            return RoleChoice(kind=str(what), each=how == "each")
        names = isinstance(what, list) and all(isinstance(one, str) for one in what)
        if how == "one_of" and names and what:
            return RoleChoice(names=tuple(what))
    raise ValueError(
        "is no target: a name such as store-1, {any: store}, {each: store}"
        " or {one_of: [store-1, store-2]} (kinds: master, store, engine)"
    )


DrawnDuration = Annotated[Between | OneOf | float, PlainValidator(_drawn_duration)]
Target = Annotated[RoleChoice, PlainValidator(_role_choice)]
Drawn = Annotated[Any, PlainValidator(_drawn_scalar)]


class _Model(BaseModel):
    """Frozen, nothing beside the named fields, dataclasses taken as they are."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )


class FaultSpec(BaseModel):
    """One fault: its kind, its target, and the parameters of that kind beside them."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)
    __pydantic_extra__: dict[str, Drawn]

    fault: Word
    target: Target
    delay: Duration = 0.0
    """Among faults that are together: how much later than the others it begins."""

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class Step(BaseModel):
    """One entry of the timeline: a fault, several together, or one drawn of several.

    `at` counts from the beginning of the load. `every` and `times` repeat the entry,
    with new draws each time. Parameters of a single fault stand beside `fault`.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)
    __pydantic_extra__: dict[str, Drawn]

    fault: Word | None = None
    target: Target | None = None
    together: tuple[FaultSpec, ...] = Field(default=(), max_length=MAX_TOGETHER)
    one_of: tuple[FaultSpec, ...] = Field(default=(), max_length=MAX_STEPS)
    at: DrawnDuration
    for_: DrawnDuration | None = Field(default=None, alias="for")
    every: Duration | None = None
    times: int = Field(default=0, ge=0, le=MAX_TIMES)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    @property
    def faults(self) -> tuple[FaultSpec, ...]:
        """All faults that this entry names, drawn or not."""
        if self.fault is not None and self.target is not None:
            single = FaultSpec.model_construct(
                fault=self.fault, target=self.target, delay=0.0
            )
            object.__setattr__(single, "__pydantic_extra__", self.parameters)
            return (single,)
        return self.together or self.one_of


class ConditionSpec(_Model):
    """A limit on one measure: `- error_rate: 5%`, with `window` and `samples`."""

    error_rate: Share | None = None
    ttft_p99: Duration | None = None
    hit_rate: Share | None = None
    role_not_healthy: Duration | None = None
    wrong_bytes: int | None = Field(default=None, ge=0)
    window: Duration = 100.0
    samples: int = Field(default=10, ge=1, le=100_000)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self._measures()) != 1:
            names = ", ".join(measure.value for measure in Measure)
            raise ValueError(f"needs exactly one of {names}")
        return self

    def condition(self, scale: float) -> Condition:
        """The condition in real seconds; shares and counts do not scale."""
        ((measure, limit),) = self._measures().items()
        timed = measure in (Measure.TTFT_P99, Measure.NOT_HEALTHY)
        return Condition(
            measure=measure,
            limit=float(limit) * (scale if timed else 1.0),
            window_s=self.window * scale,
            samples=self.samples,
        )

    def _measures(self) -> dict[Measure, float]:
        values = {measure: getattr(self, measure.value) for measure in Measure}
        return {name: value for name, value in values.items() if value is not None}


class SteadySpec(_Model):
    """Steady before, within limits during, steady again in time after."""

    before: Duration = 100.0
    """How long the system may take to be steady before anything is broken."""
    during: tuple[ConditionSpec, ...] = Field(default=(), max_length=MAX_CONDITIONS)
    """Limits that must hold while a fault is active; broken is FAIL, not an abort."""
    recovery_slo: Duration = 100.0
    """How long it may take after the last fault was undone."""


class LimitsSpec(_Model):
    """Blast radius; see `chaos.safety.limits`."""

    max_nodes_down: int = Field(default=1, ge=1, le=10_000)
    allow_quorum_loss: bool = False

    @property
    def blast(self) -> BlastLimits:
        return BlastLimits(
            max_nodes_down=self.max_nodes_down,
            allow_quorum_loss=self.allow_quorum_loss,
        )


class Shape(_Model):
    """The cluster that it is meant for; what is not said has the suites' default."""

    stores: int = Field(default=4, ge=1, le=1000)
    engines: int = Field(default=2, ge=1, le=1000)
    rails: int = Field(default=2, ge=1, le=64)
    stores_per_host: int = Field(default=1, ge=1, le=64)
    store_bytes: Size = 64 << 20
    page_tokens: int = Field(default=64, ge=1)
    page_bytes: Size = 16 << 10
    placement: Literal["local_first", "random", "free_ratio"] = "local_first"
    overrides: dict[Literal["master", "store", "engine"], dict[str, Any]] = Field(
        default_factory=dict
    )

    def spec(
        self, *, time_scale: float, seed: int, defects: tuple[str, ...] = ()
    ) -> ClusterSpec:
        return ClusterSpec(
            **self.arguments, time_scale=time_scale, seed=seed, defects=defects
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """For `cluster_of(**arguments)`."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class Load(_Model):
    """Open-loop load in the background: a generated trace, and reads of single keys.

    Rates are per second at factor 1. The load begins before the first fault, so that
    there is a former state to compare with, and goes on `after` the last one.
    """

    rate_per_s: float = Field(default=3.0, gt=0, le=10_000)
    sessions: int = Field(default=16, ge=1, le=10_000)
    system_prompts: int = Field(default=2, ge=1, le=1000)
    system_blocks: int = Field(default=2, ge=1, le=64)
    turn_median: float = Field(default=600.0, gt=0)
    max_input_tokens: int = Field(default=6144, ge=1024, le=1 << 20)
    roam: Share = 0.5
    """Part of the requests that goes to any engine, the others to their session's. One
    that roams finds its prefix in the pool only: without them faults of the pool would
    meet nobody who waits for it."""
    after: Duration = 60.0
    pulse: Duration = 2.0
    """How often single keys are written to and read from every store; 0: never. It
    gives faults on quiet stores something to act on, and O1 direct reads."""
    timeout: Duration = 300.0
    """When a request counts as hung."""


class Scenario(_Model):
    """One scenario: what is broken, when, under which load, and who judges it."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    description: str = ""
    seed: int = Field(default=1, ge=0, lt=1 << 31)
    requires: tuple[Word, ...] = Field(default=(), max_length=32)
    cluster: Shape = Field(default_factory=Shape)
    load: Load = Field(default_factory=Load)
    timeline: tuple[Step, ...] = Field(min_length=1, max_length=MAX_STEPS)
    abort: tuple[ConditionSpec, ...] = Field(max_length=MAX_CONDITIONS)
    """Looked at all the time while a fault is active; `none` is said on purpose, with
    an `abort_reason`, and is () here."""
    abort_reason: str = ""
    steady_state: SteadySpec = Field(default_factory=SteadySpec)
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    judge: tuple[Oracle, ...] = Field(default=ORACLES, min_length=1)

    @field_validator("abort", mode="before")
    @classmethod
    def _none_is_said(cls, value: object) -> object:
        if value == "none":
            return ()
        if isinstance(value, list | tuple) and value:
            return value
        raise ValueError(
            "needs a list of conditions such as - error_rate: 5%"
            " (`abort: none` with an abort_reason if there shall be none)"
        )

"""A ladder as its file says it, and where a mistake in it is.

Commands are lists of arguments: there is no shell, so nothing is split, expanded or
substituted on the way from the file to the program.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from chaos.errors import UsageError
from chaos.scenario.errors import Location, Problem, ScenarioError
from chaos.scenario.load import read_yaml
from chaos.scenario.quantities import duration_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA = "canary.ladder/1"
MAX_BYTES = 256 << 10
MAX_STAGES = 32
MAX_ARGUMENTS = 256
LEAST_BUDGET_S = 0.1


class LadderError(ScenarioError):
    """A ladder file cannot be climbed; every line names a place and its remedy."""


def _scalars_as_text(value: object) -> object:
    """Arguments that YAML reads as numbers are still arguments: `5` is "5"."""
    if not isinstance(value, list):
        return value
    plain = (int, float)
    return [
        str(v) if isinstance(v, plain) and not isinstance(v, bool) else v for v in value
    ]


Duration = Annotated[float, BeforeValidator(duration_s)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.%@-]{1,64}$")]
Argument = Annotated[str, StringConstraints(max_length=8192, pattern=r"^[^\x00]*$")]
Command = Annotated[
    tuple[Argument, ...],
    Field(min_length=1, max_length=MAX_ARGUMENTS),
    BeforeValidator(_scalars_as_text),
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stage(_Model):
    """One step: approve, apply, judge; and how it is taken back.

    `gate` passes with exit code 0, 3 could not tell, all else failed. `budget` is the
    time of `apply` and `gate` together. `rollback` must be harmless when it is run
    again, or after an `apply` that did nothing; `none` says that nothing is changed.
    """

    name: Word
    apply: Command | None = None
    gate: Command
    budget: Duration
    rollback: Command | Literal["none"]
    rollback_budget: Duration = 600.0
    approve: str = Field(default="", max_length=500)
    on_inconclusive: Literal["hold", "rollback"] = "hold"

    @field_validator("gate", "apply", "rollback")
    @classmethod
    def _named(cls, value: object) -> object:
        if isinstance(value, tuple) and not value[0].strip():
            raise ValueError("has no program as its first word")
        return value

    @field_validator("budget", "rollback_budget")
    @classmethod
    def _some_time(cls, value: float) -> float:
        if value < LEAST_BUDGET_S:
            raise ValueError(f"is under {LEAST_BUDGET_S:g} s: no command ends in that")
        return value

    @model_validator(mode="after")
    def _way_back(self) -> Self:
        if self.apply and self.rollback == "none":
            raise ValueError("has an apply and no rollback; say how it is taken back")
        return self

    @property
    def undo(self) -> tuple[str, ...] | None:
        """The rollback command, None where nothing is changed."""
        return None if self.rollback == "none" else self.rollback


class Ladder(_Model):
    """The whole rollout, from the first stage to the last."""

    schema_: Literal["canary.ladder/1"] = Field(alias="schema")
    name: Word
    stages: tuple[Stage, ...] = Field(min_length=1, max_length=MAX_STAGES)

    @model_validator(mode="after")
    def _different_names(self) -> Self:
        names = [stage.name for stage in self.stages]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"has two stages called {twice[0]}; name them apart")
        return self

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)


def load_ladder(path: Path) -> tuple[Ladder, str]:
    """The ladder of a file, and its text.

    Raises:
        LadderError: It cannot be climbed; every problem has its line.
        UsageError: It cannot be read.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LadderError([f"{path}:1: is longer than {MAX_BYTES >> 10} KiB"])
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8 text"
        raise UsageError(f"{path}: {reason}", "name a ladder file") from error
    return parse_ladder(text, str(path)), text


def parse_ladder(text: str, file: str = "ladder.yaml") -> Ladder:
    """The ladder of a text; `file` is what errors call it.

    Raises:
        LadderError: It cannot be climbed.
    """
    try:
        document, lines = read_yaml(text, file)
    except ScenarioError as error:
        raise LadderError(error.lines) from None
    try:
        return Ladder.model_validate(document)
    except ValidationError as error:
        found = dict.fromkeys(
            problem.told(file, _line(lines, problem)) for problem in _problems(error)
        )
        raise LadderError(list(found)) from None


def digest_of(text: str) -> str:
    """What says that a ladder is still the one that was begun."""
    return hashlib.sha256(text.encode()).hexdigest()


def _problems(error: ValidationError) -> Iterable[Problem]:
    for row in error.errors(include_url=False, include_context=False):
        place = tuple(part for part in row["loc"] if not _is_branch(part))
        yield _problem(row["type"], place, row["msg"], row["input"])


def _is_branch(part: int | str) -> bool:
    """Names that pydantic gives to the branches of a choice; no field of a file."""
    return isinstance(part, str) and not part.isidentifier()


def _problem(kind: str, place: Location, message: str, value: Any) -> Problem:
    if kind == "missing":
        return Problem(location=place, what="is missing", fix=_says(place))
    if kind == "extra_forbidden":
        fields = (
            Stage.model_fields if "stages" in place else ("schema", "name", "stages")
        )
        fix = f"there are {', '.join(fields)}"
        return Problem(location=place, what="is no field here", fix=fix, value=value)
    what = message.removeprefix("Value error, ")
    shown = value if isinstance(value, str | int | float | list) else None
    return Problem(location=place, what=what[:1].lower() + what[1:], value=shown)


def _says(place: Location) -> str:
    hints = {
        "schema": f"write schema: {SCHEMA}",
        "name": "give it a name",
        "stages": "list what comes after what",
        "gate": "say which command judges it, e.g. gate: [canary, judge, ...]",
        "budget": "say how long it may take, e.g. budget: 30m",
        "rollback": "say which command takes it back, or `none` if nothing changes",
    }
    return hints.get(str(place[-1]), "add it") if place else "add it"


def _line(lines: Mapping[Location, int], problem: Problem) -> int:
    """The line of the place, or of the nearest place around it."""
    place = problem.location
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)

"""A schedule: steps of clients and faults on a small cluster, one after the other.

A plain document, so that what failed can be cut down step by step, written to a file
and played again. Times are the system's own seconds; `time_scale` makes them real ones.
Every sub-sequence of the steps of a schedule is a schedule: what makes no sense any
more (to heal what was never broken) does nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TYPE_CHECKING, Any, ClassVar, Final

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from chaos.errors import UsageError
from chaos.scenario.load import MAX_BYTES, read_yaml

if TYPE_CHECKING:
    from pathlib import Path

MAX_STEPS: Final = 2000
MAX_LOOK_S: Final = 600.0
MAX_SIZE_BYTES: Final = 16 << 20
_STRICT: Final = ConfigDict(extra="forbid")
_WIDTH: Final = 100


@unique
class Do(Enum):
    """What a step does."""

    PUT = "put"
    """`by` writes value number `value` of `keys`."""
    GET = "get"
    """`by` reads `keys` by `path`."""
    EXISTS = "exists"
    """`by` asks whether `keys` are there; with `seconds` again and again, so long."""
    REMOVE = "remove"
    ANNOUNCE = "announce"
    """`by` starts a write of one key and does not go on; `name` is for `end`."""
    END = "end"
    """The write `name` is declared complete, as by a writer that was held up."""
    FILL = "fill"
    """`by` writes `count` objects of no interest, so that others must go."""
    FRESH = "fresh"
    """`by` becomes a client that knows nothing: its process or connections anew."""
    WAIT = "wait"
    """Nothing, for `seconds`."""
    BREAK = "break"
    """`fault` on `target`; `name` is for `heal`, "" when there is nothing to heal."""
    HEAL = "heal"


CLIENT_STEPS: Final = frozenset(
    {Do.PUT, Do.GET, Do.EXISTS, Do.REMOVE, Do.ANNOUNCE, Do.END, Do.FILL, Do.FRESH}
)
_NEEDS_KEYS: Final = frozenset({Do.PUT, Do.GET, Do.EXISTS, Do.REMOVE, Do.ANNOUNCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. `target` may be `holder K`, the store that has key K at that moment, or
    `leader`, the master that serves.

    A step in the `background` is begun and not waited for, until its client has
    something else to do, or all is over.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    do: Do
    by: str = ""
    keys: tuple[str, ...] = ()
    value: int = 0
    path: str = ""
    name: str = ""
    count: int = 0
    seconds: float = 0.0
    timeout: float = 0.0
    fault: str = ""
    target: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    background: bool = False

    def problem(self) -> str:
        """What is wrong with it, "" when nothing is."""
        if self.do in CLIENT_STEPS and not self.by:
            return "has no client; say who does it, e.g. by: c0"
        if self.do in _NEEDS_KEYS and not self.keys:
            return "has no keys; name some, e.g. keys: [k0]"
        if self.do is Do.PUT and not 0 <= self.value <= 255:
            return f"writes value {self.value}; there are 0 to 255"
        if self.do is Do.BREAK and not (self.fault and self.target):
            return "needs a fault and a target, e.g. fault: kill, target: store-0"
        if self.do in (Do.ANNOUNCE, Do.END, Do.HEAL) and not self.name:
            return "has no name; it tells which one is meant"
        if min(self.seconds, self.timeout, self.count) < 0:
            return "has a number below 0"
        if self.do is Do.EXISTS and self.seconds > MAX_LOOK_S:
            return f"asks for {self.seconds:g} s; at most {MAX_LOOK_S:g}"
        if self.do is Do.EXISTS and self.seconds and self.background:
            return (
                "asks again and again, which is not for the background; leave one out"
            )
        return ""

    def __str__(self) -> str:
        return _one_line(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps, and the cluster that they are played on.

    `shape` are fields of `ClusterSpec`. `expects` names the kinds of findings that are
    known of the system (`findings.Kind`): found or not, they are no news.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    system: str = "refimpl"
    target: str = "local"
    seed: int = 0
    time_scale: float = 1.0
    size_bytes: int = 16 << 10
    timeout: float = 20.0
    shape: Mapping[str, Any] = field(default_factory=dict)
    expects: tuple[str, ...] = ()
    note: str = ""
    steps: tuple[Step, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that some step names, in order."""
        return tuple(dict.fromkeys(key for step in self.steps for key in step.keys))

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.by for step in self.steps if step.by))

    def with_steps(self, steps: tuple[Step, ...]) -> Schedule:
        return dataclasses.replace(self, steps=steps)


_ADAPTER: TypeAdapter[Schedule] = TypeAdapter(Schedule)


def as_yaml(schedule: Schedule) -> str:
    """The schedule as a file: a line a step, without what is as by default."""
    document = _plain(schedule)
    steps = document.pop("steps", [])
    head = yaml.safe_dump(document, sort_keys=False, width=_WIDTH)
    return head + "steps:\n" + "".join(f"  - {_flow(step)}\n" for step in steps)


def load_schedule(path: Path) -> Schedule:
    """The schedule of a file.

    Raises:
        UsageError: It cannot be read or played.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} is longer than {MAX_BYTES >> 10} KiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8 text"
        raise UsageError(f"{path}: {reason}", "name a schedule file") from error
    return parse_schedule(text, str(path))


def parse_schedule(text: str, file: str = "schedule.yaml") -> Schedule:
    """The schedule of a text; `file` is what errors call it.

    Raises:
        UsageError: It cannot be played; the line and the field are named.
    """
    document, lines = read_yaml(text, file)
    try:
        schedule = _ADAPTER.validate_python(document)
    except ValidationError as error:
        row = error.errors(include_url=False)[0]
        place = tuple(row["loc"])
        what = f"{_place(place)}: {row['msg']}"
        raise UsageError(f"{file}:{_line(lines, place)}: {what}") from None
    for number, step in enumerate(schedule.steps):
        if problem := step.problem():
            line = _line(lines, ("steps", number))
            raise UsageError(f"{file}:{line}: steps[{number}] {problem}")
    if problem := _problem(schedule):
        raise UsageError(f"{file}:1: {problem}")
    return schedule


def _problem(schedule: Schedule) -> str:
    if len(schedule.steps) > MAX_STEPS:
        return f"has {len(schedule.steps)} steps; at most {MAX_STEPS}"
    if not 32 <= schedule.size_bytes <= MAX_SIZE_BYTES:
        return f"size_bytes {schedule.size_bytes} is not 32 to {MAX_SIZE_BYTES}"
    if not (schedule.time_scale > 0 and schedule.timeout > 0):
        return "time_scale and timeout are more than 0"
    return ""


def _plain(thing: Any) -> Any:
    """Plain data, without fields that are as by default."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {
            item.name: _plain(getattr(thing, item.name))
            for item in dataclasses.fields(thing)
            if getattr(thing, item.name) != _default(item)
        }
    if isinstance(thing, Enum):
        return thing.value
    if isinstance(thing, Mapping):
        return {str(key): _plain(value) for key, value in thing.items()}
    if isinstance(thing, tuple | list):
        return [_plain(each) for each in thing]
    return thing


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def _flow(document: Any) -> str:
    text: str = yaml.safe_dump(
        document, sort_keys=False, width=float("inf"), default_flow_style=True
    )
    return text.strip()


def _one_line(step: Step) -> str:
    return _flow(_plain(step))


def _place(place: tuple[Any, ...]) -> str:
    words = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in place
    )
    return words.removeprefix(".") or "the file"


def _line(lines: Mapping[tuple[Any, ...], int], place: tuple[Any, ...]) -> int:
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)

"""Reads a scenario file and says in which line a mistake is.

YAML 1.1 has traps for such files: `on` and `no` are truth values, `1:30` is ninety, a
key that stands twice silently wins the second time, and a few aliases can expand to a
billion nodes. Here only `true` and `false` are truth values, numbers are decimal,
doubled keys are errors, and anchors are refused.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from chaos.errors import UsageError
from chaos.scenario.check import problems_of
from chaos.scenario.errors import Location, Problem, ScenarioError
from chaos.scenario.schema import (
    ConditionSpec,
    FaultSpec,
    LimitsSpec,
    Load,
    Scenario,
    Shape,
    SteadySpec,
    Step,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_BYTES = 256 << 10
MAX_NODES = 20_000
MAX_DEPTH = 16
_MAP, _SEQ = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"
_FIELDS: Mapping[str, Any] = {
    "": Scenario,
    "timeline": Step,
    "abort": ConditionSpec,
    "during": ConditionSpec,
    "together": FaultSpec,
    "one_of": FaultSpec,
    "cluster": Shape,
    "load": Load,
    "steady_state": SteadySpec,
    "limits": LimitsSpec,
}


class _Loader(yaml.SafeLoader):
    """Plain data in YAML 1.2's manner: no `on`, no sexagesimals, no dates."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own shape


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|)$"), ["~", "n", ""]
)


def load_scenario(path: Path) -> Scenario:
    """The scenario of a file.

    Raises:
        ScenarioError: It cannot be read or played; every problem has its line.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ScenarioError([f"{path}:1: is longer than {MAX_BYTES >> 10} KiB"])
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8 text"
        raise UsageError(f"{path}: {reason}", "name a scenario file") from error
    return parse_scenario(text, str(path))


def parse_scenario(text: str, file: str = "scenario.yaml") -> Scenario:
    """The scenario of a text; `file` is what errors call it.

    Raises:
        ScenarioError: It cannot be read or played.
    """
    document, lines = read_yaml(text, file)
    try:
        scenario = Scenario.model_validate(document)
        problems = problems_of(scenario)
    except ValidationError as error:
        problems = list(_problems(error))
    if problems:
        found = {problem.told(file, _line(lines, problem)) for problem in problems}
        raise ScenarioError(sorted(found, key=_line_number))
    return scenario


def read_yaml(text: str, file: str) -> tuple[Any, dict[Location, int]]:
    """Plain data, and the line of every place in it.

    Raises:
        ScenarioError: It is no YAML of the plain kind.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[Location, int] = {(): 1}
        if node is None:
            raise ScenarioError([f"{file}:1: the file is empty; see docs"])
        return _Reader(file, loader, lines).plain(node, ()), lines
    except yaml.YAMLError as error:
        raise ScenarioError([f"{file}:{_yaml_words(error)}"]) from None
    finally:
        loader.dispose()


class _Reader:
    """Turns nodes into data and remembers their lines, with bounds on both."""

    def __init__(self, file: str, loader: _Loader, lines: dict[Location, int]) -> None:
        self._file = file
        self._loader = loader
        self._lines = lines
        self._seen: set[int] = set()

    def plain(self, node: yaml.Node, at: Location) -> Any:
        self._lines.setdefault(at, node.start_mark.line + 1)
        if id(node) in self._seen:
            self._refuse(node, at, "is an alias; write it out")
        self._seen.add(id(node))
        if len(at) > MAX_DEPTH or len(self._seen) > MAX_NODES:
            self._refuse(node, at, "there is too much in this file")
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self._mapping(node, at)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return [self.plain(one, (*at, i)) for i, one in enumerate(node.value)]
        return self._loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str):
                self._refuse(key_node, at, "has a key that is no word")
            if key in found:
                self._refuse(key_node, (*at, key), "stands twice; keep one of them")
            self._lines[(*at, key)] = key_node.start_mark.line + 1
            found[key] = self.plain(value_node, (*at, key))
        return found

    def _refuse(self, node: yaml.Node, at: Location, what: str) -> None:
        problem = Problem(location=at, what=what)
        raise ScenarioError([problem.told(self._file, node.start_mark.line + 1)])


def _problems(error: ValidationError) -> Iterable[Problem]:
    """Pydantic's errors as ours, without those that only follow from deeper ones."""
    rows = error.errors(include_url=False, include_context=False)
    places = [tuple(row["loc"]) for row in rows]
    for row, place in zip(rows, places, strict=True):
        follows = any(len(o) > len(place) and o[: len(place)] == place for o in places)
        if row["type"] != "too_short" or not follows:
            yield _problem(row["type"], place, row["msg"], row["input"])


def _problem(kind: str, place: Location, message: str, value: object) -> Problem:
    if kind == "missing":
        return Problem(location=place, what="is missing", fix=_says(place))
    if kind == "extra_forbidden":
        return Problem(
            location=place, what="is no field here", fix=_near(place), value=value
        )
    what = message.removeprefix("Value error, ")
    return Problem(location=place, what=what[:1].lower() + what[1:], value=value)


def _says(place: Location) -> str:
    """What to write where a field is missing."""
    hints = {
        "abort": "list conditions such as - error_rate: 5%, or say `abort: none`"
        " with an abort_reason",
        "name": "give it a name",
        "timeline": "list what is broken, and when",
        "at": "say when it begins, e.g. at: 20s",
        "target": "say what is broken, e.g. target: store-1",
        "fault": "say how it is broken, e.g. fault: kill",
    }
    return hints.get(str(place[-1]), "add it") if place else "add it"


def _near(place: Location) -> str:
    """The field that was probably meant, and all there are."""
    parents = [part for part in place[:-1] if isinstance(part, str)]
    model = _FIELDS.get(parents[-1] if parents else "")
    if model is None:
        return "take it out"
    names = [field.alias or name for name, field in model.model_fields.items()]
    close = difflib.get_close_matches(str(place[-1]), names, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"


def _line(lines: Mapping[Location, int], problem: Problem) -> int:
    """The line of the place, or of the nearest place around it."""
    place = problem.location
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)


def _line_number(told: str) -> tuple[int, str]:
    match = re.search(r":(\d+): ", told)
    return (int(match[1]) if match else 0, told)


def _yaml_words(error: yaml.YAMLError) -> str:
    """`12: mapping values are not allowed here; mend the YAML`."""
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else 1
    words = " ".join(str(getattr(error, "problem", "") or error).split())
    return f"{line}: {words}; mend the YAML"

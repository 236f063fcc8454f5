"""Turns what pydantic found into one line: file, line, host, field, value, remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inventory.errors import InventoryError
from inventory.raw import Lined, LinedList

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_EVERY_FIELD = "docs/inventory.md has every field"


def complaint(
    error: ValidationError, values: Lined, *, file: str, host: str = ""
) -> InventoryError:
    """The first thing that is wrong, and how many more there are."""
    details = error.errors(include_url=False)
    first = details[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return InventoryError(
        _problem(first) + more,
        fix=_fix(first),
        file=file,
        line=_line(values, first["loc"]),
        host=host,
        field=_field(values, first["loc"]),
        value=_value(first),
    )


def _problem(details: ErrorDetails) -> str:
    said = details["msg"].removeprefix("Value error, ")
    if details["type"] == "missing":
        return "it is missing"
    if details["type"] == "extra_forbidden":
        return "there is no such field"
    return said[:1].lower() + said[1:]


def _fix(details: ErrorDetails) -> str:
    context: dict[str, Any] = details.get("ctx", {})
    kind = details["type"]
    if kind == "literal_error":
        return f"write {context.get('expected', 'one of the known words')}"
    if kind == "missing":
        return f"add it; {_EVERY_FIELD}"
    if kind == "extra_forbidden":
        return f"remove it or correct its name; {_EVERY_FIELD}"
    if kind.startswith("bool"):
        return "write true or false"
    if kind.startswith(("int", "float", "less", "greater")):
        return "write a number in that range"
    return f"correct it; {_EVERY_FIELD}"


def _value(details: ErrorDetails) -> object:
    """What stood there; nothing where a whole mapping would be shown."""
    value = details["input"]
    whole = isinstance(value, (dict, list, tuple)) and details["type"] in (
        "missing",
        "value_error",
    )
    return None if whole else value


def _field(values: Lined, location: tuple[int | str, ...]) -> str:
    """`rails[0].device`; the first part as it is spelled in the file."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif text:
            text += "" if part == "[key]" else f".{part}"
        else:
            text = values.written.get(part, part)
    return text


def _line(values: Lined, location: tuple[int | str, ...]) -> int:
    """The line of the innermost part of the place that knows one."""
    line = values.line
    here: Any = values
    for part in location:
        if isinstance(here, Lined) and part in here:
            line = here.lines.get(str(part), line)
        elif isinstance(here, LinedList) and isinstance(part, int):
            line = here.lines[part] if part < len(here.lines) else line
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            break  # the place is one that is missing
        line = getattr(here, "line", 0) or line
    return line

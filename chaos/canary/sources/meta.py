"""`meta.json` of an arm: what it is, whether it came to its end, what was counted."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from chaos.canary.sources.flaws import Flaws

SCHEMA = "canary.samples/1"
NAME = "meta.json"
MAX_BYTES = 4 << 20
MAX_COUNT = 1 << 62
_LISTED = ("schema", "arm", "complete", "counters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What it says, checked; `rest` is everything that only reports show."""

    arm: str
    complete: bool
    requests: int | None
    counters: Mapping[str, int]
    rest: Mapping[str, Any]


def read_meta(folder: Path, arm: str, flaws: Flaws) -> Meta:
    """The meta data of an arm that the operator called `arm`.

    Raises:
        UsageError: There is none, it is of another kind, or of the other arm.
    """
    path = folder / NAME
    document = _document(path, folder)
    schema = document.get("schema")
    if schema != SCHEMA:
        told = f"{path}: schema {_short(schema)} is not {SCHEMA}"
        raise UsageError(told, "name a directory that this version can read")
    found = document.get("arm")
    if found != arm:
        told = f"{path}: arm {_short(found)} was given as --{arm}"
        raise UsageError(told, f"name the {arm}'s directory, or mend its arm")
    _check_clock(document, flaws)
    return Meta(
        arm=arm,
        complete=_complete(document, flaws),
        requests=_requests(document, flaws),
        counters=_counters(document, flaws),
        rest={k: v for k, v in document.items() if k not in _LISTED},
    )


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a name that stands twice nobody knows which value is true.

    Raises:
        ValueError: A name stands twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def regular(path: Path) -> bool:
    """Whether it is a plain file, which can be read without waiting for anybody."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _document(path: Path, folder: Path) -> Mapping[str, Any]:
    try:
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: is no directory", "name one that canary run wrote"
            )
        if not regular(path):
            told = f"{folder}: is no measurement, it has no {NAME}"
            raise UsageError(told, "name a directory that canary run wrote")
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: is longer than {MAX_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
        document = json.loads(text, object_pairs_hook=once)
    except OSError as error:
        told = f"{error.filename or folder}: cannot be read: {error.strerror}"
        raise UsageError(told, "name a directory that you may read") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: is no JSON", "measure this arm again") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: is no JSON object", "measure this arm again")
    return document


def _complete(document: Mapping[str, Any], flaws: Flaws) -> bool:
    complete = document.get("complete")
    if complete is True:
        return True
    why = str(
        document.get("incomplete_because") or "it does not say that it is complete"
    )
    flaws.add(
        "incomplete", f"the arm did not come to its end: {' '.join(why.split())[:200]}"
    )
    return False


def _requests(document: Mapping[str, Any], flaws: Flaws) -> int | None:
    value = document.get("requests")
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    flaws.add("requests", f"{NAME}: requests {_short(value)} is no number of rows")
    return None


def _check_clock(document: Mapping[str, Any], flaws: Flaws) -> None:
    """It says when it was; an end before the start is a clock that was set."""
    began, ended = (_number(document.get(name)) for name in ("started_at", "ended_at"))
    if began is None or ended is None:
        flaws.add("clock", f"{NAME}: started_at and ended_at do not say when it was")
    elif ended < began:
        flaws.add("clock", f"{NAME}: it ended {began - ended:g} s before it started")


def _counters(document: Mapping[str, Any], flaws: Flaws) -> dict[str, int]:
    """What was counted; a value that is no count is as good as not observed."""
    found = document.get("counters", {})
    if not isinstance(found, dict):
        flaws.add("counters", f"{NAME}: counters are no object")
        return {}
    counters = {}
    for name, value in found.items():
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and 0 <= value < MAX_COUNT
        ):
            counters[str(name)] = value
        elif value is not None:
            flaws.add("counters", f"{NAME}: counter {name} {_short(value)} is no count")
    return counters


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < MAX_COUNT and math.isfinite(value) else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

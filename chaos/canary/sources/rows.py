"""`requests.jsonl`: one row a request, read once, in one pass, with bounds.

Fields that the gate knows have their columns; every other number is a metric of its own
name. NaN and Infinity are no JSON and no measurement: they are told, and the value is
missing. A row that says nothing sure (no JSON, no `ok`) is left out, and told.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from chaos.canary.samples import Columns, Samples
from chaos.canary.sources.meta import once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from chaos.canary.sources.flaws import Flaws
    from chaos.canary.sources.meta import Meta

NAME = "requests.jsonl"
MAX_ROWS = 5_000_000
MAX_LINE = 64 << 10
MAX_METRICS = 64
_TEXTS = ("session", "host", "class", "cause")
_WHOLE = ("request", "arm_turn")
_MOST_WHOLE = 1 << 53
_MOST = 1e12
_OTHERS = ("ok", "start_s", "prompt_tokens", "hit_tokens", "lag_s")
_TAKEN = frozenset((*_TEXTS, *_WHOLE, *_OTHERS))
_SIGNED = frozenset({"lag_s"})


@dataclass(slots=True)
class _Rows:
    """Columns as lists, while they grow."""

    ok: list[bool] = field(default_factory=list)
    texts: dict[str, list[str | None]] = field(
        default_factory=lambda: {name: [] for name in _TEXTS}
    )
    whole: dict[str, list[int | None]] = field(
        default_factory=lambda: {name: [] for name in _WHOLE}
    )
    numbers: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in _OTHERS[1:]}
    )
    metrics: dict[str, list[float]] = field(default_factory=dict)


def read_rows(path: Path, meta: Meta, flaws: Flaws) -> Samples:
    """The samples of an arm.

    Raises:
        OSError: The file cannot be read.
    """
    rows, seen = _Rows(), set[int]()
    with path.open("rb") as file:
        for number, document in _documents(file, flaws):
            _add(rows, document, f"{NAME}:{number}", seen, flaws)
    if not rows.ok:
        flaws.add("empty", f"{NAME}: holds no request")
    if meta.requests is not None and meta.requests != len(rows.ok):
        told = f"{NAME}: has {len(rows.ok)} usable rows of {meta.requests} recorded"
        flaws.add("count", told)
    return _samples(rows, meta, flaws)


def _documents(file: IO[bytes], flaws: Flaws) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        where = f"{NAME}:{number}"
        if number > MAX_ROWS:
            flaws.add("long", f"{where}: only {MAX_ROWS} rows are read")
            return
        if len(line) > MAX_LINE:
            flaws.add("long", f"{where}: is longer than {MAX_LINE >> 10} KiB")
            return
        if not line.endswith(b"\n"):
            flaws.add("cut", f"{where}: is cut off in the middle of a row")
            return
        document = _document(line)
        if document is None:
            flaws.add("json", f"{where}: is no row, but {_shown(line)}")
        else:
            yield number, document


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _shown(line: bytes) -> str:
    text = line[:40].decode("utf-8", errors="replace").rstrip()
    return repr(text)


def _add(
    rows: _Rows, document: dict[str, Any], where: str, seen: set[int], flaws: Flaws
) -> None:
    ok = document.get("ok")
    if not isinstance(ok, bool):
        flaws.add("ok", f"{where}: ok {ok!r:.40} is neither true nor false")
        return
    request = _whole(document, "request", where, flaws)
    if request is not None and request in seen:
        flaws.add("twice", f"{where}: request {request} stands twice")
        return
    if request is not None:
        seen.add(request)
    rows.ok.append(ok)
    rows.whole["request"].append(request)
    rows.whole["arm_turn"].append(_whole(document, "arm_turn", where, flaws))
    for name, texts in rows.texts.items():
        texts.append(_text(document, name, where, flaws))
    for name, numbers in rows.numbers.items():
        numbers.append(_number(document, name, where, flaws))
    _add_metrics(rows, document, where, flaws)


def _add_metrics(
    rows: _Rows, document: dict[str, Any], where: str, flaws: Flaws
) -> None:
    for name, value in document.items():
        if name in _TAKEN or name in rows.metrics or isinstance(value, str | bool):
            continue
        if len(rows.metrics) >= MAX_METRICS:
            flaws.add("metrics", f"{where}: has more than {MAX_METRICS} metrics")
            break
        rows.metrics[name] = [math.nan] * (len(rows.ok) - 1)
    for name, column in rows.metrics.items():
        column.append(_number(document, name, where, flaws))


def _number(document: dict[str, Any], name: str, where: str, flaws: Flaws) -> float:
    """The value, NaN when it was not measured or is no measurement."""
    value = document.get(name)
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        flaws.add(f"type {name}", f"{where}: {name} {value!r:.40} is no number")
    elif not abs(value) < _MOST:
        flaws.add(f"finite {name}", f"{where}: {name} {value!r:.40} is no measurement")
    elif value < 0 and name not in _SIGNED:
        flaws.add(f"sign {name}", f"{where}: {name} {value!r:.40} is negative")
    else:
        return float(value)
    return math.nan


def _whole(document: dict[str, Any], name: str, where: str, flaws: Flaws) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and 0 <= value < _MOST_WHOLE:
        return int(value)
    flaws.add(f"type {name}", f"{where}: {name} {value!r:.40} is no whole number")
    return None


def _text(document: dict[str, Any], name: str, where: str, flaws: Flaws) -> str | None:
    value = document.get(name)
    if value is None or isinstance(value, str):
        return value
    flaws.add(f"type {name}", f"{where}: {name} {value!r:.40} is no text")
    return None


def _samples(rows: _Rows, meta: Meta, flaws: Flaws) -> Samples:
    request = _column(rows.whole["request"])
    if request is None and any(one is not None for one in rows.whole["request"]):
        flaws.add("pairs", f"{NAME}: some rows have no request number")
    return Columns(
        arm=meta.arm,
        ok=rows.ok,
        metrics=rows.metrics,
        request=request,
        sessions=rows.texts["session"],
        hosts=rows.texts["host"],
        classes=rows.texts["class"],
        start_s=rows.numbers["start_s"],
        cause=tuple(one or "" for one in rows.texts["cause"]),
        hit_tokens=rows.numbers["hit_tokens"],
        prompt_tokens=rows.numbers["prompt_tokens"],
        lag_s=rows.numbers["lag_s"],
        turn=_column(rows.whole["arm_turn"]),
        counters=meta.counters,
        complete=meta.complete,
        problems=flaws.told(),
        meta=meta.rest,
    ).samples()


def _column(values: list[int | None]) -> list[int] | None:
    """A column of numbers, None when some row has none."""
    if not values or any(one is None for one in values):
        return None
    return [one for one in values if one is not None]

"""What a history says about each test, as columns: for plots, metrics and stories.

Nothing is judged here, so this reader forgives: a line that is damaged is counted and
left out, where `read_history` refuses the file. Lines are read one after the other, and
a history larger than `MOST_BYTES` is not read at all unless the caller insists: a
report that comes with a run must not hold the run up.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaos.judge.breaker import Change, changes_of
from chaos.report.redaction import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Column = NDArray[np.float64]

MOST_BYTES: Final = 64 << 20
MOST_ARMS: Final = 12
"""Arms, and engines, of one test; further ones are counted as damage."""
MOST_SAMPLES: Final = 200_000
SET_UP: Final = frozenset({"keep"})
"""Arms that only fill the pool; they are not what a test is about."""
_NAME_MOST: Final = 60


@dataclass(slots=True, kw_only=True)
class Arm:
    """The requests of one arm of a test, in the order in which they ended.

    Instants are seconds on the clock of the run. TTFT is modelled prefill after real
    waits, counted from the intended start; waits are real. A number that the history
    does not hold is NaN.
    """

    name: str
    requests: list[str] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    allowed_s: list[float] = field(default_factory=list)
    reused: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    ok: list[bool] = field(default_factory=list)
    wrong: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.at_s)

    def column(self, name: str) -> Column:
        """A column as an array of floats."""
        return np.asarray(getattr(self, name), dtype=np.float64)

    @property
    def hit_rate(self) -> float:
        """Tokens reused / tokens asked over all good answers; NaN without any."""
        asked = float(np.nansum(self.column("asked")))
        return float(np.nansum(self.column("reused"))) / asked if asked else math.nan

    @property
    def failed(self) -> int:
        return len(self.ok) - sum(self.ok)

    def quantile(self, column: str, q: float) -> float:
        """A quantile of a column's known values; NaN without any."""
        values = self.column(column)
        known = values[np.isfinite(values)]
        return float(np.quantile(known, q)) if known.size else math.nan


@dataclass(slots=True, kw_only=True)
class Trace:
    """Everything of one test that can be shown over time."""

    test: str
    arms: dict[str, Arm] = field(default_factory=dict)
    breakers: dict[str, list[Change]] = field(default_factory=dict)
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)
    poll_s: float = 0.0

    @property
    def shown(self) -> list[Arm]:
        """The arms that the test is about."""
        arms = self.arms.values()
        return [arm for arm in arms if len(arm) and arm.name not in SET_UP]


@dataclass(slots=True, kw_only=True)
class Traces:
    """A whole history; `why` says why something is missing, "" when nothing is."""

    tests: dict[str, Trace] = field(default_factory=dict)
    damaged: int = 0
    dropped: int = 0
    skipped: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """What systems said they are, by the name of the system."""

    def of(self, test: str) -> Trace:
        """The trace of a test; an empty one where the history does not know it."""
        return self.tests.get(test) or Trace(test=test)

    @property
    def why(self) -> str:
        words = [self.skipped] if self.skipped else []
        if self.damaged:
            words.append(f"{self.damaged} lines of the history could not be read")
        if self.dropped:
            words.append(f"{self.dropped} events are missing from the history")
        return "; ".join(words)


def read_traces(path: Path, *, most_bytes: float = MOST_BYTES) -> Traces:
    """Reads a `history.jsonl`; a missing one is an empty one."""
    found = Traces()
    try:
        size = path.stat().st_size
    except OSError as error:
        found.skipped = f"there is no history: {error.strerror}"
        return found
    if size > most_bytes:
        found.skipped = (
            f"the history ({size >> 20} MiB) is too large to be drawn during a run; "
            "`chaos analyze RUN --html` draws it"
        )
        return found
    for row in _rows(path, found):
        try:
            _take(found, row)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            found.damaged += 1
    return found


def _rows(path: Path, found: Traces) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if '"type":"invoke"' in line or not line.strip():
                continue
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                found.damaged += 1


def _take(found: Traces, row: Mapping[str, Any]) -> None:
    what, value = row["f"], row["value"]
    if what == "truncated":
        found.dropped += int(value["dropped"])
        return
    if what == "version":
        found.versions.setdefault(_name(row["process"]), _name(value["text"]))
        return
    reader = _READERS.get(what)
    if reader is None:
        return
    name = str(row["test"])
    trace = found.tests.get(name)
    if trace is None:
        trace = found.tests[name] = Trace(test=name)
    reader(trace, row, value)


def _take_sample(trace: Trace, _row: Mapping[str, Any], value: Any) -> None:
    sample, answer = value["sample"], value["sample"]["answer"]
    if sample["ending"] in ("shed", "cancelled"):
        return
    at_s, done_s = _real(sample["intended_s"]), _real(sample["done_s"])
    arm = _arm(trace, value["arm"])
    if len(arm) >= MOST_SAMPLES:
        message = "more samples than are kept"
        raise ValueError(message)
    good = answer is not None and answer["ok"] is True
    expected = value.get("expected") or ""
    lag_s = _real(sample["sent_s"]) - at_s
    ttft_s = lag_s + _real(answer["ttft_modelled_s"]) if good else done_s - at_s
    wait_s = _real(answer["cache_wait_s"]) if good else math.nan
    allowed_s = _real(answer["deadline_s"]) if good else math.nan
    reused = _reused(answer) if good else math.nan
    asked = _real(answer["input_tokens"]) if good else math.nan
    arm.requests.append(_name(sample["request"]["request_id"]))
    arm.at_s.append(at_s)
    arm.ttft_s.append(ttft_s)
    arm.wait_s.append(wait_s)
    arm.allowed_s.append(allowed_s)
    arm.reused.append(reused)
    arm.asked.append(asked)
    arm.ok.append(good)
    arm.wrong.append(bool(good and expected and answer["output_hash"] != expected))


def _arm(trace: Trace, name: object) -> Arm:
    told = _name(name)
    if told not in trace.arms:
        if len(trace.arms) >= MOST_ARMS:
            message = "more arms than are shown"
            raise ValueError(message)
        trace.arms[told] = Arm(name=told)
    return trace.arms[told]


def _take_limits(trace: Trace, _row: Mapping[str, Any], value: Any) -> None:
    trace.poll_s = _real(value["poll_s"])


def _take_fault(trace: Trace, _row: Mapping[str, Any], value: Any) -> None:
    receipt = value["receipt"]
    trace.faults[str(receipt["fault_id"])] = dict(receipt)


def _take_breaker(trace: Trace, row: Mapping[str, Any], value: Any) -> None:
    engine = _name(row["process"])
    if len(trace.breakers) >= MOST_ARMS and engine not in trace.breakers:
        message = "more engines than are shown"
        raise ValueError(message)
    known = trace.breakers.setdefault(engine, [])
    fresh = changes_of(value["transitions"])
    known += [one for one in fresh if one not in known and math.isfinite(one.at_s)]
    known.sort(key=lambda one: one.at_s)


_READERS: Final = {
    "prefill": _take_sample,
    "limits": _take_limits,
    "fault": _take_fault,
    "breaker": _take_breaker,
}


def _reused(answer: Mapping[str, Any]) -> float:
    return sum(_real(answer[f"l{tier}_tokens"]) for tier in (1, 2, 3))


def _real(value: object) -> float:
    """A finite number; what JSON may hold beside it is damage."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"{value!r} is no number"
        raise TypeError(message)
    if not math.isfinite(value):
        message = f"{value!r} is not finite"
        raise ValueError(message)
    return float(value)


def _name(value: object) -> str:
    """A name as it can be printed: one line, not endless, without secrets."""
    text = clean_text(str(value))
    told = "".join(sign if sign.isprintable() else "?" for sign in text)
    return told if len(told) <= _NAME_MOST else f"{told[: _NAME_MOST - 3]}..."

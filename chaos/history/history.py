"""The record of a run: append-only JSON lines, one event each, readable back.

Event types are Jepsen's: `invoke` (about to be sent), `ok`, `fail` (it happened, badly)
and `info` (indeterminate, or a fact about the run: fault windows, limits, breaker
changes). Nothing is judged while recording; `chaos analyze` judges a history again.

The file is bounded: what does not fit is counted, and the last line says how much is
missing, so that a cut history is never taken for a whole one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, unique
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from chaos.load.sample import Ending, Sample
from chaos.report.redaction import clean_line
from chaos.systems.base import Answer, Limits, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from chaos.faults.base import Receipt

MAX_EVENTS = 1_000_000


@unique
class EventType(Enum):
    """What an event says about its operation."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a history; `at_s` is the clock of the run (monotonic)."""

    at_s: float
    type: EventType
    operation: str
    process: str = ""
    test: str = ""
    value: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        row = {
            "t": round(self.at_s, 6),
            "type": self.type.value,
            "f": self.operation,
            "process": self.process,
            "test": self.test,
            "value": self.value,
        }
        return clean_line(json.dumps(row, separators=(",", ":"), default=_plain))


class HistoryError(ValueError):
    """A history cannot be read: not one of ours, or damaged before its last line."""


class History:
    """An open history; any thread may append, every line is written at once.

    `test` is the scope that following events belong to: one file can hold a session.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_events: int = MAX_EVENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self.test = ""
        self.dropped = 0
        self._max_events, self._clock = max_events, clock
        self._written = 0
        self._lock = threading.Lock()
        self._file: IO[str] | None = self.path.open("a", encoding="utf-8", buffering=1)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def append(self, event: Event) -> bool:
        """Writes one event; false when the history is full or closed."""
        line = event.to_json() + "\n"
        with self._lock:
            if self._file is None or self._written >= self._max_events:
                self.dropped += 1
                return False
            self._file.write(line)
            self._written += 1
            return True

    def info(self, operation: str, process: str = "", **value: object) -> bool:
        """A fact about the run, now."""
        return self.append(self._event(EventType.INFO, operation, process, value))

    def invoke(
        self, request: Request, engine: str, at_s: float, arm: str = "fault"
    ) -> bool:
        """A request is about to be sent."""
        value = {"request_id": request.request_id, "arm": arm}
        return self.append(
            self._event(EventType.INVOKE, "prefill", engine, value, at_s)
        )

    def complete(self, sample: Sample, arm: str = "fault", expected: str = "") -> bool:
        """A request has ended; `expected` is the output hash without a cache."""
        kind = EventType.INFO
        if sample.answer is not None:
            kind = EventType.OK if sample.answer.ok else EventType.FAIL
        value = {"arm": arm, "expected": expected, "sample": sample}
        return self.append(
            self._event(kind, "prefill", sample.engine, value, sample.done_s)
        )

    def limits(self, limits: Limits) -> bool:
        """The promises of the system, needed to judge again."""
        return self.info("limits", **dataclasses.asdict(limits))

    def fault(self, phase: str, receipt: Receipt) -> bool:
        """A fault window begins ("begin") or ends ("end")."""
        return self.info("fault", receipt.target, phase=phase, receipt=receipt)

    def sync(self) -> None:
        """Everything so far is on disk."""
        with self._lock:
            self._sync()

    def close(self) -> None:
        """Says what is missing, syncs and closes; a second call does nothing."""
        with self._lock:
            if self._file is None:
                return
            if self.dropped:
                value = {"dropped": self.dropped}
                event = self._event(EventType.INFO, "truncated", "", value)
                self._file.write(event.to_json() + "\n")
            self._sync()
            self._file.close()
            self._file = None

    def _sync(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _event(
        self,
        kind: EventType,
        operation: str,
        process: str,
        value: Mapping[str, Any],
        at_s: float | None = None,
    ) -> Event:
        return Event(
            at_s=self._clock() if at_s is None else at_s,
            type=kind,
            operation=operation,
            process=process,
            test=self.test,
            value=value,
        )


def read_history(path: str | os.PathLike[str]) -> list[Event]:
    """All events of a history, in the order of the file.

    A last line that was cut (the harness was killed) becomes a `truncated` event.

    Raises:
        HistoryError: a line before the last one cannot be read.
    """
    events: list[Event] = []
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    last = max((i for i, line in enumerate(lines) if line.strip()), default=-1)
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            events.append(_event_of(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            if index != last:
                msg = f"{path}:{index + 1}: no event of a history: {error}"
                raise HistoryError(msg) from error
            events.append(_cut(events))
    return events


def is_truncated(events: Iterable[Event]) -> bool:
    """Whether events are missing, so that nothing may be judged PASS."""
    return any(event.operation == "truncated" for event in events)


def samples_of(
    events: Iterable[Event], *, arm: str, test: str | None = None
) -> tuple[list[Sample], dict[str, str]]:
    """The samples of one arm and the expected output hashes by request id.

    A trace that was replayed again in the same arm gives its requests new names,
    "r1#2", so that no sample hides another. What was invoked and never completed is in
    `open_invokes`, and must be looked at.
    """
    samples: list[Sample] = []
    expected: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for event in events:
        if event.operation != "prefill" or event.value["arm"] != arm:
            continue
        if test is not None and event.test != test:
            continue
        if event.type is EventType.INVOKE:
            continue
        sample = _sample_of(event.value["sample"])
        name = sample.request.request_id
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name}#{seen[name]}"
            sample = _renamed(sample, name)
        samples.append(sample)
        if event.value["expected"]:
            expected[name] = event.value["expected"]
    return sorted(samples, key=lambda sample: sample.intended_s), expected


def open_invokes(events: Iterable[Event]) -> list[Event]:
    """Requests that were sent and never ended: the harness died with them."""
    waiting: dict[tuple[str, str, str], list[Event]] = {}
    for event in events:
        if event.operation != "prefill":
            continue
        if event.type is EventType.INVOKE:
            name = event.value["request_id"]
        else:
            name = event.value["sample"]["request"]["request_id"]
        key = (event.test, event.value["arm"], name)
        if event.type is EventType.INVOKE:
            waiting.setdefault(key, []).append(event)
        elif waiting.get(key):
            waiting[key].pop(0)
    return [event for events in waiting.values() for event in events]


def limits_of(events: Iterable[Event], test: str | None = None) -> Limits | None:
    """The last limits recorded (of one test), None without any."""
    found = None
    for event in events:
        if event.operation == "limits" and test in (None, event.test):
            found = Limits(**event.value)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time a fault was active; `end_s` is None when its end was not recorded."""

    kind: str
    target: str
    start_s: float
    end_s: float | None


def fault_windows(events: Iterable[Event]) -> list[Window]:
    """The fault windows of a history, in order of their start."""
    windows: dict[str, Window] = {}
    for event in events:
        if event.operation != "fault":
            continue
        receipt = event.value["receipt"]
        name = receipt["fault_id"]
        if event.value["phase"] == "begin":
            windows[name] = Window(
                kind=receipt["kind"],
                target=receipt["target"],
                start_s=event.at_s,
                end_s=None,
            )
        elif name in windows:
            windows[name] = dataclasses.replace(windows[name], end_s=event.at_s)
    return sorted(windows.values(), key=lambda window: window.start_s)


def _event_of(row: dict[str, Any]) -> Event:
    return Event(
        at_s=float(row["t"]),
        type=EventType(row["type"]),
        operation=row["f"],
        process=row["process"],
        test=row["test"],
        value=row["value"],
    )


def _cut(events: list[Event]) -> Event:
    at_s = events[-1].at_s if events else 0.0
    value = {"dropped": 1}
    return Event(at_s=at_s, type=EventType.INFO, operation="truncated", value=value)


def _sample_of(row: dict[str, Any]) -> Sample:
    request, answer = row["request"], row["answer"]
    return Sample(
        request=Request(**(request | {"hash_ids": tuple(request["hash_ids"])})),
        engine=row["engine"],
        intended_s=row["intended_s"],
        sent_s=row["sent_s"],
        done_s=row["done_s"],
        answer=None
        if answer is None
        else Answer(**(answer | {"stores": tuple(answer["stores"])})),
        ending=Ending(row["ending"]),
    )


def _renamed(sample: Sample, name: str) -> Sample:
    answer = sample.answer
    return dataclasses.replace(
        sample,
        request=dataclasses.replace(sample.request, request_id=name),
        answer=answer and dataclasses.replace(answer, request_id=name),
    )


def _plain(value: object) -> object:
    """What JSON does not know: dataclasses, enums, sets."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "item"):  # a numpy scalar
        return value.item()
    return str(value)

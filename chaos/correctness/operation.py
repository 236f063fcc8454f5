"""What clients did and what was broken meanwhile, as recorded and as read back.

An operation is written to the history before it is sent, and once more when it ends;
one that never ended may have happened, and may still happen. The checker needs nothing
but this, so a stored history is checked as a live one is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.history.history import Event, EventType
from chaos.systems.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAY: Final = "kv-play"
OVER: Final = "kv-over"
OPERATION: Final = "kv"
WINDOW: Final = "kv-window"
NOT_ANSWERED: Final = -999_999
"""The code of a key whose call never answered: anything may have become of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of one client over some keys; instants are of the run's clock.

    `quiet` means that it was asked after everything had healed and settled. `calls` is
    how many calls of the system it took, one after the other, `took_s` how long a read
    was in the system's client (0: not known). `owners` says of a write which stores
    held each key afterwards, () where that is not known.
    """

    number: int
    step: int
    do: str
    client: str
    keys: tuple[str, ...]
    begin_s: float
    end_s: float = math.inf
    value: int = 0
    path: str = ""
    name: str = ""
    calls: int = 1
    took_s: float = 0.0
    quiet: bool = False
    codes: tuple[int, ...] = ()
    seen: tuple[Seen, ...] = ()
    owners: tuple[tuple[str, ...], ...] = ()
    error: str = ""

    def code(self, index: int) -> int:
        return self.codes[index] if index < len(self.codes) else NOT_ANSWERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time in which something was broken, from before to after it was.

    `kind` is the fault's; or `pressure`: the pool may have had to evict; or `expired`:
    a store was taken for dead although nothing was broken, as on a machine too busy.
    """

    kind: str
    target: str
    begin_s: float
    end_s: float = math.inf

    def meets(self, begin_s: float, end_s: float) -> bool:
        return self.begin_s <= end_s and begin_s <= self.end_s


def good_keys(operations: Iterable[Operation], do: str) -> int:
    """How many keys of such operations were answered with success."""
    mine = [operation for operation in operations if operation.do == do]
    return sum(code == 0 for operation in mine for code in operation.codes)


def begun(operation: Operation) -> Event:
    """The event of an operation that is about to be sent."""
    return Event(
        at_s=operation.begin_s,
        type=EventType.INVOKE,
        operation=OPERATION,
        process=operation.client,
        value=_row(operation),
    )


def ended(operation: Operation) -> Event:
    """The event of its end: `info` when nobody knows what became of it."""
    kind = EventType.INFO
    if operation.codes:
        good = all(code >= 0 for code in operation.codes)
        kind = EventType.OK if good else EventType.FAIL
    return Event(
        at_s=operation.end_s,
        type=kind,
        operation=OPERATION,
        process=operation.client,
        value=_row(operation),
    )


def opened(window: Window) -> Event:
    """The event of the begin of a window."""
    return _window_event(window, window.begin_s, "begin")


def closed(window: Window) -> Event:
    """The event of its end."""
    return _window_event(window, window.end_s, "end")


def played(schedule: str, at_s: float, *, cut: bool = False) -> Event:
    """The event with which a play begins; numbers of operations count from it.

    `cut`: it is a part of an earlier one, played to find out what matters.
    """
    value = {"schedule": schedule, "cut": cut}
    return Event(at_s=at_s, type=EventType.INFO, operation=PLAY, value=value)


def over(unproved: str, at_s: float) -> Event:
    """The event of its end, and why it proves nothing, if so."""
    value = {"unproved": unproved}
    return Event(at_s=at_s, type=EventType.INFO, operation=OVER, value=value)


def unproved_of(events: Iterable[Event]) -> str:
    """Why a play proves nothing; one without an end proves nothing either."""
    found = [str(e.value["unproved"]) for e in events if e.operation == OVER]
    return found[-1] if found else "it has no end in the history"


def plays_of(events: Iterable[Event]) -> list[list[Event]]:
    """The events of each play of a history, which may hold many."""
    plays: list[list[Event]] = []
    for event in events:
        if event.operation == PLAY:
            plays.append([])
        if plays:
            plays[-1].append(event)
    return plays


def operations_of(events: Iterable[Event]) -> list[Operation]:
    """The operations of a history, those that never ended included."""
    found: dict[int, Operation] = {}
    for event in events:
        if event.operation == OPERATION:
            operation = _operation(event)
            found[operation.number] = operation
    return [found[number] for number in sorted(found)]


def windows_of(events: Iterable[Event]) -> list[Window]:
    """The windows of a history; one without an end lasts for ever."""
    found: dict[tuple[str, str, float], Window] = {}
    for event in events:
        if event.operation != WINDOW:
            continue
        value = event.value
        begin_s = float(value["begin_s"])
        ended_s = event.at_s if value["phase"] == "end" else math.inf
        key = (str(value["kind"]), event.process, begin_s)
        found[key] = Window(
            kind=key[0], target=event.process, begin_s=begin_s, end_s=ended_s
        )
    return list(found.values())


def _window_event(window: Window, at_s: float, phase: str) -> Event:
    value = {"phase": phase, "kind": window.kind, "begin_s": window.begin_s}
    return Event(
        at_s=at_s,
        type=EventType.INFO,
        operation=WINDOW,
        process=window.target,
        value=value,
    )


def _row(operation: Operation) -> dict[str, Any]:
    """As plain JSON; infinity is left out, which JSON does not have."""
    row: dict[str, Any] = {
        "number": operation.number,
        "step": operation.step,
        "do": operation.do,
        "keys": list(operation.keys),
        "begin_s": operation.begin_s,
        "value": operation.value,
        "path": operation.path,
        "name": operation.name,
        "calls": operation.calls,
        "took_s": operation.took_s,
        "quiet": operation.quiet,
        "codes": list(operation.codes),
        "seen": [seen.to_row() for seen in operation.seen],
        "owners": [list(one) for one in operation.owners],
        "error": operation.error,
    }
    if math.isfinite(operation.end_s):
        row["end_s"] = operation.end_s
    return row


def _operation(event: Event) -> Operation:
    row = dict(event.value)
    return Operation(
        client=event.process,
        keys=tuple(row.pop("keys")),
        codes=tuple(int(code) for code in row.pop("codes")),
        seen=tuple(Seen.from_row(one) for one in row.pop("seen")),
        owners=tuple(tuple(one) for one in row.pop("owners")),
        **row,
    )

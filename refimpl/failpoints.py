"""Named places in a role where a fault can be switched on, in the manner of fail-rs.

A spec is one action or a chain `a->b`: `[p%][cnt*]task[(args)]`. The first action of
the chain that has turns left, and whose dice say yes, runs. Tasks:

| task | at `hit` |
|---|---|
| `off` | nothing |
| `on` | answers 1: armed, without a code of its own |
| `return(code)` | answers the code, INTERNAL_ERROR when none is given |
| `sleep(ms)` | waits, real milliseconds; ends early when the spec is changed |
| `pause` | waits until the spec is changed or cleared |
| `panic` | raises `FailpointPanic` |
| `every(n,code)` | every n-th call answers code: an exact pattern, no coin flips |

With nothing set, a hit costs one dictionary look-up.
"""

from __future__ import annotations

import os
import random
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from refimpl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENVIRONMENT: Final = "REFIMPL_FAILPOINTS"
DEFECTS: Final = (
    "defect.deadline_ignored",
    "defect.breaker_never_opens",
    "defect.breaker_never_closes",
    "defect.placement_random",
    "defect.lease_not_checked",
    "defect.checksum_not_checked",
    "defect.stale_end_accepted",
    "defect.page_released_early",
)
"""Switchable mutants of the reference system, each `on` or `off`."""

_ACTION = re.compile(
    r"\s*(?:(?P<percent>\d+(?:\.\d+)?)%)?(?:(?P<count>\d+)\*)?"
    r"(?P<task>[a-z]+)(?:\((?P<args>[^()]*)\))?\s*"
)
_ARGUMENTS = {
    "off": (0, 0),
    "on": (0, 0),
    "return": (0, 1),
    "sleep": (1, 1),
    "pause": (0, 0),
    "panic": (0, 0),
    "every": (2, 2),
}
_INTERNAL_ERROR = -1
_LIMIT = 256
"""Failpoints set at one time."""


class FailpointPanic(RuntimeError):
    """Raised on purpose by a `panic` failpoint: the fault of nobody but the tester."""


class FailpointState(TypedDict):
    """One failpoint as the admin door shows it."""

    spec: str
    hits: int
    calls: int


@dataclass(slots=True)
class _Action:
    """One link of a chain; `left` counts down, None is without end."""

    task: str
    args: tuple[int, ...]
    share: float
    left: int | None


class _Armed:
    """A spec in force and what it did so far; `changed` ends its waits."""

    __slots__ = ("actions", "calls", "changed", "hits", "spec")

    def __init__(self, spec: str, actions: list[_Action]) -> None:
        self.spec = spec
        self.actions = actions
        self.changed = threading.Event()
        self.calls = 0
        self.hits = 0


class Failpoints:
    """The failpoints of one process; safe to use from every thread.

    Args:
        rng: dice of `p%` actions.
        wait: `wait(event, seconds or None)`, how `sleep` and `pause` wait.
    """

    def __init__(
        self,
        rng: random.Random | None = None,
        wait: Callable[[threading.Event, float | None], object] | None = None,
    ) -> None:
        self._rng = rng or random.Random(0)
        self._wait = wait or (lambda event, seconds: event.wait(seconds))
        self._lock = threading.Lock()
        self._armed: dict[str, _Armed] = {}

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        rng: random.Random | None = None,
    ) -> Failpoints:
        """Reads `REFIMPL_FAILPOINTS="name=spec;name=spec"`."""
        found = cls(rng)
        text = (os.environ if environ is None else environ).get(ENVIRONMENT, "")
        for part in filter(None, (p.strip() for p in text.split(";"))):
            name, equals, spec = part.partition("=")
            if not equals:
                raise UsageError(
                    f"environment {ENVIRONMENT}: {part!r} has no `=`; "
                    "write name=task;name=task"
                )
            found.set(name.strip(), spec)
        return found

    def hit(self, name: str) -> int | None:
        """Runs the failpoint: may wait or raise; answers a code, or None to go on."""
        if name not in self._armed:
            return None
        with self._lock:
            armed = self._armed.get(name)
            action = self._choose(armed) if armed else None
        if armed is None or action is None:
            return None
        return self._run(name, armed, action)

    def enabled(self, name: str) -> bool:
        """True while the failpoint is set to anything but `off`; counts as a hit."""
        if name not in self._armed:
            return False
        with self._lock:
            armed = self._armed.get(name)
            if armed is None:
                return False
            armed.calls += 1
            is_on = any(a.task != "off" and a.left != 0 for a in armed.actions)
            armed.hits += is_on
            return is_on

    def set(self, name: str, spec: str) -> None:
        """Puts a spec in force, counters from zero; ends waits of the former one.

        Raises:
            UsageError: the spec cannot be read, or no defect has this name.
        """
        if name.startswith("defect.") and name not in DEFECTS:
            raise UsageError(f"no defect {name!r}; known are {', '.join(DEFECTS)}")
        armed = _Armed(spec.strip(), _parse(name, spec))
        with self._lock:
            if name not in self._armed and len(self._armed) >= _LIMIT:
                raise UsageError(f"{_LIMIT} failpoints are set; clear some first")
            former = self._armed.get(name)
            self._armed[name] = armed
        if former:
            former.changed.set()

    def clear(self, name: str | None = None) -> None:
        """Forgets one failpoint, or all of them; whoever waits in it goes on."""
        with self._lock:
            names = list(self._armed) if name is None else [name]
            gone = [self._armed.pop(n) for n in names if n in self._armed]
        for armed in gone:
            armed.changed.set()

    def snapshot(self) -> dict[str, FailpointState]:
        """What is set, how often it was reached (`calls`) and had effect (`hits`)."""
        with self._lock:
            return {
                name: {"spec": a.spec, "hits": a.hits, "calls": a.calls}
                for name, a in sorted(self._armed.items())
            }

    def _choose(self, armed: _Armed) -> _Action | None:
        """The action of this call; the caller holds the lock."""
        armed.calls += 1
        for action in armed.actions:
            if action.left == 0:
                continue
            if action.share < 1.0 and self._rng.random() >= action.share:
                continue
            if action.left is not None:
                action.left -= 1
            if action.task == "off":
                return None
            if action.task == "every" and armed.calls % action.args[0]:
                return None
            armed.hits += 1
            return action
        return None

    def _run(self, name: str, armed: _Armed, action: _Action) -> int | None:
        """Does the task outside the lock: others may change the spec meanwhile."""
        match action.task:
            case "on":
                return 1
            case "return":
                return action.args[0] if action.args else _INTERNAL_ERROR
            case "every":
                return action.args[1]
            case "sleep":
                self._wait(armed.changed, action.args[0] / 1000)
            case "pause":
                self._wait(armed.changed, None)
            case "panic":
                raise FailpointPanic(f"failpoint {name} is set to panic")
        return None


def _parse(name: str, spec: str) -> list[_Action]:
    return [_parse_action(name, part) for part in spec.split("->")]


def _parse_action(name: str, text: str) -> _Action:
    match = _ACTION.fullmatch(text)
    if match is None or match["task"] not in _ARGUMENTS:
        raise UsageError(
            f"failpoint {name}: {text.strip()!r} is not [p%][cnt*]task(args); "
            f"tasks are {', '.join(_ARGUMENTS)}"
        )
    args = _parse_arguments(name, text, match["args"])
    low, high = _ARGUMENTS[match["task"]]
    if not low <= len(args) <= high:
        raise UsageError(
            f"failpoint {name}: {text.strip()!r} has {len(args)} arguments; "
            f"{match['task']} takes {low if low == high else f'{low} or {high}'}"
        )
    if match["task"] == "every" and args[0] < 1:
        raise UsageError(f"failpoint {name}: every(n,code) needs n of 1 or more")
    if match["task"] == "sleep" and args[0] < 0:
        raise UsageError(f"failpoint {name}: sleep(ms) needs ms of 0 or more")
    return _Action(
        task=match["task"],
        args=args,
        share=float(match["percent"] or 100) / 100,
        left=int(match["count"]) if match["count"] else None,
    )


def _parse_arguments(name: str, text: str, args: str | None) -> tuple[int, ...]:
    if not args or not args.strip():
        return ()
    try:
        return tuple(int(a) for a in args.split(","))
    except ValueError:
        raise UsageError(
            f"failpoint {name}: arguments of {text.strip()!r} are whole numbers"
        ) from None

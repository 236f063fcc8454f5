"""What an agent is told to do to break a host: steps, each with its own undoing.

A step is `do`, the `undo` of it, the `verify` by which undone is told from not undone,
and a `renew` that is run again whenever the lease is renewed. Actions and checks are
the JSON objects of the agent's protocol; the functions here are the only place that
knows their spelling. Commands are lists of arguments, never shell strings.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Action = dict[str, Any]
Check = dict[str, Any]

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change to a host; what has no undo changes nothing that lasts."""

    do: Action
    undo: Action | None = None
    verify: Check | None = None
    renew: Action | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "do": self.do,
            "undo": self.undo,
            "verify": self.verify,
            "renew": self.renew,
        }

    @property
    def actions(self) -> tuple[Action, ...]:
        """Everything that this step may ever run."""
        return tuple(a for a in (self.do, self.undo, self.renew) if a is not None)


def run(*argv: str, stdin: str = "", timeout_s: float = _TIMEOUT_S) -> Action:
    """A command with its deadline."""
    return {"run": list(argv), "stdin": stdin, "timeout_s": timeout_s}


def signal(pid: int, start_ticks: int, name: str) -> Action:
    """A signal to this very process; a pid without its start time is nobody's."""
    return {"op": "signal", "pid": pid, "start_ticks": start_ticks, "signal": name}


def start(name: str, argv: Sequence[str]) -> Action:
    """A background child of the agent; it dies with the agent."""
    return {"op": "start", "name": name, "argv": list(argv)}


def end(name: str) -> Action:
    """The end of a background child."""
    return {"op": "end", "name": name}


def write(path: str, text: str) -> Action:
    """The content of a small file; the agent keeps what was there before."""
    return {"op": "write", "path": path, "text": text}


def restore(path: str) -> Action:
    """What was there before."""
    return {"op": "restore", "path": path}


def operation(op: str, **fields: Any) -> Action:
    """One of the agent's own: fill, unlink, memory, cpu, listen."""
    return {"op": op, **fields}


def command(*argv: str, rc: int = 0, has: str = "", lacks: str = "") -> Check:
    """Undone when the command ends so, and prints or does not print that."""
    return {
        "run": list(argv),
        "expect_rc": rc,
        "stdout_has": has,
        "stdout_lacks": lacks,
    }


def gone(name: str) -> Check:
    """Undone when the background child of that name is no more."""
    return {"op": "gone", "name": name}


def holds(check: Mapping[str, Any], rc: int, stdout: str) -> bool:
    """Whether the outcome of a check's command says undone."""
    has, lacks = str(check["stdout_has"]), str(check["stdout_lacks"])
    wanted = rc == check["expect_rc"] and has in stdout
    return wanted and not (lacks and lacks in stdout)


def words(action: Mapping[str, Any]) -> str:
    """An action as an operator may check it, and type it where it is a command."""
    if "run" not in action:
        fields = {k: v for k, v in action.items() if k != "op"}
        told = " ".join(f"{k}={_short(v)}" for k, v in fields.items())
        return f"{action['op']} {told}".strip()
    text = shlex.join(action["run"])
    script = " ; ".join(line for line in action["stdin"].splitlines() if line)
    return f"{text} <<< {shlex.quote(script)}" if script else text


def _short(value: object) -> str:
    if isinstance(value, list):
        return shlex.join(str(part) for part in value)
    return str(value)

"""A role that we did not start: found and acted on by a rule of the inventory.

The rule says who owns the process: a systemd unit, a container, or a pid file. We ask
the owner for the pid, and a stop is an order to the owner, armed on the agent of the
host with the start as its undo, so that a lost lease brings the role back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.errors import ProcessFailed
from chaos.systems.base import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.hosts.link import Agent
    from inventory import ProcessRule

_ASK_TIMEOUT_S = 5.0
_ACT_TIMEOUT_S: Final = 60.0
_NO_PROGRAM: Final = 127
_STATE_FIELD, _START_FIELD = 0, 19
_TOOLS: Final = ("docker", "podman")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRole:
    """One role and its owner on its host."""

    role: str
    rule: ProcessRule
    agent: Agent

    @property
    def owner(self) -> str:
        """The owner in words."""
        rule = self.rule
        if rule.systemd:
            return f"systemd unit {rule.systemd}"
        if rule.container:
            return f"container {rule.container}"
        return f"pid file {rule.pid_file}"

    def process(self) -> Process | None:
        """The live process that the owner names, None when there is none."""
        pid = self._pid()
        if pid <= 1:
            return None
        text = self._ask(["cat", f"/proc/{pid}/stat"])
        fields = text.rpartition(")")[2].split()
        if len(fields) <= _START_FIELD or fields[_STATE_FIELD] in ("Z", "X"):
            return None
        ticks = int(fields[_START_FIELD])
        return Process(role=self.role, pid=pid, start_ticks=ticks)

    def stop_steps(self) -> list[dict[str, Any]]:
        """The step that orders the owner to end the role, and to start it again.

        Raises:
            ProcessFailed: It does not run, so there is nothing to stop.
        """
        if self.rule.systemd:
            return [_systemd_stop(self.rule.systemd)]
        if self.rule.container:
            return [_container_stop(self._tool(), self.rule.container)]
        process = self.process()
        if process is None:
            raise ProcessFailed(process=self.role, reason=f"is not in {self.owner}")
        return [_signal(process)]

    def ends(self) -> list[dict[str, Any]]:
        """What a stop comes to, as the management guard reads it: who is to end."""
        process = self.process()
        return [] if process is None else [_signal(process)]

    def _pid(self) -> int:
        rule = self.rule
        if rule.systemd:
            show = ["systemctl", "show", "--property=MainPID", "--value", rule.systemd]
            text = self._ask(show)
        elif rule.container:
            form = "--format={{.State.Pid}}"
            text = self._ask([self._tool(), "inspect", form, rule.container])
        else:
            text = self._ask(["cat", rule.pid_file])
        first = text.strip().partition("\n")[0].strip()
        return int(first) if first.isdecimal() else 0

    def _tool(self) -> str:
        """Docker or podman, whichever the host has."""
        for tool in _TOOLS:
            if self._answer([tool, "--version"])[0] == 0:
                return tool
        reason = f"its host has no {' and no '.join(_TOOLS)}"
        raise ProcessFailed(process=self.role, reason=reason)

    def _ask(self, argv: Sequence[str]) -> str:
        """What a command that only reads says; "" when it has nothing to say."""
        rc, text = self._answer(argv)
        if rc == _NO_PROGRAM:
            reason = f"its host has no {argv[0]}"
            raise ProcessFailed(process=self.role, reason=reason)
        return text if rc == 0 else ""

    def _answer(self, argv: Sequence[str]) -> tuple[int, str]:
        done = self.agent.run(argv, timeout_s=_ASK_TIMEOUT_S)
        return done.rc, done.stdout


def _systemd_stop(unit: str) -> dict[str, Any]:
    return {
        "do": _command("systemctl", "stop", unit),
        "undo": _command("systemctl", "start", unit),
        "verify": {"run": ["systemctl", "is-active", "--quiet", unit], "expect_rc": 0},
    }


def _container_stop(tool: str, name: str) -> dict[str, Any]:
    running = [tool, "inspect", "--format={{.State.Running}}", name]
    return {
        "do": _command(tool, "stop", name),
        "undo": _command(tool, "start", name),
        "verify": {"run": running, "expect_rc": 0, "stdout_has": "true"},
    }


def _signal(process: Process) -> dict[str, Any]:
    """Whoever wrote the pid file starts it again: by its own rule, not by ours."""
    action = {"op": "signal", "pid": process.pid, "start_ticks": process.start_ticks}
    return {"do": {**action, "signal": "TERM"}, "undo": None, "verify": None}


def _command(*argv: str) -> dict[str, Any]:
    return {"run": list(argv), "timeout_s": _ACT_TIMEOUT_S}

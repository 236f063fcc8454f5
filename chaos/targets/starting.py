"""The agents of a fabric, started together (see `starter.py` for why).

A `StartedConnector` is one of `NamespaceConnector` in every way but one: the command
that starts its agent was run already, with all the others, and `start` reads what came
of it. So a host that another run holds is refused with the same words.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import HarnessError
from chaos.hosts.connectors import AGENT_PROGRAM, NamespaceConnector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.targets.namespaces import Namespaces

_PROGRAM = Path(__file__).with_name("starter.py")
_TIMEOUT_S = 60.0


class StartedConnector(NamespaceConnector):
    """Reaches an agent in namespaces; `answers` is filled by `start_agents`."""

    def __init__(self, namespaces: Namespaces, *, state_dir: str) -> None:
        super().__init__(namespaces.name, state_dir=state_dir, enter=namespaces.enter())
        self.namespaces = namespaces
        self.answer: subprocess.CompletedProcess[bytes] | None = None

    def _program(
        self, words: Sequence[str], timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        answer, self.answer = self.answer, None
        if answer is not None and answer.args == list(words):
            return answer
        return super()._program(words, timeout_s)


def start_agents(
    connectors: Sequence[StartedConnector], *, run: str, ttl_s: float, controller: str
) -> None:
    """Runs the start of all agents; what each said waits in its connector.

    Raises:
        HarnessError: The program that starts them failed.
    """
    words = {
        connector.name: _serve_words(connector.state_dir, run, ttl_s, controller)
        for connector in connectors
    }
    hosts = {
        connector.name: {
            "enter": {
                kind: connector.namespaces.path(kind) for kind in ("net", "uts", "mnt")
            },
            "words": words[connector.name],
        }
        for connector in connectors
    }
    said = _run({"program": str(AGENT_PROGRAM), "hosts": hosts})
    for connector in connectors:
        answer = said[connector.name]
        connector.answer = subprocess.CompletedProcess(
            args=words[connector.name],
            returncode=int(answer["rc"]),
            stdout=answer["stdout"].encode(),
            stderr=answer["stderr"].encode(),
        )


def _serve_words(state_dir: str, run: str, ttl_s: float, controller: str) -> list[str]:
    """As `NamespaceConnector.start` says it; said otherwise, it starts its own."""
    words = ["serve", f"--run={run}", f"--state-dir={state_dir}", f"--ttl={ttl_s:g}"]
    return [*words, f"--controller={controller}"] if controller else words


def _run(order: Mapping[str, Any]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_PROGRAM)],
            input=json.dumps(order).encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError("the agents did not start in time") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        message = f"the agents could not be started: {said[-600:]}"
        raise HarnessError(message)
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers

"""Collects a node's facts over a connection of pytest-testinfra: one command a node.

testinfra knows how to reach a host (ssh, containers, pods, Ansible's inventory, this
machine) and runs one shell command there at a time, without standard input and without
a deadline. So the collector travels inside the command, compressed, as the argument of
`python3 -c`, under `timeout`; its output is checked as everywhere.
"""

from __future__ import annotations

import base64
import shlex
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from checks.facts import SCHEMA
from checks.fleet import COLLECTOR, NODE_S, PARALLEL
from checks.framing import NoDocument, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.fleet import CollectOptions

    Document = dict[str, Any]

KILL_S = 5
MAX_COMMAND = 128 << 10
"""Bytes of one argument that Linux passes to a program (MAX_ARG_STRLEN)."""
_TIMED_OUT = frozenset({124, 137})
_NO_SUCH_PROGRAM = 127


class Ran(Protocol):
    """What testinfra tells of a command."""

    @property
    def rc(self) -> int: ...
    @property
    def stdout_bytes(self) -> bytes: ...
    @property
    def stderr(self) -> str: ...


class Backend(Protocol):
    """How testinfra reaches a host."""

    def get_pytest_id(self) -> str: ...


class ReachedHost(Protocol):
    """What is needed of `testinfra.host.Host`."""

    @property
    def backend(self) -> Backend: ...

    def run(self, command: str) -> Ran: ...


def collect_through(
    hosts: Sequence[ReachedHost], options: CollectOptions, *, python: str = "python3"
) -> list[Document]:
    """One document a host, in their order; a host that cannot be read says how."""
    command = collector_command(options, python)
    names = _names(hosts)
    with ThreadPoolExecutor(min(PARALLEL, max(1, len(hosts)))) as pool:
        jobs = [
            pool.submit(_collect, host, name, command)
            for host, name in zip(hosts, names, strict=True)
        ]
        return [job.result() for job in jobs]


def collector_command(options: CollectOptions, python: str = "python3") -> str:
    """The collector and its arguments as one shell command."""
    packed = base64.b64encode(zlib.compress(COLLECTOR.read_bytes(), 9)).decode()
    program = (
        "import base64, zlib; exec(compile(zlib.decompress(base64.b64decode("
        f"'{packed}')), 'collector.py', 'exec'))"
    )
    limit = ["timeout", "-k", str(KILL_S), str(int(NODE_S))]
    command = shlex.join([*limit, python, "-c", program, *options.arguments()])
    assert len(command) < MAX_COMMAND, "the collector does not fit into one argument"
    return command


def _names(hosts: Sequence[ReachedHost]) -> list[str]:
    """What pytest calls them; several of one name are numbered."""
    seen: Counter[str] = Counter()
    names = []
    for host in hosts:
        name = host.backend.get_pytest_id()
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _collect(host: ReachedHost, name: str, command: str) -> Document:
    try:
        done = host.run(command)
        if done.rc in _TIMED_OUT:
            return _lost(name, "timeout", f"no answer within {NODE_S:.0f} s")
        if done.rc == _NO_SUCH_PROGRAM:
            return _lost(name, "no_python", _last_line(done.stderr))
        document = decode(done.stdout_bytes)
    except NoDocument as error:
        last = _last_line(done.stderr)
        return _lost(name, error.kind, f"{error.reason}{f'; {last}' if last else ''}")
    except Exception as error:  # whatever a backend raises: this host is unreachable
        return _lost(name, "unreachable", _said(error))
    node = document.setdefault("node", {})
    if node.get("hostname") != name:
        node["own_hostname"] = node.get("hostname", "")
    node["hostname"] = name
    return document


def _said(error: Exception) -> str:
    """What an exception says; testinfra puts the whole result of ssh into one."""
    result = error.args[0] if error.args else None
    stderr = getattr(result, "stderr", "")
    return _last_line(stderr) or f"{type(error).__name__}: {str(error)[:200]}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def _lost(name: str, kind: str, reason: str) -> Document:
    return {
        "schema": SCHEMA,
        "collector": {"error": {"kind": kind, "reason": reason}},
        "node": {"hostname": name},
        "cmds": {},
        "files": {},
    }

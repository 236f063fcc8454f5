"""What a run may leave on a host, and on the machine of the controller, as text.

Read from outside: through /proc of the host's process 1, and by commands that are run
in its network namespace. Nothing of the harness is asked, no SSH is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_COMMAND_TIMEOUT_S = 20.0
_HELPERS = 4
_READINGS = 5
_LISTENS = "0A"
_OF_A_START = re.compile(r"(--parent|--client) [0-9]+")
"""Numbers that a store which comes back has anew."""
_STARTUPS = "[listener]"
"""In the title of an sshd; what follows counts connections that come up."""
#: Numbers that the kernel gives anew with every device.
_PASSING: Final = frozenset(
    {"ifindex", "link_index", "link_netnsid", "group_ifindex", "valid_life_time"}
)
_LINKS = ("ip", "-j", "-d", "link", "show")
_ADDRESSES = ("ip", "-j", "addr", "show")
_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "nft": ("nft", "list", "ruleset"),
    "tc": ("tc", "qdisc", "show"),
    "routes": ("ip", "route", "show", "table", "all"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Texts by the name of what they tell of."""

    parts: Mapping[str, str]

    def changes(self, before: Snapshot) -> list[str]:
        """What is there and was not, and the reverse; line by line."""
        found: list[str] = []
        for name in sorted({*self.parts, *before.parts}):
            now = self.parts.get(name, "").splitlines()
            then = before.parts.get(name, "").splitlines()
            found += [f"{name}: + {line}" for line in _more(now, then)]
            found += [f"{name}: - {line}" for line in _more(then, now)]
        return found


def of_hosts(inits: Mapping[str, int]) -> dict[str, Snapshot]:
    """Snapshots of hosts by name, given their process 1."""
    processes = processes_of(inits)
    with ThreadPoolExecutor(_HELPERS, thread_name_prefix="snapshot") as pool:
        parts = list(pool.map(_parts, inits.values()))
    return {
        name: Snapshot(parts={**part, "processes": _lines(processes[name].values())})
        for name, part in zip(inits, parts, strict=True)
    }


def processes_of(inits: Mapping[str, int]) -> dict[str, dict[int, str]]:
    """Command lines by pid of each host, but those of its open SSH connections.

    A connection that was cut stays open on the host until its daemon gives it up, by
    its own rule (ClientAliveInterval); its processes do nothing.
    """
    hosts = {_namespace(pid): name for name, pid in inits.items()}
    found: dict[str, dict[int, str]] = {name: {} for name in inits}
    for pid in _pids():
        host = hosts.get(_namespace(pid))
        words = command_of(pid) if host is not None else ""
        if host is not None and words and not is_connection(words):
            found[host][pid] = words
    return found


def connections_of(init: int) -> list[int]:
    """The daemons of the open SSH connections of a host."""
    there = _namespace(init)
    pids = [pid for pid in _pids() if _namespace(pid) == there]
    return [pid for pid in pids if is_connection(command_of(pid))]


def is_connection(words: str) -> bool:
    """Whether a command line is that of an sshd for one connection."""
    return words.startswith(("sshd: ", "sshd-session")) and _STARTUPS not in words


def marked(text: str) -> dict[int, str]:
    """Command lines by pid of all processes with this text in their environment."""
    found = {}
    for pid in _pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if text.encode() in environment and pid != os.getpid():
            found[pid] = command_of(pid)
    return {pid: words for pid, words in found.items() if words}


def command_of(pid: int) -> str:
    """The command line of a process, "" when it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    text = words.replace(b"\0", b" ").decode(errors="replace").strip()
    text = text.partition(_STARTUPS)[0] + _STARTUPS if _STARTUPS in text else text
    return _OF_A_START.sub(r"\1 N", text)


def cgroups(root: str = "/sys/fs/cgroup") -> list[str]:
    """Groups of ours, in whatever hierarchy."""
    found = [*Path(root).glob("moonquake*"), *Path(root).glob("*/moonquake*")]
    return sorted(str(path) for path in [*found, *Path(root).glob("*/*/moonquake*")])


def _parts(init: int) -> dict[str, str]:
    root = Path(f"/proc/{init}/root")
    texts = {name: _said(init, argv) for name, argv in _TEXTS.items()}
    return {
        **texts,
        "links": _devices(_said(init, _LINKS)),
        "addresses": _devices(_said(init, _ADDRESSES)),
        "ports": _ports(init),
        "run": _files(root, "run"),
        "mounts": _mounts(init),
        "cgroups": _lines(cgroups(f"{root}/sys/fs/cgroup")),
    }


def _said(init: int, argv: Sequence[str]) -> str:
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{init}/ns/net", "--", *argv],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    return done.stdout if done.returncode == 0 else f"{argv[0]}: {done.stderr}"


def _devices(text: str) -> str:
    """One line for each device, without the numbers of this boot."""
    try:
        rows = json.loads(text or "[]")
    except ValueError:
        return text
    return _lines(json.dumps(_lasting(row), sort_keys=True) for row in rows)


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _lasting(v) for k, v in value.items() if k not in _PASSING}
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    return value


def _ports(init: int) -> str:
    """Listening sockets, as the kernel writes their addresses."""
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        try:
            text = Path(f"/proc/{init}/net/{table}").read_text(encoding="ascii")
        except OSError:
            continue
        rows = [line.split() for line in text.splitlines()[1:]]
        open_ = [row[1] for row in rows if "udp" in table or row[3] == _LISTENS]
        found += [f"{table} {address}" for address in open_]
    return _lines(found)


def _files(root: Path, name: str) -> str:
    """Everything below a directory; read again where part of it went away meanwhile."""
    for _ in range(_READINGS - 1):
        with contextlib.suppress(FileNotFoundError):
            return _listed(root, name)
    return _listed(root, name)


def _listed(root: Path, name: str) -> str:
    return _lines(
        str(path.relative_to(root))
        for path in (root / name).rglob("*")
        if "/home/" not in str(path)
    )


def _mounts(init: int) -> str:
    text = Path(f"/proc/{init}/mounts").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.split()[1].startswith("/run")]
    return _lines(rows)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(sorted(texts))


def _more(these: Sequence[str], those: Sequence[str]) -> list[str]:
    """Lines that these have more often than those."""
    left = list(those)
    found = []
    for line in these:
        if line in left:
            left.remove(line)
        else:
            found.append(line)
    return found

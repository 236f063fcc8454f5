"""`--active` between the nodes of an inventory: both ends of a path act together.

The nodes that could be read form a ring; each edge of it is tried from both sides, on
every rail that both have by one name. First listeners start on the rails of a few
nodes at a time, and each says what it bound. Only then are they tried, and afterwards
it is made sure that they listened all the while: so a refused connection was refused
by the node or by what is in between, never because nobody listened yet. A listener is
bound to its rail's address, takes a counted number of connections, and ends with its
own deadline, or earlier, when we hang up (see `checks.prober`).
"""

from __future__ import annotations

import contextlib
import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from checks.framing import NoDocument, decode
from checks.parse.handshake import ENGINE_PORTS, HANDSHAKE_PORT, spelled
from inventory.programs import python_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from inventory import Completed, HostEntry

    Document = dict[str, Any]

PROBER = Path(__file__).parent / "prober.py"
TOGETHER = 32
READY_S = 20.0
"""Until a listener has said what it bound: connecting and a start of Python."""
TRY_S = 20.0
ANSWER_S = TRY_S + 15.0
LISTEN_S = READY_S + ANSWER_S + 5.0
"""It outlives the slowest start of another listener and all tries."""
SPARE = 16
"""Connections that a listener takes beyond those that are expected."""
MAX_READY = 1 << 18


class Stream(Protocol):
    """What is needed of a running command; see `inventory.Channel`."""

    def feed(self, data: bytes) -> None: ...

    def recv(self, size: int = ..., *, timeout_s: float) -> bytes: ...

    def close(self) -> None: ...


class Session(Protocol):
    """What is needed of an SSH session; see `inventory.SshSession`."""

    def run_python(
        self, source: bytes, args: Sequence[str] = (), *, timeout_s: float
    ) -> Completed: ...

    def open(self, argv: Sequence[str], *, timeout_s: float = ...) -> Stream: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A port that a listener bound, or the errno with which that failed."""

    address: str
    port: int
    error: str

    @property
    def is_target(self) -> bool:
        """Somebody listens there: we, or who holds the port already."""
        return self.error in {"", "EADDRINUSE"}


@dataclass(slots=True, kw_only=True)
class _End:
    """One node while its group acts."""

    host: HostEntry
    document: Document
    session: Session
    rails: set[str] = field(default_factory=set)
    expected: int = 0
    stream: Stream | None = None
    doors: tuple[Door, ...] = ()

    @property
    def cmds(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document.setdefault("cmds", {})
        return found


Edge = tuple[int, int]


def act(
    hosts: Sequence[HostEntry],
    documents: Sequence[Document],
    *,
    session: Callable[[HostEntry], Session],
    cross_rail: bool = False,
    begun: Callable[[Sequence[str]], None] = lambda names: None,
) -> None:
    """Tries what `--active` asks for and adds what came of it to the documents.

    A node that cannot be used keeps its document, with the reason why it did not act
    in `collector.active_error`. `begun` is told the names of nodes that begin to act.
    """
    able = [at for at, each in enumerate(documents) if _is_whole(each)]
    railed = [at for at in able if any(rail.address for rail in hosts[at].rails)]
    acted: set[int] = set()
    for edges in [*_groups(railed), *_alone(able, railed)]:
        members = sorted({at for edge in edges for at in edge})
        ends = {
            at: _End(host=hosts[at], document=documents[at], session=session(hosts[at]))
            for at in members
        }
        begun([hosts[at].name for at in members])
        _Group(ends=ends, edges=edges, acted=acted, cross_rail=cross_rail).act()
        acted.update(members)


def _is_whole(document: Document) -> bool:
    return "error" not in document.get("collector", {})


def _groups(ring: Sequence[int]) -> Iterator[list[Edge]]:
    """The edges of a ring, so many that few enough nodes act at a time."""
    edges = [(one, ring[(at + 1) % len(ring)]) for at, one in enumerate(ring)]
    if len(ring) < 3:
        edges = edges[: len(ring) - 1]
    step = len(edges) if len(ring) <= TOGETHER else TOGETHER - 1
    for at in range(0, len(edges), max(1, step)):
        yield edges[at : at + step]


def _alone(able: Sequence[int], railed: Sequence[int]) -> Iterator[list[Edge]]:
    """Nodes without a peer: they try what is inside of them, as edges to themselves."""
    rest = [at for at in able if at not in railed or len(railed) < 2]
    for at in range(0, len(rest), TOGETHER):
        yield [(one, one) for one in rest[at : at + TOGETHER]]


@dataclass(slots=True, kw_only=True)
class _Group:
    """Nodes that act at the same time."""

    ends: dict[int, _End]
    edges: list[Edge]
    cross_rail: bool
    acted: set[int]
    """Nodes that have acted before: what is inside of them is known."""
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def act(self) -> None:
        self._expect()
        try:
            with ThreadPoolExecutor(max(1, len(self.ends))) as pool:
                list(pool.map(self._listen, self.ends.values()))
                told = dict(zip(self.ends, pool.map(self._try, self.ends), strict=True))
            unproven = self._unproven()
        finally:
            for end in self.ends.values():
                if end.stream is not None:
                    end.stream.close()
                end.session.close()
        for at, found in told.items():
            self._keep(self.ends[at], found, unproven)

    def _expect(self) -> None:
        for edge in self.edges:
            for one, other in (edge, edge[::-1]):
                for _, theirs in self._rails(one, other):
                    self.ends[other].rails.add(theirs)
                    self.ends[other].expected += 3  # both ports, and one exchange

    def _listen(self, end: _End) -> None:
        """Starts a listener and hears what it bound."""
        if not end.rails:
            return
        plan = {
            "act": "listen",
            "name": end.host.name,
            "token": self.token,
            "rails": sorted(end.rails),
            "ports": [HANDSHAKE_PORT, [ENGINE_PORTS.start, ENGINE_PORTS.stop - 1]],
            "seconds": LISTEN_S,
            "most": end.expected + SPARE,
        }
        argv = python_argv(end.host, ["-", json.dumps(plan)])
        try:
            end.stream = end.session.open(argv, timeout_s=READY_S)
            end.stream.feed(PROBER.read_bytes())
            end.doors = _doors(end.stream)
        except Exception as error:  # one node must not lose the others
            _note(end, f"no listener: {error}")

    def _try(self, at: int) -> Document | None:
        """What one node tells of its peers and of itself."""
        end = self.ends[at]
        plan = {
            "act": "try",
            "name": end.host.name,
            "token": self.token,
            "seconds": TRY_S,
            "pairs": list(self._pairs(at)),
            "inside": None if at in self.acted else _inside(end.host),
            "nics": end.document["collector"].get("selected", []),
        }
        try:
            done = end.session.run_python(
                PROBER.read_bytes(), [json.dumps(plan)], timeout_s=ANSWER_S
            )
            if done.rc != 0:
                last = done.complaint.strip().splitlines()[-1:] or ["without a word"]
                raise NoDocument("failed", f"it ended with {done.rc}: {last[0]}")
            return _whole(decode(done.stdout))
        except Exception as error:  # one node must not lose the others
            _note(end, f"nothing was tried: {error}")
            return None

    def _pairs(self, at: int) -> Iterator[dict[str, Any]]:
        for one, other in self.edges:
            if at not in (one, other) or one == other:
                continue
            peer = other if at == one else one
            for mine, theirs in self._rails(at, peer):
                yield from self._pair(mine, theirs, self.ends[peer])

    def _rails(self, at: int, peer: int) -> Iterator[tuple[str, str]]:
        """Addresses that one node tries at another: rail to rail of one name."""
        mine, theirs = self.ends[at].host, self.ends[peer].host
        there = {rail.name: rail.address for rail in theirs.rails}
        names = list(there)
        for rail in mine.rails if at != peer else ():
            for name in self._beside(rail.name, names):
                address = there[name]
                if rail.address and address and _alike(rail.address, address):
                    yield rail.address, address

    def _beside(self, name: str, names: Sequence[str]) -> Sequence[str]:
        """The rail of that name, and the next one where pairs may cross rails."""
        if name not in names:
            return ()
        following = names[(names.index(name) + 1) % len(names)]
        return list(dict.fromkeys((name, following))) if self.cross_rail else (name,)

    def _pair(self, mine: str, theirs: str, peer: _End) -> Iterator[dict[str, Any]]:
        """Every port of one rail of a peer; an exchange needs a listener of ours."""
        doors = [d for d in peer.doors if d.address == theirs and d.is_target]
        ours = [door for door in doors if not door.error]
        for door in doors:
            yield {
                "from": mine,
                "to": theirs,
                "port": door.port,
                "peer": peer.host.name,
                "ours": not door.error,
                "rc": bool(ours) and door is ours[-1],
            }

    def _unproven(self) -> set[str]:
        """HOST:PORT of those that may not have listened all the while."""
        found = set()
        for end in self.ends.values():
            lasted = end.stream is not None and _is_silent(end.stream)
            for door in end.doors:
                if door.error or not lasted:
                    found.add(spelled(door.address, door.port))
                end.cmds[f"listen {spelled(door.address, door.port)}"] = _entry(
                    door.error or ("" if lasted else "it ended before its time")
                )
        return found

    def _keep(self, end: _End, told: Document | None, unproven: set[str]) -> None:
        if told is None:
            return
        for line, entry in told["cmds"].items():
            target = line.removeprefix("connect ").partition(" ")[0]
            if entry.get("stderr") == "ECONNREFUSED" and target in unproven:
                entry |= {"rc": 2, "stderr": "refused, and nobody may have listened"}
            end.cmds[line] = entry
        verbs = end.document.setdefault("verbs", {})
        verbs.setdefault("probes", []).extend(told["probes"])


def _alike(one: str, other: str) -> bool:
    """Of one family."""
    return (":" in one) == (":" in other)


def _inside(host: HostEntry) -> list[str]:
    return [rail.address for rail in host.rails if rail.address]


def _doors(stream: Stream) -> tuple[Door, ...]:
    """What the listener says it bound. ValueError where it says something else.

    Its peers connect to what it says: nothing but what was asked for is believed.
    """
    heard = b""
    while b"\n###READY " not in b"\n" + heard or not heard.endswith(b"\n"):
        chunk = stream.recv(timeout_s=READY_S)
        if not chunk or len(heard) > MAX_READY:
            raise ValueError(f"it said {heard[:80]!r}")
        heard += chunk
    line = heard.rpartition(b"###READY ")[2].decode()
    doors = tuple(Door(**each) for each in json.loads(line))
    if any(d.port != HANDSHAKE_PORT and d.port not in ENGINE_PORTS for d in doors):
        raise ValueError(f"it bound what nobody asked for: {line[:80]}")
    return doors


def _whole(told: Document) -> Document:
    """What a prober tells, with all of its parts."""
    cmds, probes = told.get("cmds"), told.get("probes")
    if not (isinstance(cmds, dict) and isinstance(probes, list)):
        raise NoDocument("garbage", "no connections or no exchanges in it")
    if not all(isinstance(entry, dict) for entry in cmds.values()):
        raise NoDocument("garbage", "a connection without an entry")
    return told


def _is_silent(stream: Stream) -> bool:
    """It neither ended nor said that it is full."""
    try:
        stream.recv(timeout_s=0.05)
    except TimeoutError:
        return True
    except Exception:  # whatever it is, nobody is known to listen there
        return False
    return False


def _note(end: _End, reason: str) -> None:
    with contextlib.suppress(KeyError):
        end.document["collector"].setdefault("active_error", reason[:300])


def _entry(problem: str) -> dict[str, Any]:
    stdout = "" if problem else "listening\n"
    return {
        "rc": 1 if problem else 0,
        "stdout": stdout,
        "stderr": problem,
        "ms": 0,
        "timeout": False,
        "bytes": len(stdout),
    }

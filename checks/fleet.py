"""Collects the facts of all nodes of an inventory: in parallel, one round trip a node.

With `--active` pairs of nodes act together afterwards (see `checks.both_ends`).
A node that cannot be read is a document too: it says how (unreachable, refused,
host_key, auth, timeout, lost, garbage, truncated, no_python, no_sudo), so that the
judge reports it and nobody drops it.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from checks import both_ends
from checks.facts import SCHEMA
from checks.framing import NoDocument, decode
from inventory import HostEntry, SshError, SshSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checks.both_ends import Stream
    from inventory import Completed

    Document = dict[str, Any]

PARALLEL = 32
NODE_S = 45.0
"""Connecting, 20 s of collecting, and the way back; then the node has timed out."""
PROBES = 32
COLLECTOR = Path(__file__).parent / "collector.py"


class Session(Protocol):
    """What is needed of an SSH session; see `inventory.SshSession`."""

    def run_python(
        self, source: bytes, args: Sequence[str] = (), *, timeout_s: float
    ) -> Completed: ...

    def open(self, argv: Sequence[str], *, timeout_s: float = ...) -> Stream: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """What the collectors are told; see `collector.arguments`."""

    nics: tuple[str, ...] = ()
    active: bool = False
    cross_rail: bool = False
    """With `active`: also from each rail to the next one of a peer."""
    nft: bool = False
    kubernetes: bool = False
    connect: tuple[str, ...] = ()
    ping_bytes: int = 1472

    def arguments(self) -> list[str]:
        """As command line of the collector."""
        found = [
            *(["--nics", ",".join(self.nics)] if self.nics else []),
            *(["--connect", ",".join(self.connect)] if self.connect else []),
            *(["--ping-bytes", str(self.ping_bytes)] if self.active else []),
        ]
        flags = {"active": self.active, "nft": self.nft, "kubernetes": self.kubernetes}
        return [*found, *(f"--{name}" for name, given in flags.items() if given)]


def collect_fleet(
    hosts: Sequence[HostEntry],
    options: CollectOptions,
    *,
    session: Callable[[HostEntry], Session] = SshSession,
    done: Callable[[str, str], None] = lambda host, problem: None,
    acting: Callable[[Sequence[str]], None] = lambda names: None,
    parallel: int = PARALLEL,
    node_s: float = NODE_S,
    clock: Callable[[], float] = time.time,
) -> list[Document]:
    """One document a host, in the order of the hosts.

    Args:
        hosts: of an inventory.
        options: the same for every node.
        session: makes the connection to a host.
        done: told of every node as it comes in, with the problem or "".
        acting: told, with `active`, which nodes try their rails together now.
        parallel: nodes at a time.
        node_s: seconds for one node, everything included.
        clock: wall time of the controller, to see how far a node's is off.
    """
    source = COLLECTOR.read_bytes()
    with ThreadPoolExecutor(min(parallel, max(1, len(hosts)))) as pool:
        jobs = {
            pool.submit(
                _collect,
                session(host),
                host,
                source,
                [*options.arguments(), *_about(host, hosts)],
                node_s,
                clock,
            ): at
            for at, host in enumerate(hosts)
        }
        found: dict[int, Document] = {}
        for job in as_completed(jobs):
            at = jobs[job]
            found[at] = job.result()
            error = found[at]["collector"].get("error") or {}
            done(hosts[at].name, str(error.get("kind", "")))
    documents = [found[at] for at in range(len(hosts))]
    if options.active:
        both_ends.act(
            hosts,
            documents,
            session=session,
            cross_rail=options.cross_rail,
            begun=acting,
        )
    return documents


def lost(host: HostEntry, kind: str, reason: str) -> Document:
    """The document of a node that could not be read."""
    return _named(
        {
            "schema": SCHEMA,
            "collector": {"error": {"kind": kind, "reason": reason}},
            "node": {},
            "cmds": {},
            "files": {},
        },
        host,
    )


def _collect(
    session: Session,
    host: HostEntry,
    source: bytes,
    args: list[str],
    node_s: float,
    clock: Callable[[], float],
) -> Document:
    before = clock()
    try:
        done = session.run_python(source, args, timeout_s=node_s)
        if done.rc != 0 and b"###END" not in done.stdout:
            last = done.complaint.strip().splitlines()[-1:] or ["without a word"]
            return lost(
                host, "failed", f"the collector ended with {done.rc}: {last[0]}"
            )
        document = decode(done.stdout)
    except SshError as error:
        return lost(host, str(error.kind), str(error))
    except NoDocument as error:
        return lost(host, error.kind, error.reason)
    except Exception as error:  # one node must not lose the others
        return lost(host, "failed", f"{type(error).__name__}: {error}")
    finally:
        session.close()
    document.setdefault("collector", {})["bracket"] = [before, clock()]
    return _named(document, host)


def _named(document: Document, host: HostEntry) -> Document:
    """The inventory's name, role and cohort; the node's own name is kept beside it."""
    node = document.setdefault("node", {})
    if node.get("hostname", host.name) != host.name:
        node["own_hostname"] = node["hostname"]
    node["hostname"] = host.name
    if host.cohort:
        node["cohort"] = host.cohort
    if host.roles:
        node["role"] = "+".join(sorted(host.roles))
    return document


def _about(host: HostEntry, hosts: Sequence[HostEntry]) -> list[str]:
    """Pairs of addresses for live route samples: a ring, same rail and the next one."""
    if len(hosts) < 2:
        return []
    peer = hosts[(hosts.index(host) + 1) % len(hosts)]
    there = [rail.address for rail in peer.rails]
    pairs = []
    for at, rail in enumerate(host.rails):
        for shift in (0, 1):
            target = there[(at + shift) % len(there)] if there else ""
            if rail.address and target:
                pairs.append(f"{rail.address}>{target}")
    pairs = list(dict.fromkeys(pairs))[:PROBES]
    return ["--peers", ",".join(pairs)] if pairs else []

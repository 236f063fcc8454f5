"""`verbs.probes` of a facts document: RC exchanges that `--active` tried.

Each is `{"kind": "rc-pingpong" | "read", "from": DEVICE, "to": DEVICE, "peer": HOST,
"errno": N, "error": TEXT}`; `peer` is "" (or the node itself) for two rails of one
host. `rc-pingpong` is a message there and one back, `read` a one-sided read of the
peer's memory. An errno of 0 is a whole exchange. Otherwise it is the kernel's answer to
a transition of the queue pair, most often to RTR: 110 a timeout, 22 a GID or MTU that
does not fit, 61 an empty GID slot, 19 no such device; or, where `error` names a work
completion, 110 for retries without an answer and 5 for any other. null: it could not
be tried, `error` says why, and nothing follows from it. `gid_index` is the slot used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

SOURCE = "verbs.probes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One exchange between two queue pairs."""

    kind: str
    source: str
    target: str
    peer: str
    errno: int | None
    error: str

    @property
    def is_inside(self) -> bool:
        """Between two rails of the same host."""
        return self.peer == ""


@derived
def probes(facts: Facts) -> tuple[Probe, ...]:
    """Every exchange that was tried; Unread where none was recorded."""
    verbs = facts.document.get("verbs")
    rows = verbs.get("probes") if isinstance(verbs, Mapping) else None
    if rows is None:
        raise Unread("missing", SOURCE, "no exchange was tried")
    facts.note(SOURCE)
    if not isinstance(rows, list):
        raise Garbled(SOURCE, "no list of exchanges")
    return tuple(_probe(row, str(facts.node.get("hostname", ""))) for row in rows)


def _probe(row: object, hostname: str) -> Probe:
    if not isinstance(row, Mapping) or not isinstance(row.get("errno", ""), int | None):
        raise Garbled(SOURCE, "an exchange without an errno")
    peer = str(row.get("peer", ""))
    return Probe(
        kind=str(row.get("kind", "")),
        source=str(row.get("from", "")),
        target=str(row.get("to", "")),
        peer="" if peer in {hostname, "self"} else peer,
        errno=row["errno"],
        error=str(row.get("error", "")),
    )

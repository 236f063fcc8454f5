"""Faults in words: what was done to whom, for how long, and what proves it.

A fault is a receipt as a row of JSON, as results and histories hold it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chaos.report.traces import Traces

    Row = Mapping[str, Any]

WATCHING: Final = frozenset({"tap"})
"""Kinds that only look: nothing is broken by them."""
_PHRASES: Final = {
    "kill": "{} was killed",
    "pause": "{} was frozen (it hung)",
    "restart": "{} was restarted",
    "nic_down": "the NIC {} went dead",
    "flap": "the link {} went down and up",
    "partition": "{} was cut off",
    "latency": "traffic of {} was delayed",
    "bandwidth": "traffic of {} was slowed down",
    "blackhole": "traffic of {} was swallowed",
    "reset": "connections of {} were reset",
    "loss": "packets of {} were lost",
    "reorder": "packets of {} were reordered",
    "corrupt": "packets of {} were damaged",
    "failpoint": "{} was made to fail",
    "disk_full": "the disk of {} was filled",
    "slow_disk": "the disk of {} was slowed down",
    "memory": "memory of {} was used up",
    "memory_limit": "memory of {} was limited",
    "cpu": "processors of {} were kept busy",
    "clock_step": "the clock of {} was set",
    "port_taken": "a port of {} was taken",
}
_OWN_PARAMETERS: Final = frozenset({"plan", "undone"})


def faults_of(
    nodeid: str, faults: Iterable[Row], traces: Traces
) -> list[dict[str, Any]]:
    """The faults of a test in the order of time.

    Receipts come from the results; what a killed run could not write there is taken
    from its history.
    """
    known = traces.of(nodeid).faults
    rows = {name: dict(row) for name, row in known.items()}
    rows |= {str(r["fault_id"]): dict(r) for r in faults if r.get("test") == nodeid}
    return sorted(rows.values(), key=lambda row: begun(row) or math.inf)


def begun(fault: Row) -> float | None:
    """When a fault began, on the clock of the run; None where it never did."""
    at_s = fault.get("injected_at_s")
    return float(at_s) if isinstance(at_s, int | float) else None


def held(fault: Row) -> float | None:
    """For how many seconds a fault was in place."""
    start_s, end_s = begun(fault), fault.get("reverted_at_s")
    known = start_s is not None and isinstance(end_s, int | float)
    return float(end_s) - start_s if known and start_s is not None and end_s else None


def short_target(target: object, most: int = 2) -> str:
    """ "store-0.rail0, store-0.rail1 and 14 more" """
    names = [name for name in str(target).split(",") if name]
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def told(fault: Row) -> str:
    """A fault as a sentence: "store-3 was killed"."""
    phrase = _PHRASES.get(str(fault.get("kind")), f"{fault.get('kind')} on {{}}")
    return phrase.replace("{}", short_target(fault.get("target", "?")), 1)


def parameters(fault: Row) -> str:
    """What a fault was told beside its target: "latency_ms 50, jitter_ms 5"."""
    found = fault.get("parameters")
    if not isinstance(found, dict):
        return ""
    words = [f"{k} {v}" for k, v in found.items() if k not in _OWN_PARAMETERS]
    return ", ".join(words)


def proof(fault: Row) -> str:
    """The evidence of a fault in words; without any it says so."""
    evidence = fault.get("evidence")
    if not isinstance(evidence, dict):
        return "no evidence of any effect"
    effect = evidence.get("effect")
    number = f"{effect:,.6g}" if isinstance(effect, int | float) else "?"
    if not effect:
        return f"no effect: {number} {evidence.get('measure')}"
    return f"{evidence.get('measure')}: {number}"

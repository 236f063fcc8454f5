"""`mlnx_qos -i NETDEV`: trust, DSCP mapping, buffers and PFC of one NIC.

Traps: the first line may be a warning that lldpad runs; the mapping is printed only
with trust dscp, its rows are wrapped every 24 letters into repeated `prio:N dscp:` rows
with a trailing comma; the PFC rows are a heading and `enabled`, then maybe `buffer`. A
part counts only if what follows it, or its own last field, shows that it is whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "mlnx_qos"
PRIORITIES = 8
_ROW = re.compile(r"^\s*prio:\s*(\d)\s+dscp:\s*([\d,\s]*)$")
_AFTER_MAPPING = ("Receive buffer", "Cable len", "PFC configuration", "tc:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """What was printed; None (or "") is what was not, or was cut off."""

    netdev: str
    lldpad_runs: bool
    dcbx: str
    trust: str
    dscp_prio: Mapping[int, int] | None
    buffers: str
    cable: str
    pfc: tuple[int, ...] | None

    def told(self, field: str) -> Unread:
        """The refusal for a field that the text does not have."""
        return Garbled(f"{SOURCE} -i {self.netdev}", f"it does not tell {field}")


@lru_cache(maxsize=1024)
def parse_qos(text: str, netdev: str) -> Qos:
    """Reads as far as the text goes; refuses what is no output of the tool."""
    lines = text.splitlines()
    fields = dict(_pair(line) for line in lines if ":" in line)
    found = Qos(
        netdev=netdev,
        lldpad_runs=any("lldpad" in line and "WARNING" in line for line in lines),
        dcbx=_dcbx(fields.get("DCBX mode", "")),
        trust=_trust(fields.get("Priority trust state", ""), netdev),
        dscp_prio=_mapping(lines),
        buffers=_buffers(fields.get("Receive buffer size (bytes)", "")),
        cable=fields.get("Cable len", ""),
        pfc=_pfc(lines),
    )
    if not (found.dcbx or found.trust or found.pfc is not None):
        raise Garbled(f"{SOURCE} -i {netdev}", "no QoS settings in it")
    return found


@derived
def qos(facts: Facts, netdev: str) -> Qos:
    """The settings of one NIC; Unread where the tool did not tell them."""
    return parse_qos(facts.result("mlnx_qos", netdev).text(), netdev)


def qos_netdevs(facts: Facts) -> tuple[str, ...]:
    """NICs that the tool was asked about."""
    every = {r.reading.words[0] for r in facts.find("mlnx_qos") if r.reading.words}
    return tuple(sorted(every))


def _pair(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()


def _trust(text: str, netdev: str) -> str:
    if text not in {"", "dscp", "pcp", "both"}:
        raise Garbled(f"{SOURCE} -i {netdev}", f"no trust state: {text!r}")
    return text


def _dcbx(text: str) -> str:
    """Who controls DCBX; a word that is cut off counts as not told."""
    return text if text.endswith("controlled") else ""


def _mapping(lines: list[str]) -> dict[int, int] | None:
    """DSCP to priority; None where it is not printed or does not end."""
    begins = next((at for at, x in enumerate(lines) if "dscp2prio" in x), None)
    if begins is None:
        return None
    found: dict[int, int] = {}
    for line in lines[begins + 1 :]:
        row = _ROW.match(line)
        if row is None:
            return found if line.strip().startswith(_AFTER_MAPPING) else None
        for dscp in re.findall(r"\d+", row.group(2)):
            found[int(dscp)] = int(row.group(1))
    return None


def _buffers(text: str) -> str:
    return text if "max_buffer_size=" in text else ""


def _pfc(lines: list[str]) -> tuple[int, ...] | None:
    """The priorities with PFC; None where the row is missing or cut off."""
    begins = next((at for at, x in enumerate(lines) if "PFC configuration" in x), None)
    if begins is None:
        return None
    for line in lines[begins + 1 :]:
        parts = line.split()
        if parts[:1] == ["enabled"]:
            flags = parts[1:]
            whole = len(flags) == PRIORITIES and set(flags) <= {"0", "1"}
            if not whole:
                return None
            return tuple(at for at, flag in enumerate(flags) if flag == "1")
    return None

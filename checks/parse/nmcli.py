"""`nmcli -t -f DEVICE,STATE,CONNECTION d`: who manages a device, and by which profile.

Fields are separated by colons; colons and backslashes inside are escaped with a
backslash. A device without a profile has an empty last field (or `--`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

SOURCE = "nmcli -t -f DEVICE,STATE,CONNECTION d"
_SEPARATOR = re.compile(r"(?<!\\):")


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed:
    """One device as NetworkManager sees it; `connection` is "" without a profile."""

    device: str
    state: str
    connection: str

    @property
    def is_managed(self) -> bool:
        return not self.state.startswith("unmanaged")


def parse_nmcli(text: str) -> dict[str, Managed]:
    """Devices by name; text that ends inside of a line is garbled."""
    if not text.endswith("\n"):
        raise Garbled(SOURCE, "the last line is cut off")
    found = {}
    for line in text.splitlines():
        fields = [re.sub(r"\\(.)", r"\1", f) for f in _SEPARATOR.split(line)]
        if len(fields) < 3:
            raise Garbled(SOURCE, f"not three fields: {line[:60]!r}")
        device, state, connection = fields[:3]
        found[device] = Managed(
            device=device,
            state=state,
            connection="" if connection == "--" else connection,
        )
    return found


@derived
def managed(facts: Facts) -> dict[str, Managed]:
    """Devices of NetworkManager; Unread (`no tool`) where it is not installed."""
    return parse_nmcli(facts.result("nmcli").text())

"""`devlink -j dev info`: the firmware that runs, and the one stored in flash.

`stored` is missing for virtual functions; some drivers say `fw` and not `fw.version`.
Without devlink in the kernel: "Failed to connect to devlink Netlink", rc 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.commands import pci_address
from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

SOURCE = "devlink -j dev info"
_KEYS = ("fw.version", "fw")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevlinkInfo:
    """Versions of one device; "" where it tells none."""

    driver: str
    running: Mapping[str, str]
    stored: Mapping[str, str]

    def firmware(self) -> tuple[str, str]:
        """(running, stored) of the first version that both tell, else the first."""
        both = [key for key in _KEYS if key in self.running and key in self.stored]
        some = [key for key in _KEYS if key in self.running]
        key = (both or some or ["fw"])[0]
        return self.running.get(key, ""), self.stored.get(key, "")


def parse_devlink_info(loaded: Any) -> dict[str, DevlinkInfo]:
    """PCI devices by their address."""
    rows = loaded.get("info") if isinstance(loaded, Mapping) else None
    if not isinstance(rows, Mapping):
        raise Garbled(SOURCE, "no object called info")
    return {
        pci_address(name): _info(row)
        for name, row in rows.items()
        if name.startswith("pci/") and isinstance(row, Mapping)
    }


@derived
def devlink_info(facts: Facts) -> dict[str, DevlinkInfo]:
    """PCI devices by their address; Unread where the tool told none."""
    return parse_devlink_info(facts.result("devlink", "dev", "info").json())


def _info(row: Mapping[str, Any]) -> DevlinkInfo:
    versions = row.get("versions")
    versions = versions if isinstance(versions, Mapping) else {}
    return DevlinkInfo(
        driver=str(row.get("driver", "")),
        running=_texts(versions.get("running")),
        stored=_texts(versions.get("stored")),
    )


def _texts(found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping):
        return {}
    return {str(key): str(value) for key, value in found.items()}

"""`lspci -Dvvv [-s BDF]`: what PCI devices can do, and what they are set to.

Without privilege the whole list is `Capabilities: <access denied>`. `ACSCap` says what
a bridge could do and `ACSCtl` what it does: only the latter counts. `LnkSta` is marked
`(downgraded)`, `(overdriven)`, `(ok)` or not at all, by version and distribution.
Addresses come with and without their domain. There is no last line; a listing that
ends with the kernel's driver is taken as whole where something is said to be missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from checks.commands import pci_address
from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

_HEADER = re.compile(
    r"^((?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+([^:]+):\s*(.*)$", re.I
)
_ACS = re.compile(
    r"SrcValid([+-]) TransBlk[+-] ReqRedir([+-]) CmpltRedir([+-])"
    r" UpstreamFwd([+-]) EgressCtrl[+-] DirectTrans[+-]"
)
_ATS = re.compile(r"Enable([+-])")
_LINK = re.compile(r"Speed ([\d.]+)GT/s(?: \((\w+)\))?, Width x(\d+)(?: \((\w+)\))?")
_READ = re.compile(r"MaxPayload (\d+) bytes, MaxReadReq (\d+) bytes")
_EXTENDED = re.compile(r"^\s*Capabilities: \[[1-9a-f][0-9a-f]{2} ", re.M)
_LAST = ("Kernel driver in use:", "Kernel modules:")
_DENIED = "Capabilities: <access denied>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acs:
    """What a bridge does with requests between devices below it."""

    source_validation: bool
    redirects: tuple[str, ...]
    """Flags that send peer-to-peer requests upstream: `ReqRedir`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Speed and width of a PCIe link."""

    gt_per_s: float
    width: int
    downgraded: bool = False

    @property
    def shown(self) -> str:
        return f"{self.gt_per_s:g} GT/s x{self.width}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device; what its capabilities tell may be refused."""

    bdf: str
    kind: str
    """Its class in words (`PCI bridge`); "" where the listing has no header."""
    model: str
    text: str

    @property
    def is_bridge(self) -> bool:
        return self.kind.lower().startswith("pci bridge")

    @property
    def is_gpu(self) -> bool:
        lowered = self.kind.lower()
        made = re.search(r"nvidia|amd|advanced micro", self.model, re.I) is not None
        accelerator = "accelerator" in lowered
        return made and (accelerator or lowered.startswith(("3d", "vga", "display")))

    @property
    def is_nic(self) -> bool:
        words = ("ethernet", "infiniband", "network controller")
        return self.kind.lower().startswith(words)

    @property
    def is_whole(self) -> bool:
        """Its listing reaches the end that lspci gives to devices with a driver."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        ended = self.text.endswith("\n") and bool(lines)
        return ended and lines[-1].strip().startswith(_LAST)

    def acs(self) -> Acs | None:
        """What it is set to; None where it can do nothing of the kind."""
        line = self._line("ACSCtl")
        if line is None:
            if self.is_whole and _EXTENDED.search(self.text):
                return None
            raise Garbled(self._what, "no ACS lines, and not the whole listing")
        match = _ACS.search(line)
        if match is None:
            raise Garbled(self._what, f"ACSCtl is cut off: {line.strip()[:60]}")
        names = ("ReqRedir", "CmpltRedir", "UpstreamFwd")
        flags = zip(names, match.groups()[1:], strict=True)
        return Acs(
            source_validation=match[1] == "+",
            redirects=tuple(name for name, sign in flags if sign == "+"),
        )

    def ats(self) -> bool | None:
        """Whether address translation services are on; None where it has none."""
        line = self._line("ATSCtl")
        if line is None:
            if self.is_whole and _EXTENDED.search(self.text):
                return None
            raise Garbled(self._what, "no ATS lines, and not the whole listing")
        match = _ATS.search(line)
        if match is None:
            raise Garbled(self._what, "ATSCtl is cut off")
        return match[1] == "+"

    def says(self, name: str) -> bool:
        """Whether the listing has a line of this name."""
        return re.search(rf"^\s*{name}:", self.text, re.M) is not None

    def links(self) -> tuple[Link, Link]:
        """What the link can do and what it does: (LnkCap, LnkSta)."""
        return self._link("LnkCap"), self._link("LnkSta")

    def read_sizes(self) -> tuple[int, int]:
        """(MaxReadReq, MaxPayload) in bytes, as set."""
        self._refuse_denied()
        at = re.search(r"^\s*DevCtl:", self.text, re.M)
        match = _READ.search(self.text, at.end()) if at else None
        if match is None:
            raise Garbled(self._what, "no MaxReadReq below DevCtl")
        return int(match[2]), int(match[1])

    def _link(self, name: str) -> Link:
        line = self._line(name)
        match = _LINK.search(line) if line is not None else None
        if match is None:
            raise Garbled(self._what, f"no speed and width in {name}")
        return Link(
            gt_per_s=float(match[1]),
            width=int(match[3]),
            downgraded="downgraded" in {match[2], match[4]},
        )

    def _line(self, name: str) -> str | None:
        self._refuse_denied()
        match = re.search(rf"^\s*{name}:(.*)$", self.text, re.M)
        return match[1] if match else None

    def _refuse_denied(self) -> None:
        if _DENIED in self.text:
            raise Unread("denied", self._what, "Capabilities: <access denied>")

    @property
    def _what(self) -> str:
        return f"lspci -vvv -s {self.bdf}"


@lru_cache(maxsize=1024)
def parse_lspci(text: str, bdf: str = "") -> tuple[Device, ...]:
    """Devices in the order of the listing; `bdf` names one that has no header."""
    blocks: list[tuple[str, str, str, list[str]]] = []
    for line in text.splitlines(keepends=True):
        header = _HEADER.match(line)
        if header:
            blocks.append((pci_address(header[1]), header[2], header[3], [line]))
        elif blocks:
            blocks[-1][3].append(line)
        elif bdf and line.strip():
            blocks.append((bdf, "", "", [line]))
    if not blocks:
        raise Garbled("lspci", "no device in it")
    return tuple(
        Device(bdf=at, kind=kind.strip(), model=model, text="".join(lines))
        for at, kind, model, lines in blocks
    )


@derived
def devices(facts: Facts) -> dict[str, Device | Unread]:
    """Devices by address, with the refusal where one was asked for and not told."""
    results = facts.find("lspci")
    if not results:
        raise Unread("missing", "lspci -Dvvv", "not collected")
    found: dict[str, Device | Unread] = {}
    refused: list[Unread] = []
    for result in results:
        asked = result.reading.words[0] if result.reading.words else ""
        try:
            told = parse_lspci(result.text(), asked)
        except Unread as error:
            refused.append(error)
            if asked:
                found.setdefault(asked, error)
            continue
        for each in told:
            found[each.bdf] = _fuller(found.get(each.bdf), each)
    if not found:
        raise refused[0]
    return found


def _fuller(known: Device | Unread | None, other: Device) -> Device:
    if isinstance(known, Device) and len(known.text) >= len(other.text):
        return known
    return other

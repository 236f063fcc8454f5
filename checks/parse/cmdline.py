"""`/proc/cmdline`: arguments of the kernel, and those of the next boot.

Split on blanks outside double quotes; of an argument given twice the last one counts;
what follows ` -- ` is for init and no argument of the kernel.
"""

from __future__ import annotations

import re

from checks.facts import Facts, Unread, derived

CMDLINE = "/proc/cmdline"
GRUB = "/etc/default/grub"
NEXT = "/etc/kernel/cmdline"
_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
_IOMMU = frozenset(
    {"intel_iommu", "amd_iommu", "iommu", "iommu.passthrough", "iommu.strict", "pci"}
)
_ALSO = ("pcie_acs_override", "iommu.forcedac", "vfio")
_TRUE = frozenset({"1", "y", "yes", "on", "true"})


def parse_cmdline(text: str) -> dict[str, str]:
    """Arguments by name; "" for one without a value."""
    found: dict[str, str] = {}
    for word in _WORD.findall(text):
        if word == "--":
            break
        name, _, value = word.replace('"', "").partition("=")
        found.pop(name, None)
        found[name] = value
    return found


def parse_grub(text: str) -> dict[str, str]:
    """Arguments of `GRUB_CMDLINE_LINUX` and `GRUB_CMDLINE_LINUX_DEFAULT` together."""
    found: dict[str, str] = {}
    for name in ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"):
        values = re.findall(rf"^\s*{name}=(.*)$", text, re.M)
        if values:
            found |= parse_cmdline(values[-1].strip().strip("'\""))
    return found


def iommu_tokens(arguments: dict[str, str]) -> tuple[str, ...]:
    """The arguments that decide about IOMMU and ACS, as written, sorted."""
    return tuple(
        sorted(
            f"{name}={value}" if value else name
            for name, value in arguments.items()
            if name in _IOMMU or name.startswith(_ALSO)
        )
    )


def asks_passthrough(arguments: dict[str, str]) -> bool:
    """It asks for identity domains."""
    if arguments.get("iommu.passthrough", "").lower() in _TRUE:
        return True
    return "pt" in arguments.get("iommu", "").split(",")


def asks_off(arguments: dict[str, str]) -> bool:
    """It asks for no IOMMU at all."""
    named = ("iommu", "intel_iommu", "amd_iommu")
    return any("off" in arguments.get(name, "").split(",") for name in named)


@derived
def cmdline(facts: Facts) -> dict[str, str]:
    """The arguments that the running kernel was given."""
    text = facts.text(CMDLINE)
    if not text.strip():
        raise Unread("empty", CMDLINE, "it is empty")
    return parse_cmdline(text)


@derived
def next_cmdline(facts: Facts) -> tuple[str, dict[str, str]]:
    """Where the arguments of the next boot come from, and what they are."""
    try:
        return NEXT, parse_cmdline(facts.text(NEXT))
    except Unread as error:
        if error.kind not in {"absent", "missing"}:
            raise
    return GRUB, parse_grub(facts.text(GRUB))

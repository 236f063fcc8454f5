"""`ibv_devinfo -l`: the RDMA devices that user space can open.

`4 HCAs found:` and a name a line, behind a tab. No device: "No IB devices found" on
stderr with rc 255 (some versions: rc 0). No RDMA core in the kernel: "Failed to get IB
devices list: Function not implemented", rc 255. What libibverbs complains of comes on
stderr, whatever the return code. `ibv_devinfo -v` lists the same names as `hca_id:`,
pyverbs has them as the keys of the `verbs` block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

SOURCE = "ibv_devinfo -l"
NONE_FOUND = "No IB devices found"
_HEAD = re.compile(r"^(\d+) HCAs? found:\s*$", re.MULTILINE)
_HCA = re.compile(r"^hca_id:\s*(\S+)\s*$", re.MULTILINE)
_COMPLAINT = re.compile(
    r"no userspace device-specific driver found"
    r"|couldn't load driver"
    r"|couldn't open config directory"
)


def parse_list(text: str) -> tuple[str, ...]:
    """Names, in the order of the tool; as many as it counted."""
    head = _HEAD.search(text)
    if head is None:
        raise Garbled(SOURCE, "it counts no devices")
    names = tuple(text[head.end() :].split())
    if len(names) != int(head[1]) or not text.endswith("\n"):
        raise Garbled(SOURCE, f"{len(names)} names of {head[1]}")
    return names


@derived
def opened_devices(facts: Facts, where: str = "") -> tuple[str, ...]:
    """Devices that libibverbs lists; empty where it finds none."""
    every = facts.find("ibv_devinfo", where=where)
    if not every:
        return _of_pyverbs(facts, where)
    refused: Unread | None = None
    for result in sorted(every, key=lambda r: "-l" not in r.reading.options):
        try:
            return _names(result)
        except Unread as error:
            if error.kind != "no tool":
                raise
            refused = error
    try:
        return _of_pyverbs(facts, where)
    except Unread:
        raise (refused or Unread("missing", SOURCE, "not collected")) from None


@derived
def complaints(facts: Facts, where: str = "") -> tuple[str, ...]:
    """Lines in which libibverbs says what it misses."""
    return tuple(
        dict.fromkeys(
            line.strip()
            for result in facts.find("ibv_devinfo", where=where)
            for line in f"{result.stderr}\n{result.stdout}".splitlines()
            if _COMPLAINT.search(line)
        )
    )


def _names(result: Result) -> tuple[str, ...]:
    result.ended()
    if NONE_FOUND in result.stderr or NONE_FOUND in result.stdout:
        return ()
    if "-l" in result.reading.options:
        return parse_list(result.text())
    names = tuple(_HCA.findall(result.text()))
    if not names or not result.stdout.endswith("\n"):
        raise Garbled(result.line, "no device, or the last one is cut off")
    return names


def _of_pyverbs(facts: Facts, where: str) -> tuple[str, ...]:
    told = facts.document.get("verbs")
    if where or not isinstance(told, Mapping):
        raise Unread("missing", SOURCE, "not collected")
    if isinstance(told.get("error"), str):
        raise Unread("failed", "pyverbs", told["error"])
    names = sorted(str(name) for name in told if name != "probes")
    if not names:
        raise Unread("missing", SOURCE, "not collected")
    facts.note("pyverbs")
    return tuple(names)

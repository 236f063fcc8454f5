"""`rdma -j system`: whether RDMA devices are shared between network namespaces.

JSON `{"netns":"shared","copy-on-fork":...}`, text `netns shared copy-on-fork on`; old
tools say `Unknown object "system"`. The kernel's own word is the parameter
`/sys/module/ib_core/parameters/netns_mode` (Y is shared). What a reboot would give is
`options ib_core netns_mode=N` below /etc/modprobe.d, which needs the initramfs too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

SOURCE = "rdma -j system"
PARAMETER = "/sys/module/ib_core/parameters/netns_mode"
MODPROBE = "/etc/modprobe.d/*.conf"
MODES = ("shared", "exclusive")
_REPLACEABLE = frozenset({"missing", "no tool", "denied", "failed"})
_TEXT = re.compile(r"\bnetns\s+(shared|exclusive)\b(?=\s)")
_OPTION = re.compile(r"^\s*options\s+ib_core\s+.*\bnetns_mode=(\w+)", re.MULTILINE)
_SHARED = {"1": True, "y": True, "n": False, "0": False}


@derived
def netns_mode(facts: Facts) -> str:
    """`shared` or `exclusive`, in effect now."""
    try:
        return _of_tool(facts.result("rdma", "system"))
    except Unread as error:
        if error.kind not in _REPLACEABLE:
            raise
        refusal = error
    try:
        return _word(PARAMETER, facts.line(PARAMETER))
    except Unread as error:
        raise (error if refusal.kind == "missing" else refusal) from None


@derived
def persistent_mode(facts: Facts) -> str:
    """What modprobe.d sets for the next boot; "" where it sets nothing or is unread."""
    found = ""
    for path in facts.matching(MODPROBE):
        try:
            said = _OPTION.findall(facts.text(path))
        except Unread:
            continue
        found = _word(path, said[-1]) if said else found
    return found


def parse_system(loaded: Any) -> str:
    """The mode out of the JSON of the tool."""
    one = loaded[0] if isinstance(loaded, list) and len(loaded) == 1 else loaded
    mode = one.get("netns") if isinstance(one, Mapping) else None
    if mode not in MODES:
        raise Garbled(SOURCE, f"no mode of namespaces: {mode!r}")
    return str(mode)


def _of_tool(result: Result) -> str:
    if 'Unknown object "system"' in result.stderr:
        raise Unread("no tool", result.line, "iproute2 is too old to tell")
    text = _TEXT.search(result.text() + "\n") if _is_text(result) else None
    return text.group(1) if text else parse_system(result.json())


def _is_text(result: Result) -> bool:
    return not result.text().lstrip().startswith(("{", "["))


def _word(where: str, text: str) -> str:
    shared = _SHARED.get(text.strip().lower())
    if shared is None:
        raise Garbled(where, f"no mode of namespaces: {text!r}")
    return "shared" if shared else "exclusive"

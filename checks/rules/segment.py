"""How much memory a Mooncake store means to register.

`MOONCAKE_GLOBAL_SEGMENT_SIZE` as Mooncake reads it: a number of bytes, or a number with
a unit (`64GB`, `64 GiB`, `512mb`); units count in powers of 1024. Without it Mooncake
takes 3.125 GiB, and 1 GiB for the local buffer (mooncake_config.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from checks.node import Node
    from checks.parse.services import Service

VARIABLE = "MOONCAKE_GLOBAL_SEGMENT_SIZE"
DEFAULT_SEGMENT = 3355443200
HUGE_PAGES = "MC_STORE_USE_HUGEPAGE"
HUGE_PAGE_SIZE = "MC_STORE_HUGEPAGE_SIZE"
MIB, GIB = 1 << 20, 1 << 30
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_FALSE = frozenset({"", "0", "false", "no", "off"})


def parse_size(text: str, what: str = VARIABLE) -> int:
    """Bytes of `68719476736`, `64GB`, `64 GiB`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise Garbled(what, f"no size: {text.strip()[:40]!r}")
    power = " kmgt".index(found[2].lower()) if found[2] else 0
    return (
        int(float(found[1]) * 1024**power)
        if "." in found[1]
        else (int(found[1]) * 1024**power)
    )


def planned(node: Node, service: Service | None = None) -> int | None:
    """Bytes of one segment, where service, node or profile say; None where none does.

    The profile wins; the service's own word counts more than its neighbours'.
    """
    if node.profile.memory.segment_bytes is not None:
        return node.profile.memory.segment_bytes
    own = service.env if service is not None and service.env else {}
    for env in (own, node.env):
        if env.get(VARIABLE, "").strip():
            return parse_size(env[VARIABLE])
    flag = service.option("--global_segment_size") if service is not None else None
    return parse_size(flag, "--global_segment_size") if flag else None


def wants_huge_pages(node: Node) -> bool | None:
    """Whether the store was told to use huge pages; None where nobody said."""
    said = node.env.get(HUGE_PAGES)
    return None if said is None else said.strip().lower() not in _FALSE


def huge_page_bytes(node: Node) -> int:
    """The size of a huge page that the store asks for."""
    said = node.env.get(HUGE_PAGE_SIZE, "").strip()
    return parse_size(said, HUGE_PAGE_SIZE) if said else 2 * MIB


def shown(size: int) -> str:
    """A size as people say it."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if size >= scale:
            amount = size / scale
            return (
                f"{amount:.0f} {unit}"
                if amount.is_integer()
                else (f"{amount:.1f} {unit}")
            )
    return f"{size} bytes"

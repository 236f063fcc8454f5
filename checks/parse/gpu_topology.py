"""`nvidia-smi topo -m`: how near each NIC is to each GPU.

A matrix with tabs: `X` itself, `NV18` by NVLink, `PIX` one bridge at most, `PXB`
several bridges, `PHB` a host bridge, `NODE` within a NUMA node, `SYS` across sockets.
NICs are columns `NIC0`, ... whose devices the legend names (`NIC0: mlx5_0`), or the
devices themselves in older versions. Terminals get escape codes around the header.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

_SOURCE = "nvidia-smi topo -m"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NIC = re.compile(r"^(?:NIC\d+|mlx\w+|bnxt\w*|irdma\w*|rocep\w+|ibp\w+)$")
_GPU = re.compile(r"^GPU\d+$")
_RELATION = re.compile(r"^(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)$")
_LEGEND = re.compile(r"^\s*(NIC\d+): (\S+)\s*$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Relations of every GPU to every NIC."""

    relations: Mapping[str, Mapping[str, str]]
    """GPU to device to relation."""


def parse_topology(text: str) -> Topology:
    """The part of the matrix between GPUs and NICs; every row must be whole."""
    text = _ESCAPE.sub("", text)
    names = dict(_LEGEND.findall(text))
    lines = [line for line in text.splitlines() if line.strip()]
    header = lines[0].split() if lines else []
    columns = [word for word in header if _NIC.match(word) or _GPU.match(word)]
    found: dict[str, dict[str, str]] = {}
    for line in lines[1:]:
        cells = line.split()
        if not _GPU.match(cells[0]):
            continue
        relations = cells[1 : 1 + len(columns)]
        if len(relations) < len(columns) or not all(map(_RELATION.match, relations)):
            raise Garbled(_SOURCE, f"the row of {cells[0]} is cut off")
        pairs = zip(columns, relations, strict=True)
        found[cells[0]] = {
            names.get(column, column): how
            for column, how in pairs
            if _NIC.match(column)
        }
    gpus = [column for column in columns if _GPU.match(column)]
    if not gpus or set(found) != set(gpus):
        raise Garbled(_SOURCE, "not a row for every GPU")
    if any(c.startswith("NIC") and c not in names for c in columns):
        raise Garbled(_SOURCE, "the legend does not name every NIC")
    return Topology(relations=found)


@derived
def topology(facts: Facts) -> Topology:
    """The matrix of a node."""
    return parse_topology(facts.result("nvidia-smi", "topo").text())

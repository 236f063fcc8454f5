"""The rate of an RDMA port in sysfs: `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.

A port that is down, and soft-RoCE, say 2.5. A bonded device (RoCE LAG) says the rate of
one leg (Mooncake on `mlx5_bond_0`): the bond's own speed counts there.
"""

from __future__ import annotations

import re

from checks.parse.garbled import Garbled

_RATE = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec(?: \([^()]*\))?$")


def gigabits(text: str) -> float:
    """Gigabits a second."""
    found = _RATE.match(text.strip())
    if found is None:
        raise Garbled("rate", f"not a rate: {text.strip()[:40]!r}")
    return float(found[1])

"""Quantities as operators write them: `20s`, `500ms`, `2m`, `5%`, `64MiB`.

A bare number is in the base unit: seconds, a share of 1, bytes.
"""

from __future__ import annotations

import math
import re

_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile(rf"{_NUMBER}\s*(ms|s|m|h)", re.ASCII)
_SHARE = re.compile(rf"{_NUMBER}\s*%", re.ASCII)
_SIZE = re.compile(rf"{_NUMBER}\s*(B|KiB|MiB|GiB)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MAX_DURATION_S = 24 * 3600.0


def duration_s(value: object) -> float:
    """Seconds, between 0 and a day.

    Raises:
        ValueError: It is no duration.
    """
    found = _number(value)
    if found is None and isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match:
            found = float(match[1]) * _SECONDS[match[2]]
    if found is None or not 0 <= found <= MAX_DURATION_S:
        raise ValueError("is no duration such as 500ms, 20s or 2m")
    return found


def share(value: object) -> float:
    """A part of a whole, 0 to 1.

    Raises:
        ValueError: It is no share.
    """
    found = _number(value)
    if found is None and isinstance(value, str):
        match = _SHARE.fullmatch(value.strip())
        if match:
            found = float(match[1]) / 100
    if found is None or not 0 <= found <= 1:
        raise ValueError("is no share such as 5% or 0.05")
    return found


def size_bytes(value: object) -> int:
    """A positive number of bytes.

    Raises:
        ValueError: It is no size.
    """
    found = _number(value)
    if found is None and isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match:
            found = float(match[1]) * _BYTES[match[2]]
    if found is None or found < 1 or found != int(found):
        raise ValueError("is no size such as 64MiB")
    return int(found)


def _number(value: object) -> float | None:
    """A finite number that is not a truth value in disguise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None

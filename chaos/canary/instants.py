"""Instants of a command line: `1700000000`, `2026-01-31T10:00:00Z`, `-90m`, `now`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from chaos.errors import UsageError

_AGO = re.compile(r"-(\d+(?:\.\d+)?)(s|m|h|d)", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LAST = 1e11


def instant(text: str, option: str, *, now: float) -> float:
    """Seconds since the epoch; `now` is the instant that relative ones count from.

    Raises:
        UsageError: It is none, or lies in the future, where nothing was measured yet.
    """
    found = _read(text.strip(), now)
    if found is None:
        told = f"{option} {text!r:.60} is no instant"
        raise UsageError(told, "say 2026-01-31T10:00:00Z, unix seconds, -30m or now")
    if found > now:
        told = f"{option} {text} lies {found - now:.0f} s in the future"
        raise UsageError(told, "name a time that is over, or look at the clock here")
    return found


def _read(text: str, now: float) -> float | None:
    if text == "now":
        return now
    ago = _AGO.fullmatch(text)
    if ago:
        return now - float(ago[1]) * _SECONDS[ago[2]]
    try:
        seconds = float(text)
    except ValueError:
        return _dated(text)
    return seconds if 0 <= seconds < _LAST else None


def _dated(text: str) -> float | None:
    """ISO 8601; without a zone it is UTC, so that it means the same everywhere."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()

"""Host ranges as Ansible writes them: `node[01:16]`, `rack[a:c]-n[0:10:2]`."""

from __future__ import annotations

import re

MAX_EXPANDED = 10_000
"""Names that one pattern may stand for."""

_RANGE = re.compile(r"\[([^\[\]]*)\]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def expand(pattern: str) -> list[str]:
    """All names that the pattern stands for, in order; both ends belong to it.

    Raises:
        ValueError: it is no range, or stands for too many names.
    """
    found = _RANGE.search(pattern)
    if found is None:
        if "[" in pattern or "]" in pattern:
            raise ValueError("has an unmatched bracket")
        return [pattern]
    tails = expand(pattern[found.end() :])
    values = _values(found[1])
    if len(values) * len(tails) > MAX_EXPANDED:
        raise ValueError(f"stands for more than {MAX_EXPANDED} hosts")
    head = pattern[: found.start()]
    return [head + value + tail for value in values for tail in tails]


def _values(text: str) -> list[str]:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts[1:]):
        raise ValueError(f"[{text}] is not a range like [01:16] or [a:f]")
    first, last = parts[0] or "0", parts[1]
    step = parts[2] if len(parts) == 3 else "1"
    if not (step.isascii() and step.isdigit() and int(step[:6]) > 0):
        raise ValueError(f"[{text}] has a step that is not a number above 0")
    if _is_number(first) and _is_number(last):
        return _numbers(text, first, last, int(step[:6]))
    low, high = _LETTERS.find(first.lower()), _LETTERS.find(last.lower())
    alike = first.islower() == last.islower()
    if not (len(first) == len(last) == 1 and alike and 0 <= low <= high):
        raise ValueError(f"[{text}] is not a range like [01:16] or [a:f]")
    letters = _LETTERS if first.islower() else _LETTERS.upper()
    return list(letters[low : high + 1 : int(step)])


def _numbers(text: str, first: str, last: str, step: int) -> list[str]:
    width = len(first) if first.startswith("0") and len(first) > 1 else 0
    if width and len(last) != width:
        raise ValueError(f"[{text}] has ends of different widths")
    low, high = int(first), int(last)
    if high < low:
        raise ValueError(f"[{text}] ends before it begins")
    if (high - low) // step >= MAX_EXPANDED:
        raise ValueError(f"stands for more than {MAX_EXPANDED} hosts")
    return [f"{number:0{width}d}" for number in range(low, high + 1, step)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9

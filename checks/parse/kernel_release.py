"""The release of the running kernel: `uname -r`, else the third word of /proc/version.

`Linux version 6.8.0-60-generic (buildd@...) ...`.
"""

from __future__ import annotations

import re

from checks.facts import Facts, derived, first
from checks.parse.garbled import Garbled

_VERSION = re.compile(r"^Linux version (\S+) ")
_NUMBERS = re.compile(r"^(\d+)\.(\d+)")


@derived
def kernel_release(facts: Facts) -> str:
    """E.g. `6.8.0-60-generic`."""
    return first(
        lambda: _line(facts.result("uname").text()),
        lambda: _of_version(facts.text("/proc/version")),
    )


def numbers(release: str) -> tuple[int, int]:
    """Major and minor number of a release."""
    found = _NUMBERS.match(release)
    if found is None:
        raise Garbled("uname -r", f"no release: {release[:40]!r}")
    return int(found[1]), int(found[2])


def _line(text: str) -> str:
    return text.splitlines()[0].strip()


def _of_version(text: str) -> str:
    found = _VERSION.match(text)
    if found is None:
        raise Garbled("/proc/version", "no release in it")
    return found[1]

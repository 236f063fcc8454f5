"""The version of Mooncake: `mooncake_master --version` or the metadata of its wheel."""

from __future__ import annotations

import re
from collections.abc import Mapping

from checks.facts import Facts, Unread, derived, first
from checks.parse.garbled import Garbled

SOURCE = "mooncake_master --version"
_VERSION = re.compile(r"\b(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?\b")
_WHEEL = re.compile(
    r"/mooncake_transfer_engine[^/]*\.(?:dist|egg)-info/(?:METADATA|PKG-INFO)$"
)
_FIELD = re.compile(r"^Version:\s*(\S+)\s*$", re.MULTILINE)

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """(0, 3, 8, 1) of `0.3.8.post1`; a release has no fourth number."""
    found = _VERSION.search(text)
    if found is None:
        raise Garbled(SOURCE, f"no version in {text.strip()[:60]!r}")
    return tuple(int(part) for part in found.groups() if part is not None)


@derived
def mooncake_version(facts: Facts) -> Version:
    """The installed version; Unread where nothing tells it."""
    return first(
        lambda: parse_version(facts.result("mooncake_master").text()),
        lambda: _of_wheel(facts),
    )


def _of_wheel(facts: Facts) -> Version:
    files = facts.document.get("files")
    for path in sorted(files) if isinstance(files, Mapping) else ():
        if _WHEEL.search(path):
            field = _FIELD.search(facts.text(path))
            if field is None:
                raise Garbled(path, "no field Version")
            return parse_version(field.group(1))
    raise Unread("missing", "metadata of the Mooncake wheel", "not collected")

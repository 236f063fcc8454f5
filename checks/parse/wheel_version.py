"""Mooncake's version: `mooncake_master --version`, `pip show`, or the wheel's METADATA.

The wheel is called mooncake-transfer-engine, with a suffix for CUDA or NPU builds.
`0.3.7.post2` and `0.3.8.post1` behave differently (Mooncake#1384).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Iterator

MASTER = "mooncake_master --version"
_VERSION = re.compile(
    r"(?<![\w.])v?(\d+\.\d+(?:\.\d+)*(?:(?:\.?(?:post|dev|rc)|a|b)\d+)?)(\+[\w.]+)?"
)
_METADATA = re.compile(r"^Version:\s*(\S+)\s*$", re.MULTILINE)
_WHEEL = re.compile(r"/mooncake[\w.-]*\.(?:dist|egg)-info/(?:METADATA|PKG-INFO)$")
_LISTED = re.compile(r"^mooncake[\w-]*[ =]+(\d\S*)[ \t]*\n", re.MULTILINE)


def parse_version(text: str) -> str:
    """The first version in what a program says of itself, without `v` and build."""
    if not text.endswith("\n"):
        text = f"{text}\n"
    found = _VERSION.search(text)
    if found is None:
        raise Garbled(MASTER, f"no version in {text.strip()[:60]!r}")
    return found[1]


_NOT_HERE = frozenset({"no tool", "failed", "missing"})
"""Refusals of a source that just has nothing to say; others hide what it says."""


@derived
def versions(facts: Facts) -> dict[str, str]:
    """Every version that the node tells, by source; Unread where there is none."""
    found: dict[str, str] = {}
    refused: Unread | None = None
    for result in (*facts.find("mooncake_master"), *_pips(facts)):
        try:
            found[result.line] = _told(result)
        except Unread as error:
            if error.kind not in _NOT_HERE:
                raise
            refused = error
    for path in _wheels(facts):
        said = _METADATA.search(facts.text(path))
        if said:
            found[path] = said[1].partition("+")[0]
    if found:
        return found
    raise refused or Unread("missing", MASTER, "not collected")


@derived
def mooncake_version(facts: Facts) -> str:
    """The one version of the node, e.g. `0.3.8.post1`."""
    every = versions(facts)
    return next(every[source] for source in sorted(every))


def _pips(facts: Facts) -> Iterator[Result]:
    for program in ("pip", "pip3", "uv"):
        for result in facts.find(program):
            words = result.reading.words
            if "list" in words or "freeze" in words or "mooncake" in result.line:
                yield result


def _told(result: Result) -> str:
    text = result.text()
    if result.reading.program == "mooncake_master":
        return parse_version(text)
    if not text.endswith("\n"):
        raise Garbled(result.line, "its last line is not whole")
    said = _METADATA.search(text) or _LISTED.search(text)
    if said is None:
        raise Garbled(result.line, "Mooncake is not among them")
    return said[1].partition("+")[0]


def _wheels(facts: Facts) -> list[str]:
    paths = facts.document.get("files")
    every = paths if isinstance(paths, dict) else {}
    return sorted(path for path in every if _WHEEL.search(path))

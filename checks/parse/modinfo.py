"""`modinfo MODULE`: the module that is installed for the running kernel.

Lines of `name: value`; `filename: (builtin)` is part of the kernel. `srcversion` is a
hash of the source, the same that `/sys/module/MODULE/srcversion` has of the module that
is loaded; `vermagic` begins with the release of the kernel that it was built for. The
text has no end mark, and a line without its end was cut off.
"""

from __future__ import annotations

from dataclasses import dataclass

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A module on disk; `srcversion` is "" where it was built without."""

    builtin: bool
    srcversion: str
    release: str


def parse_modinfo(text: str) -> Installed:
    """The module; every one that is not built in has a vermagic."""
    fields: dict[str, str] = {}
    for line in text[: text.rfind("\n") + 1].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    builtin = fields.get("filename") == "(builtin)"
    release = fields.get("vermagic", "").partition(" ")[0]
    if not (builtin or release):
        raise Garbled("modinfo", "no vermagic in it")
    return Installed(
        builtin=builtin, srcversion=fields.get("srcversion", ""), release=release
    )


@derived
def modinfo(facts: Facts, module: str) -> Installed:
    """The installed module; a missing one is `failed`."""
    return parse_modinfo(facts.result("modinfo", module).text())

"""`systemctl show --property=... UNIT`: whether a unit is enabled, and ran this boot.

A unit that is not there is `LoadState=not-found`, with return code 0. Timestamps are in
microseconds since boot, 0 where it never began; systemd forgets them with the boot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENABLED = frozenset({"enabled", "generated", "alias"})
"""Not `enabled-runtime`: that is in /run, and gone with the boot."""
_NOT_BOOTED = "not been booted with systemd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit; `began_s` is in seconds since boot, None where it never began."""

    is_loaded: bool
    state: str
    """`UnitFileState`; of `static` and `indirect` nobody tells what starts them."""
    result: str
    began_s: float | None

    @property
    def is_enabled(self) -> bool:
        """Whether it starts at every boot."""
        return self.state in _ENABLED


def parse_unit(text: str, source: str) -> Unit:
    """The unit, from its properties in any order."""
    if not text.endswith("\n"):
        raise Garbled(source, "its last line is not whole")
    rows = (line.partition("=") for line in text.splitlines())
    told = {name: value for name, _, value in rows}
    began_us = _property(told, "ExecMainStartTimestampMonotonic", source)
    if not began_us.isdigit():
        raise Garbled(source, f"no time: {began_us[:40]!r}")
    return Unit(
        is_loaded=_property(told, "LoadState", source) != "not-found",
        state=_property(told, "UnitFileState", source),
        result=_property(told, "Result", source),
        began_s=int(began_us) / 1e6 if int(began_us) else None,
    )


@derived
def unit(facts: Facts, name: str) -> Unit | None:
    """A service of systemd; None where systemd does not run."""
    result = facts.result("systemctl", "show", name)
    if _NOT_BOOTED in result.stderr:
        return None
    if result.ended().rc != 0:
        raise Unread("failed", result.line, f"rc {result.rc}: {result.complaint}")
    return parse_unit(result.text(), result.line)


def _property(told: Mapping[str, str], name: str, source: str) -> str:
    if name not in told:
        raise Garbled(source, f"no {name}")
    return told[name]

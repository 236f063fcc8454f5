"""Mooncake and engine processes: `/proc/<pid>/{environ,limits,status,cmdline}`.

`environ` is NUL-separated and holds allow-listed variables only. An empty value is
kept: `MC_GID_INDEX=` is not the same as no `MC_GID_INDEX`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process whose facts were collected; `env` is None where it is unreadable."""

    pid: int
    env: Mapping[str, str] | None
    argv: tuple[str, ...]

    @property
    def label(self) -> str:
        """Its program and pid."""
        name = self.argv[0].rsplit("/", 1)[-1] if self.argv else "process"
        return f"{name} ({self.pid})"

    def option(self, flag: str) -> str | None:
        """The value of a long flag on its command line, `--f v` or `--f=v`."""
        for at, word in enumerate(self.argv):
            if word.startswith(f"{flag}="):
                return word.partition("=")[2]
            if word == flag and at + 1 < len(self.argv):
                return self.argv[at + 1]
        return None


def parse_environ(text: str) -> dict[str, str]:
    """Variables of an `environ` file."""
    pairs = (item.partition("=") for item in text.split("\0") if "=" in item)
    return {name.strip(): value.rstrip("\n") for name, _, value in pairs}


@derived
def services(facts: Facts) -> tuple[Service, ...]:
    """Every collected process, by pid; empty where none was found."""
    pids = {
        path.split("/")[2]
        for name in ("environ", "limits", "status", "cmdline")
        for path in facts.matching(f"/proc/*/{name}")
    }
    return tuple(
        Service(pid=int(pid), env=_env(facts, pid), argv=_argv(facts, pid))
        for pid in sorted((pid for pid in pids if pid.isdigit()), key=int)
    )


@derived
def environment(facts: Facts) -> dict[str, str]:
    """The variables of all services together; the lowest pid wins."""
    merged: dict[str, str] = {}
    for service in services(facts):
        for name, value in (service.env or {}).items():
            merged.setdefault(name, value)
    return merged


def _env(facts: Facts, pid: str) -> dict[str, str] | None:
    try:
        return parse_environ(facts.text(f"/proc/{pid}/environ"))
    except Unread:
        return None


def _argv(facts: Facts, pid: str) -> tuple[str, ...]:
    try:
        text = facts.text(f"/proc/{pid}/cmdline")
    except Unread:
        return ()
    parts = text.split("\0") if "\0" in text else text.split()
    return tuple(part for part in parts if part)

"""/proc/modules: which kernel modules are loaded, and who uses them.

`ib_core 458752 8 rdma_ucm,rpcrdma,mlx5_ib, Live 0x0000000000000000`: name, size, number
of users, users with a comma after each, state, address. What is built into the kernel
is not listed. A module that uses another one is loaded, whether its own line is there
or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = "/proc/modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One loaded module; `state` is "" where its line does not say."""

    name: str
    users: frozenset[str]
    state: str

    @property
    def live(self) -> bool:
        return self.state in {"Live", ""}


@lru_cache(maxsize=256)
def parse_modules(text: str) -> Mapping[str, Module]:
    """Modules by name."""
    if text and not text.endswith("\n") and len(text.splitlines()[-1].split()) < 5:
        raise Garbled(PATH, "cut off in the middle of a line")
    found = {}
    for line in text.splitlines():
        fields = line.split()
        if not fields:
            continue
        users = fields[3] if len(fields) > 3 else ""
        state = fields[4] if len(fields) > 4 else ""
        found[fields[0]] = Module(
            name=fields[0],
            users=frozenset(users.strip(",").split(",")) - {"", "-"},
            state=state,
        )
    if not found:
        raise Garbled(PATH, "no module in it")
    return found


@derived
def modules(facts: Facts) -> Mapping[str, Module]:
    """Loaded modules by name; Unread where they cannot be told."""
    return parse_modules(facts.text(PATH))


@derived
def loaded(facts: Facts) -> frozenset[str]:
    """Names of loaded modules: those listed, and those that use a listed one."""
    every = modules(facts)
    return frozenset(every).union(*(module.users for module in every.values()))

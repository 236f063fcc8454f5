"""Which hosts a `--limit` chooses: groups, names and globs, as Ansible reads them."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from inventory.errors import InventoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def select(
    patterns: str,
    hosts: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    *,
    file: str = "",
) -> frozenset[str]:
    """Names of the chosen hosts: the union, cut by every `&`, less every `!`.

    Raises:
        InventoryError: a pattern means nothing, or no host is left. Choosing nothing
            is never what was meant, and judging nothing must not look like success.
    """
    parts = [part.strip() for part in patterns.split(",") if part.strip()]
    known = {**groups, "all": tuple(hosts), "*": tuple(hosts)}
    wanted = [part for part in parts if part[0] not in "!&"]
    chosen = _union(wanted or ["all"], hosts, known, file)
    for part in parts:
        if part[0] == "&":
            chosen &= _union([part[1:]], hosts, known, file)
    for part in parts:
        if part[0] == "!":
            chosen -= _union([part[1:]], hosts, known, file)
    if not parts or not chosen:
        raise _error("chooses no host", patterns, groups, file)
    return frozenset(chosen)


def _union(
    patterns: Iterable[str],
    hosts: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    file: str,
) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        some = set(groups.get(pattern, ()))
        some |= set(fnmatch.filter(hosts, pattern))
        for group in fnmatch.filter(groups, pattern):
            some |= set(groups[group])
        if not some and pattern not in groups:
            raise _error("is neither a group nor a host", pattern, groups, file)
        found |= some
    return found


def _error(
    problem: str, value: str, groups: Mapping[str, Sequence[str]], file: str
) -> InventoryError:
    names = ", ".join(sorted(name for name in groups if name != "*")[:12])
    return InventoryError(
        problem,
        fix=f"its groups are {names}" if names else "it has no groups; name hosts",
        file=file,
        field="--limit",
        value=value,
    )

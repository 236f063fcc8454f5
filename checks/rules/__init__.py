"""The rules, one group a file. A new file is found by itself: nothing is registered."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from checks.errors import OwnFault
from checks.rules.declare import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every declared rule, in the order of its id."""
    found: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for value in vars(import_module(module.name)).values():
            if not isinstance(value, Rule):
                continue
            if found.setdefault(value.id, value) is not value:
                raise OwnFault(f"two rules are called {value.id}")
    return tuple(found[name] for name in sorted(found))


def rule(name: str) -> Rule | None:
    """The rule of that id, if there is one."""
    return next((each for each in all_rules() if each.id == name), None)

"""The operator's `--target` and `--inventory`, checked as the pytest options are."""

from __future__ import annotations

from chaos.errors import UsageError
from chaos.options import TARGETS
from chaos.targets.place import FAULT_TTL_S, Place


def place_of(
    kind: str, inventory: str = "", *, fault_ttl_s: float = FAULT_TTL_S
) -> Place:
    """Where scenarios are played.

    Raises:
        UsageError: There is no such target, or its hosts are not named.
    """
    if kind not in TARGETS:
        problem = f"no target is called {kind!r}"
        raise UsageError(problem, f"there are {', '.join(TARGETS)}")
    if kind == "ssh" and not inventory:
        fix = "name its hosts: --inventory inventory/staging.example.yaml"
        raise UsageError("--target ssh has no inventory", fix)
    if kind != "ssh" and inventory:
        problem = f"--target {kind} has no use for --inventory {inventory}"
        raise UsageError(problem, "say --target ssh, or leave it out")
    return Place(kind=kind, inventory=inventory, fault_ttl_s=fault_ttl_s)

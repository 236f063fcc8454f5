"""`/etc/cni/net.d`: which network configuration the container runtime takes.

The runtime takes the first file of its directory by name that ends in `.conf`,
`.conflist` or `.json`; everything else there is ignored. Cilium with `cni.exclusive`
renames what is not its own to `*.cilium_bak` (multus-cni#1132, rke2#7464).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from checks.facts import Facts, Unread, derived

PLACES = (
    "/etc/cni/net.d",
    "/var/lib/rancher/rke2/agent/etc/cni/net.d",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d",
)
SUFFIXES = (".conf", ".conflist", ".json")
_BACKUPS = (".cilium_bak", ".bak", ".disabled", ".orig")


@dataclass(frozen=True, slots=True, kw_only=True)
class CniDirectory:
    """One directory: the files the runtime sees, and those renamed out of its sight."""

    path: str
    taken: tuple[str, ...]
    renamed: tuple[str, ...]
    multus: frozenset[str]
    """Names, of either kind, that are Multus by name or by content."""

    @property
    def first(self) -> str:
        return self.taken[0] if self.taken else ""


@derived
def cni_directory(facts: Facts) -> CniDirectory | None:
    """The directory in use; None where the node has none; Unread if nobody looked."""
    refused: Unread | None = None
    seen = False
    for path in PLACES:
        try:
            if not facts.exists(path):
                seen = True
                continue
            names = facts.names(path)
        except Unread as error:
            refused = refused if refused and error.kind == "missing" else error
            continue
        return _directory(facts, path, names)
    if refused is not None and not seen:
        raise refused
    return None


def _directory(facts: Facts, path: str, names: tuple[str, ...]) -> CniDirectory:
    return CniDirectory(
        path=path,
        taken=tuple(sorted(n for n in names if n.endswith(SUFFIXES))),
        renamed=tuple(sorted(n for n in names if n.endswith(_BACKUPS))),
        multus=frozenset(n for n in names if _is_multus(facts, f"{path}/{n}", n)),
    )


def _is_multus(facts: Facts, path: str, name: str) -> bool:
    if "multus" in name.lower():
        return not name.endswith(".kubeconfig") and name != "multus.d"
    try:
        loaded = json.loads(facts.text(path))
    except (Unread, ValueError):
        return False
    return "multus" in " ".join(_types(loaded))


def _types(loaded: Any) -> list[str]:
    if not isinstance(loaded, dict):
        return []
    plugins = loaded.get("plugins")
    every = [loaded, *(plugins if isinstance(plugins, list) else [])]
    return [str(each.get("type", "")) for each in every if isinstance(each, dict)]

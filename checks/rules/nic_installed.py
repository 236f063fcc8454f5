"""The driver of a NIC on disk beside the one that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.kernel_release import kernel_release
from checks.parse.modinfo import modinfo
from checks.parse.modules import loaded as loaded_modules
from checks.rules.declare import NotHere, check

if TYPE_CHECKING:
    from checks.node import Node

_MODULE = "mlx5_core"
_LOADED = f"/sys/module/{_MODULE}/srcversion"


@check(
    "nic-driver-kernel-mismatch",
    group="nic",
    severity="W",
    why="another driver than the one that runs comes up with the next boot or reload",
    fix=("drain, then /etc/init.d/openibd restart or a reboot; or install it again",),
    source=("modinfo(8): srcversion, vermagic",),
    needs=(f"modinfo {_MODULE}", _LOADED, "/proc/modules", "uname -r"),
)
def installed_driver(node: Node, _: None) -> Outcome:
    facts = node.facts
    loaded = _srcversion(node)
    found = modinfo(facts, _MODULE)
    if found.builtin:
        raise NotHere(f"{_MODULE} is part of the kernel")
    running = kernel_release(facts)
    if found.release != running:
        told = f"{_MODULE} is installed for {found.release}, {running} runs"
        return bad(told, f"a module for {running}")
    if not (loaded and found.srcversion):
        raise Unread("absent", _LOADED, "the module tells no hash of its source")
    if loaded != found.srcversion:
        return bad(f"{loaded} is loaded, {found.srcversion} installed", "the same")
    return ok(f"{loaded} is loaded and installed", "the same")


def _srcversion(node: Node) -> str:
    """The hash of the loaded module; "" where it was built without."""
    try:
        return node.facts.line(_LOADED)
    except Unread as error:
        if _MODULE not in loaded_modules(node.facts):
            raise NotHere(f"{_MODULE} is not loaded") from None
        if error.kind not in {"absent", "missing"}:
            raise
    return ""

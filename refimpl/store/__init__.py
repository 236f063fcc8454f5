"""A store: memory that a process contributes to the pool, served on its rails."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refimpl.store.settings import StoreSettings

__all__ = ["run"]


def run(settings: StoreSettings) -> int:
    """Runs a store until it is told to end: ports first, then the heavy imports."""
    from refimpl.store.listeners import open_listeners

    listeners = open_listeners(settings.rails)
    from refimpl.store.process import run as run_process

    return run_process(settings, listeners)

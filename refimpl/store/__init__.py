"""A store: memory that a process contributes to the pool, served on its rails."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refimpl.store.settings import StoreSettings

__all__ = ["run"]


def run(settings: StoreSettings) -> int:
    """Runs a store until it is told to end; imports late, so that help is quick."""
    from refimpl.store.process import run as run_process

    return run_process(settings)

"""A store: memory that a process contributes to the pool, served on its rails."""

from refimpl.store.process import run

__all__ = ["run"]

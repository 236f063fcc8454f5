"""Backends of the third tier."""

from refimpl.hicache.storage.base import Storage, StorageResult

__all__ = ["Storage", "StorageResult"]

"""Backends of the third tier."""

from refimpl.hicache.storage.base import Cancel, Storage, StorageResult

__all__ = ["Cancel", "Storage", "StorageResult"]

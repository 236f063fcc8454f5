"""Stands in for `mooncake.store`: the reference system behind Mooncake's names."""

from refimpl.compat.config import (
    ObjectDataType,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
)
from refimpl.compat.memory import BufferHandle
from refimpl.compat.mooncake import MooncakeDistributedStore
from refimpl.compat.replicas import Descriptor, MemoryDescriptor, ReplicaDescriptor

__all__ = [
    "BufferHandle",
    "Descriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "ObjectDataType",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
]

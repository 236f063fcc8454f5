"""The reference system behind the interfaces of others: Mooncake's and SGLang's."""

from refimpl.compat.config import ObjectDataType, ReplicateConfig, SoftPinAction
from refimpl.compat.mooncake import MooncakeDistributedStore

__all__ = [
    "MooncakeDistributedStore",
    "ObjectDataType",
    "ReplicateConfig",
    "SoftPinAction",
]

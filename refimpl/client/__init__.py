"""The pool client: batched get and put with one total deadline."""

from refimpl.client.client import PoolClient
from refimpl.client.reservation import Reservation
from refimpl.client.results import GetResult, Lookup, MasterFacts, PutResult
from refimpl.client.settings import ClientSettings
from refimpl.transfer.cancel import Cancel

__all__ = [
    "Cancel",
    "ClientSettings",
    "GetResult",
    "Lookup",
    "MasterFacts",
    "PoolClient",
    "PutResult",
    "Reservation",
]

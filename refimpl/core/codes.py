"""Error codes of the pool: upstream Mooncake's numbers and names, and their classes.

Codes are ints, 0 or negative, one per key in batch calls (Mooncake `types.h`).
"""

from __future__ import annotations

from enum import Enum, IntEnum, unique


@unique
class Code(IntEnum):
    """What happened to one key or one call. Names and numbers are upstream's."""

    OK = 0
    INTERNAL_ERROR = -1
    BUFFER_OVERFLOW = -10
    SHARD_INDEX_OUT_OF_RANGE = -100
    SEGMENT_NOT_FOUND = -101
    SEGMENT_ALREADY_EXISTS = -102
    CLIENT_NOT_FOUND = -103
    NO_AVAILABLE_HANDLE = -200
    INVALID_VERSION = -300
    INVALID_KEY = -400
    WRITE_FAIL = -500
    INVALID_PARAMS = -600
    ILLEGAL_CLIENT = -601
    INVALID_WRITE = -700
    INVALID_READ = -701
    INVALID_REPLICA = -702
    REPLICA_IS_NOT_READY = -703
    OBJECT_NOT_FOUND = -704
    OBJECT_ALREADY_EXISTS = -705
    OBJECT_HAS_LEASE = -706
    LEASE_EXPIRED = -707
    REPLICA_NOT_FOUND = -710
    REPLICA_IS_GONE = -712
    TRANSFER_FAIL = -800
    CHECKSUM_MISMATCH = -801
    NOT_AUTHENTICATED = -802
    """Ours alone: a peer of the data plane did not prove that it knows the secret."""
    RPC_FAIL = -900
    RPC_TIMEOUT = -901
    UNAVAILABLE_IN_CURRENT_STATUS = -1010
    TENANT_QUOTA_EXCEEDED = -1700


@unique
class Outcome(Enum):
    """How a breaker reads a code (system facts 1.2; upstream has no such classes)."""

    SUCCESS = "success"
    MISS = "miss"
    """A timely "not there": a healthy answer, counted as success."""
    ADMISSION = "admission"
    """Healthy but full: neutral."""
    CALLER = "caller"
    """The caller's own mistake: neutral."""
    FAULT = "fault"
    """Counts against the endpoint or the cluster."""


_MISS = {
    Code.OBJECT_NOT_FOUND,
    Code.REPLICA_IS_NOT_READY,
    Code.LEASE_EXPIRED,
    Code.REPLICA_IS_GONE,
}
_ADMISSION = {Code.NO_AVAILABLE_HANDLE, Code.TENANT_QUOTA_EXCEEDED}
_CALLER = {
    Code.INVALID_PARAMS,
    Code.INVALID_KEY,
    Code.ILLEGAL_CLIENT,
    Code.OBJECT_ALREADY_EXISTS,
    Code.INVALID_WRITE,
}


def outcome_of(code: int) -> Outcome:
    """Classifies a code; a number that we do not know is a fault."""
    if code >= 0:
        return Outcome.SUCCESS
    if code in _MISS:
        return Outcome.MISS
    if code in _ADMISSION:
        return Outcome.ADMISSION
    if code in _CALLER:
        return Outcome.CALLER
    return Outcome.FAULT

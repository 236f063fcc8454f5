from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(_message.Message):
    __slots__ = ("code", "detail")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    code: int
    detail: str
    def __init__(self, code: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class Rail(_message.Message):
    __slots__ = ("name", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("id", "name", "host_id", "size", "rails", "numa_node", "allocated", "status")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RAILS_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    host_id: str
    size: int
    rails: _containers.RepeatedCompositeFieldContainer[Rail]
    numa_node: int
    allocated: int
    status: str
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., host_id: _Optional[str] = ..., size: _Optional[int] = ..., rails: _Optional[_Iterable[_Union[Rail, _Mapping]]] = ..., numa_node: _Optional[int] = ..., allocated: _Optional[int] = ..., status: _Optional[str] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("keys", "no_lease")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NO_LEASE_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    no_lease: bool
    def __init__(self, keys: _Optional[bytes] = ..., no_lease: _Optional[bool] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("status", "segment", "offset", "size", "checksum", "parts", "replicas", "lease_ms", "segments")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    status: bytes
    segment: bytes
    offset: bytes
    size: bytes
    checksum: bytes
    parts: bytes
    replicas: int
    lease_ms: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, status: _Optional[bytes] = ..., segment: _Optional[bytes] = ..., offset: _Optional[bytes] = ..., size: _Optional[bytes] = ..., checksum: _Optional[bytes] = ..., parts: _Optional[bytes] = ..., replicas: _Optional[int] = ..., lease_ms: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class PutStartRequest(_message.Message):
    __slots__ = ("keys", "sizes", "client", "host_id", "replicas", "parts", "exclude", "pin", "names", "prefer")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PREFER_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    sizes: bytes
    client: int
    host_id: str
    replicas: int
    parts: int
    exclude: _containers.RepeatedScalarFieldContainer[int]
    pin: str
    names: _containers.RepeatedScalarFieldContainer[str]
    prefer: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, keys: _Optional[bytes] = ..., sizes: _Optional[bytes] = ..., client: _Optional[int] = ..., host_id: _Optional[str] = ..., replicas: _Optional[int] = ..., parts: _Optional[int] = ..., exclude: _Optional[_Iterable[int]] = ..., pin: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., prefer: _Optional[_Iterable[int]] = ...) -> None: ...

class PutStartResponse(_message.Message):
    __slots__ = ("status", "token", "segment", "offset", "replicas", "segments")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    status: bytes
    token: bytes
    segment: bytes
    offset: bytes
    replicas: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, status: _Optional[bytes] = ..., token: _Optional[bytes] = ..., segment: _Optional[bytes] = ..., offset: _Optional[bytes] = ..., replicas: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class PutEndRequest(_message.Message):
    __slots__ = ("keys", "token", "checksum", "part", "client")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    token: bytes
    checksum: bytes
    part: int
    client: int
    def __init__(self, keys: _Optional[bytes] = ..., token: _Optional[bytes] = ..., checksum: _Optional[bytes] = ..., part: _Optional[int] = ..., client: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("status", "removed")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    status: bytes
    removed: int
    def __init__(self, status: _Optional[bytes] = ..., removed: _Optional[int] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("keys", "force", "all")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    force: bool
    all: bool
    def __init__(self, keys: _Optional[bytes] = ..., force: _Optional[bool] = ..., all: _Optional[bool] = ...) -> None: ...

class MountRequest(_message.Message):
    __slots__ = ("segment", "client", "beat_key")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    BEAT_KEY_FIELD_NUMBER: _ClassVar[int]
    segment: Segment
    client: int
    beat_key: bytes
    def __init__(self, segment: _Optional[_Union[Segment, _Mapping]] = ..., client: _Optional[int] = ..., beat_key: _Optional[bytes] = ...) -> None: ...

class UnmountRequest(_message.Message):
    __slots__ = ("id", "client", "grace_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    id: int
    client: int
    grace_s: float
    def __init__(self, id: _Optional[int] = ..., client: _Optional[int] = ..., grace_s: _Optional[float] = ...) -> None: ...

class ListNamesRequest(_message.Message):
    __slots__ = ("cursor",)
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    def __init__(self, cursor: _Optional[int] = ...) -> None: ...

class ListNamesResponse(_message.Message):
    __slots__ = ("names", "cursor")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    cursor: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., cursor: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("heartbeat", "time_scale", "lease_ms", "view")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TIME_SCALE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    heartbeat: str
    time_scale: float
    lease_ms: int
    view: int
    def __init__(self, heartbeat: _Optional[str] = ..., time_scale: _Optional[float] = ..., lease_ms: _Optional[int] = ..., view: _Optional[int] = ...) -> None: ...

class ListSegmentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSegmentsResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("request_id", "session", "input_length", "hash_ids", "policy")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INPUT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HASH_IDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    session: str
    input_length: int
    hash_ids: bytes
    policy: str
    def __init__(self, request_id: _Optional[str] = ..., session: _Optional[str] = ..., input_length: _Optional[int] = ..., hash_ids: _Optional[bytes] = ..., policy: _Optional[str] = ...) -> None: ...

class PrefillResponse(_message.Message):
    __slots__ = ("request_id", "ok", "error", "queue_s", "cache_wait_s", "deadline_s", "prefill_modelled_s", "ttft_modelled_s", "input_tokens", "l1_tokens", "l2_tokens", "l3_tokens", "recomputed_tokens", "output_hash", "prefetch_outcome", "stores", "touched_fault")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    CACHE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MODELLED_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_MODELLED_S_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    L1_TOKENS_FIELD_NUMBER: _ClassVar[int]
    L2_TOKENS_FIELD_NUMBER: _ClassVar[int]
    L3_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_HASH_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FAULT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    ok: bool
    error: str
    queue_s: float
    cache_wait_s: float
    deadline_s: float
    prefill_modelled_s: float
    ttft_modelled_s: float
    input_tokens: int
    l1_tokens: int
    l2_tokens: int
    l3_tokens: int
    recomputed_tokens: int
    output_hash: str
    prefetch_outcome: str
    stores: _containers.RepeatedScalarFieldContainer[str]
    touched_fault: bool
    def __init__(self, request_id: _Optional[str] = ..., ok: _Optional[bool] = ..., error: _Optional[str] = ..., queue_s: _Optional[float] = ..., cache_wait_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., prefill_modelled_s: _Optional[float] = ..., ttft_modelled_s: _Optional[float] = ..., input_tokens: _Optional[int] = ..., l1_tokens: _Optional[int] = ..., l2_tokens: _Optional[int] = ..., l3_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., output_hash: _Optional[str] = ..., prefetch_outcome: _Optional[str] = ..., stores: _Optional[_Iterable[str]] = ..., touched_fault: _Optional[bool] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class Json(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

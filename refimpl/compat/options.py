"""Arguments of `setup`, in both of upstream's forms, as one value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SEGMENT_BYTES_MIN: Final = 1024
"""Smallest segment or buffer that is not 0."""
DEFAULT_TENANT: Final = "default"
_DEFAULT_BYTES: Final = 16 << 20
_DEFAULT_MASTER: Final = "127.0.0.1:50051"
_SIZE: Final = re.compile(r"\s*(\d+)\s*([kmgt]?)(i?b)?\s*", re.IGNORECASE | re.ASCII)
_SHIFT: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_KNOWN: Final = ("tcp", "rdma")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a client was set up with; what only upstream's own transports use is gone.

    Raises:
        ValueError: a value that upstream refuses as well.
    """

    local_hostname: str
    global_segment_size: int = _DEFAULT_BYTES
    local_buffer_size: int = _DEFAULT_BYTES
    protocol: str = "tcp"
    master_server_addr: str = _DEFAULT_MASTER
    tenant_id: str = DEFAULT_TENANT
    enable_client_http_server: bool = False
    client_http_port: int = 9300
    timeout_s: float | None = None
    """Of each call; None takes the environment's."""

    def __post_init__(self) -> None:
        if not self.local_hostname:
            raise ValueError("local_hostname is empty")
        for name in ("global_segment_size", "local_buffer_size"):
            size = getattr(self, name)
            if size and size < SEGMENT_BYTES_MIN:
                raise ValueError(f"{name} is {size}; it is 0 or {SEGMENT_BYTES_MIN}")
        if not self.tenant_id.isprintable():
            raise ValueError(f"tenant_id is {self.tenant_id!r}")
        if self.protocol not in _KNOWN:
            raise ValueError(f"protocol {self.protocol!r} is none of {_KNOWN}")
        if "://" in self.master_server_addr:
            raise ValueError("master_server_addr names a backend; give HOST:PORT")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Options:
        """Reads the dictionary form, whose values may all be texts.

        Raises:
            ValueError: a required key is missing, or a value makes no sense.
        """
        if not config.get("metadata_server"):
            raise ValueError("metadata_server is missing")
        return cls(
            local_hostname=str(config.get("local_hostname", "")),
            global_segment_size=_bytes(config, "global_segment_size"),
            local_buffer_size=_bytes(config, "local_buffer_size"),
            protocol=str(config.get("protocol", "tcp")),
            master_server_addr=str(config.get("master_server_addr", _DEFAULT_MASTER)),
            tenant_id=str(config.get("tenant_id", DEFAULT_TENANT)) or DEFAULT_TENANT,
            enable_client_http_server=_is_on(config.get("enable_client_http_server")),
            client_http_port=int(config.get("client_http_port", 9300)),
            timeout_s=config.get("timeout_s"),
        )


def byte_size(text: str) -> int:
    """Bytes of "16MB", "3 GB" or "4096"; units are powers of 1024, as upstream's.

    Raises:
        ValueError: it is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size; write 64MB")
    return int(match[1]) << _SHIFT[match[2].lower()]


def _bytes(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name, _DEFAULT_BYTES)
    return value if isinstance(value, int) else byte_size(str(value))


def _is_on(value: object) -> bool:
    return str(value).strip().lower() in ("1", "true", "yes", "on")

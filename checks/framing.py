"""What came back from a collector: a whole document, or what exactly is wrong with it.

The collector ends its output with `###END <sha256>###` over the line before, so that
output that was cut off, mixed with something else or made by something else is told
apart. Lines before the document (greetings of a login shell) are passed over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import zlib
from typing import Any

MAX_DOCUMENT = 256 << 20
"""Bytes of one document after decompression; more is refused."""
_END = re.compile(r"^###END ([0-9a-f]{64})###$")
_GZIP = "###GZIP "


class NoDocument(Exception):
    """No whole facts document came; `kind` is `empty`, `truncated` or `garbage`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


def decode(raw: bytes) -> dict[str, Any]:
    """The document in a collector's output.

    Raises:
        NoDocument: it is not there, or not whole.
    """
    lines = raw.decode("utf-8", "replace").split("\n")
    ends = [at for at, line in enumerate(lines) if _END.match(line.strip())]
    if not ends:
        raise _without_end(raw, lines)
    at = ends[-1]
    line = lines[at - 1] if at else ""
    wanted = lines[at].strip()[7:71]
    if hashlib.sha256(line.encode()).hexdigest() != wanted:
        raise NoDocument("garbage", "the document does not match its checksum")
    return _loaded(line)


def _without_end(raw: bytes, lines: list[str]) -> NoDocument:
    if not raw.strip():
        return NoDocument("empty", "nothing was printed")
    ours = any(line.startswith(('{"', _GZIP)) for line in lines)
    if ours:
        return NoDocument("truncated", f"cut off after {len(raw)} bytes")
    first = raw.decode("utf-8", "replace").strip().splitlines()[0][:120]
    return NoDocument("garbage", f"not a facts document: {first!r}")


def _loaded(line: str) -> dict[str, Any]:
    try:
        text = _unpacked(line) if line.startswith(_GZIP) else line
        document = json.loads(text)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise NoDocument("garbage", f"not a facts document: {error}") from None
    if not isinstance(document, dict):
        raise NoDocument("garbage", "not a facts document: no object")
    return document


def _unpacked(line: str) -> str:
    packed = base64.b64decode(line.removeprefix(_GZIP), validate=True)
    unpacker = zlib.decompressobj(wbits=31)
    raw = unpacker.decompress(packed, MAX_DOCUMENT)
    if unpacker.unconsumed_tail:
        raise NoDocument("garbage", f"larger than {MAX_DOCUMENT >> 20} MiB")
    return raw.decode("utf-8")

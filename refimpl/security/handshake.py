"""The handshake of the data plane: both ends prove that they know the cluster's secret.

It comes before the first request of a connection and costs one round trip; frames carry
nothing of it. All numbers are little-endian.

| | message | fields |
|---|---|---|
| caller | `<4sBBHQ16s` | `MQH1`, 0, 0, 0, segment wanted, caller's nonce |
| store | `<4sBBhQ16s32s` | `MQG1`, 0, 0, code, segment served, store's nonce, proof |
| caller | `32s` | proof; the first request follows at once |

A proof is HMAC-SHA256 over the name of the side that gives it and everything that was
said: both nonces, both segments, the code. The store proves itself first, so nothing is
written to a process that took a dead store's address; a "no such segment" is proved as
well. A recorded proof is worth nothing on another connection, whose nonces are others,
and neither side's proof can be sent back as the other's.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from refimpl.core.codes import Code

if TYPE_CHECKING:
    from refimpl.security.secret import Secret

HELLO: Final = struct.Struct("<4sBBHQ16s")
GREETING: Final = struct.Struct("<4sBBhQ16s32s")
PROOF_BYTES: Final = 32
HELLO_MAGIC: Final = b"MQH1"
_GREETING_MAGIC: Final = b"MQG1"
_NO_PROOF: Final = bytes(PROOF_BYTES)


class HandshakeRefused(Exception):
    """The connection is of no use for what is wanted; `code` says why."""

    def __init__(self, code: Code, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What both sides have said when a proof is due."""

    wanted: int
    served: int
    code: int
    caller_nonce: bytes
    store_nonce: bytes

    def proof(self, secret: Secret, side: bytes) -> bytes:
        text = struct.pack(
            "<8sQQh16s16s",
            side,
            self.wanted,
            self.served,
            self.code,
            self.caller_nonce,
            self.store_nonce,
        )
        return hmac.digest(secret.reveal(), text, "sha256")


class CallerHandshake:
    """The caller's half: `hello`, then `answer` to the store's greeting."""

    __slots__ = ("_nonce", "_secret", "_segment")

    def __init__(self, secret: Secret, segment: int) -> None:
        self._secret = secret
        self._segment = segment
        self._nonce = secrets.token_bytes(16)

    @property
    def hello(self) -> bytes:
        """The first message."""
        return HELLO.pack(HELLO_MAGIC, 0, 0, 0, self._segment, self._nonce)

    def answer(self, greeting: bytes | bytearray | memoryview) -> bytes:
        """The proof to send, once the store's is found good.

        Raises:
            HandshakeRefused: NOT_AUTHENTICATED when the store proved nothing, else the
                code that it proved, SEGMENT_NOT_FOUND for one.
        """
        magic, _, _, code, served, nonce, proof = GREETING.unpack(greeting)
        said = _Said(
            wanted=self._segment,
            served=served,
            code=code,
            caller_nonce=self._nonce,
            store_nonce=nonce,
        )
        is_good = hmac.compare_digest(proof, said.proof(self._secret, b"store"))
        if magic != _GREETING_MAGIC or not is_good:
            what = "the store did not prove that it knows the data secret"
            raise HandshakeRefused(Code.NOT_AUTHENTICATED, what)
        if code != Code.OK or served != self._segment:
            raise HandshakeRefused(Code.SEGMENT_NOT_FOUND, "another segment is served")
        return said.proof(self._secret, b"caller")


class StoreHandshake:
    """The store's half: `greeting` to a hello, then `admits` of the caller's proof."""

    __slots__ = ("_said", "_secret", "code")

    def __init__(self, secret: Secret, hello: bytes | memoryview, served: int) -> None:
        """Reads a hello that starts with HELLO_MAGIC."""
        *_, wanted, nonce = HELLO.unpack(hello)
        self._secret = secret
        self.code = Code.OK if wanted == served else Code.SEGMENT_NOT_FOUND
        self._said = _Said(
            wanted=wanted,
            served=served,
            code=self.code,
            caller_nonce=nonce,
            store_nonce=secrets.token_bytes(16),
        )

    @property
    def greeting(self) -> bytes:
        """The answer to the hello, with our proof."""
        said = self._said
        proof = said.proof(self._secret, b"store")
        return GREETING.pack(
            _GREETING_MAGIC, 0, 0, said.code, said.served, said.store_nonce, proof
        )

    def admits(self, proof: bytes | bytearray | memoryview) -> bool:
        """Whether the caller's proof is good."""
        return hmac.compare_digest(
            bytes(proof), self._said.proof(self._secret, b"caller")
        )


def greeting_without_secret(served: int) -> bytes:
    """What a store says that has no secret: it cannot prove anything."""
    code = Code.NOT_AUTHENTICATED
    nonce = bytes(16)
    return GREETING.pack(_GREETING_MAGIC, 0, 0, code, served, nonce, _NO_PROOF)

"""The bearer token of admin doors, and when one is needed.

Whoever reaches an admin door can switch faults on. On a loopback address that is every
user of the host, which is free; on any other address the door needs a token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from typing import TYPE_CHECKING, Final

from refimpl.errors import UsageError
from refimpl.security.secret import LEAST_BYTES, read_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from refimpl.security.secret import Secret

TOKEN_VARIABLE: Final = "REFIMPL_TOKEN"  # noqa: S105 -- the name of a variable
TOKEN_FILE_VARIABLE: Final = "REFIMPL_TOKEN_FILE"  # noqa: S105 -- likewise


def is_loopback(host: str) -> bool:
    """127.0.0.0/8, ::1 and `localhost`; a name that might resolve anywhere is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Token:
    """A token and the one question about it."""

    __slots__ = ("_digest", "_secret")

    def __init__(self, secret: Secret) -> None:
        value = secret.reveal()
        if not all(0x21 <= byte <= 0x7E for byte in value):
            raise UsageError(
                "the admin token holds spaces or other characters that no HTTP header "
                "carries; use letters and digits, e.g. of `openssl rand -hex 32`"
            )
        self._secret = secret
        self._digest = _digest(b"Bearer " + value)

    def __repr__(self) -> str:
        return "<token>"

    @property
    def header(self) -> str:
        """What a caller sends as `Authorization`."""
        return f"Bearer {self._secret.reveal().decode('ascii')}"

    def admits(self, header: str | bytes | None) -> bool:
        """True for the right header, in a time that tells nothing of the token."""
        given = header or b""
        if isinstance(given, str):
            given = given.encode("utf-8", "surrogateescape")
        return hmac.compare_digest(_digest(given), self._digest)


def read_token(
    file: str = "", *, environ: Mapping[str, str] | None = None
) -> Token | None:
    """The token of `--token-file`, else of REFIMPL_TOKEN, else None.

    Raises:
        UsageError: the file cannot be used, or the token is too short.
    """
    found = read_secret(
        file=file,
        flag="--token-file",
        environ=os.environ if environ is None else environ,
        variable=TOKEN_VARIABLE,
    )
    return None if found is None else Token(found)


def token_of_environment(environ: Mapping[str, str]) -> Token | None:
    """The token that a caller on this host has, found like a role finds it."""
    return read_token(environ.get(TOKEN_FILE_VARIABLE, ""), environ=environ)


def require_token(host: str, token: Token | None, what: str) -> None:
    """Lets a door be on a loopback address, or behind a token.

    Raises:
        UsageError: neither.
    """
    if token is None and not is_loopback(host):
        raise UsageError(
            f"{what} on {host!r} is not on loopback and needs a token: set "
            f"{TOKEN_VARIABLE} or --token-file ({LEAST_BYTES} characters or more), "
            "or listen on 127.0.0.1"
        )


def _digest(value: bytes) -> bytes:
    """Of one length, so that comparing tells nothing of how long the token is."""
    return hashlib.sha256(value).digest()

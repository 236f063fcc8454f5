"""Mutual TLS of the control plane: three PEM files, looked at before anything starts.

gRPC says of a bad certificate only that the handshake failed, on the other host, at the
first call. So the files are tried here first: a handshake in memory of the role's own
certificate against its own CA finds what is expired, not yet valid, of another CA or
made for another purpose, and the message names the file.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc

from refimpl.errors import UsageError
from refimpl.security.secret import read_guarded_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    Side: TypeAlias = Literal["server", "client"]

_MOST_BYTES: Final = 1 << 20
_TURNS: Final = 16
"""Of the handshake in memory; it needs three."""
_FLAGS: Final = ("--tls-cert", "--tls-key", "--tls-ca")
_PURPOSE: Final = {"server": "serverAuth", "client": "clientAuth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What one role shows and whom it believes; all PEM."""

    cert: bytes
    key: bytes = field(repr=False)
    ca: bytes
    server_name: str = ""
    """Name in the master's certificate; "" takes the host of the address dialled."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of a server that talks to nobody without a certificate of this CA."""
        return grpc.ssl_server_credentials(
            [(self.key, self.cert)],
            root_certificates=self.ca,
            require_client_auth=True,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Of a client of such a server."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


def open_channel(
    address: str, options: Iterable[tuple[str, Any]], tls: Tls | None
) -> grpc.Channel:
    """A channel to the master: plain, or with mutual TLS."""
    options = list(options)
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.secure_channel(address, tls.channel_credentials(), options=options)


def load_tls(
    *, cert: str, key: str, ca: str, server_name: str = "", side: Side
) -> Tls | None:
    """Reads and tries the three files; None when none is named.

    Args:
        cert: the role's certificate, with intermediates.
        key: its private key, not encrypted, closed to other users.
        ca: certificates of the CAs that the other side may have been signed by.
        server_name: name to expect in the master's certificate.
        side: what this role is in the connection.

    Raises:
        UsageError: one line with the file, what is wrong, and the remedy.
    """
    paths = dict(zip(_FLAGS, (cert, key, ca), strict=True))
    if not any(paths.values()):
        return None
    missing = [flag for flag, path in paths.items() if not path]
    if missing:
        raise UsageError(
            f"mutual TLS needs all of {', '.join(_FLAGS)}; "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        )
    tls = Tls(
        cert=_read(cert, _FLAGS[0], "CERTIFICATE"),
        key=_read_key(key),
        ca=_read(ca, _FLAGS[2], "CERTIFICATE"),
        server_name=server_name,
    )
    _try_ca(ca, tls.ca)
    _try_pair(cert, key)
    _try_handshake(paths, side)
    return tls


def _read(path: str, flag: str, kind: str) -> bytes:
    try:
        with Path(path).open("rb") as opened:
            data = opened.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{flag} {path!r}: cannot be read ({why}); check the path and its owner"
        ) from error
    if f"-----BEGIN {kind}-----".encode() not in data:
        raise UsageError(
            f"{flag} {path!r}: holds no PEM {kind}; name a PEM file, or convert it "
            "with `openssl x509 -inform der`"
        )
    return data


def _read_key(path: str) -> bytes:
    flag = _FLAGS[1]
    data = read_guarded_file(path, flag, most=_MOST_BYTES)
    if b"ENCRYPTED" in data:
        raise UsageError(
            f"{flag} {path!r}: the key is encrypted and nobody is there to type its "
            "password; decrypt it with `openssl pkey` and chmod 600 it"
        )
    if b"PRIVATE KEY-----" not in data:
        raise UsageError(f"{flag} {path!r}: holds no PEM private key; is it the key?")
    return data


def _try_ca(path: str, data: bytes) -> None:
    """Looks whether there is a CA in it that is valid now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    flag = _FLAGS[2]
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{flag} {path!r}: is damaged ({error}); copy it again") from (
            error
        )
    found = context.get_ca_certs()
    if not found:
        raise UsageError(
            f"{flag} {path!r}: holds no certificate of a CA; name the file of the CA "
            "that signed, not one of its certificates"
        )
    now = time.time()
    if all(ssl.cert_time_to_seconds(str(one["notAfter"])) < now for one in found):
        raise UsageError(
            f"{flag} {path!r}: expired on {found[0]['notAfter']}; "
            "renew the CA and what it signed"
        )


def _try_pair(cert: str, key: str) -> None:
    """Looks whether certificate and key belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"{_FLAGS[1]} {key!r}: is not the key of {_FLAGS[0]} {cert!r}"
            raise UsageError(f"{problem}; name the pair") from error
        raise UsageError(
            f"{_FLAGS[0]} {cert!r} or {_FLAGS[1]} {key!r}: is damaged "
            f"({error.reason or error}); copy them again"
        ) from error


def _try_handshake(paths: dict[str, str], side: Side) -> None:
    """Lets the other side of a connection, in memory, judge our certificate."""
    cert, key, ca = (paths[flag] for flag in _FLAGS)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    for context in (server, client):
        context.load_cert_chain(cert, key, password=lambda: "")
    judge = client if side == "server" else server
    judge.load_verify_locations(ca)
    client.verify_mode = ssl.CERT_REQUIRED if judge is client else ssl.CERT_NONE
    server.verify_mode = ssl.CERT_REQUIRED if judge is server else ssl.CERT_NONE
    try:
        _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        raise UsageError(_refusal(paths, side, error)) from error
    except ssl.SSLError as error:
        raise UsageError(
            f"{_FLAGS[0]} {cert!r}: no TLS handshake works with it "
            f"({error.reason or error}); issue another certificate"
        ) from error


def _refusal(
    paths: dict[str, str], side: Side, error: ssl.SSLCertVerificationError
) -> str:
    said = error.verify_message
    where = f"{_FLAGS[0]} {paths[_FLAGS[0]]!r}"
    if "issuer" in said or "self" in said or "unable to verify" in said:
        return (
            f"{where}: is not signed by the CA in {_FLAGS[2]} {paths[_FLAGS[2]]!r} "
            f"({said}); name the CA that signed it, or have it signed by this one"
        )
    if "purpose" in said:
        purpose = _PURPOSE[side]
        return (
            f"{where}: is not made for a {side} ({said}); issue it with "
            f"extendedKeyUsage={purpose}"
        )
    if "expired" in said or "not yet valid" in said:
        return f"{where}: {said}; issue a new one, or set the clock of this host"
    return f"{where}: {said}; issue another certificate"


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """A whole handshake over two buffers.

    Raises:
        ssl.SSLError: one side refused the other.
    """
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_side=False),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(_TURNS):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
        if not ends:
            return
    raise ssl.SSLError("the handshake does not end")

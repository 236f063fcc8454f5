"""The settings of security that roles share, and what they come to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from refimpl.security.secret import read_secret
from refimpl.settings import setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from refimpl.security.secret import Secret
    from refimpl.security.tls import Side, Tls

DATA_SECRET_VARIABLE: Final = "REFIMPL_DATA_SECRET"  # noqa: S105 -- a variable's name


def token_file() -> Any:
    """The setting `token_file`."""
    return setting(
        "",
        "file with the token that the admin door asks for (or environment "
        "REFIMPL_TOKEN); needed off loopback",
    )


def tls_file(what: str) -> Any:
    """One of the settings `tls_cert`, `tls_key`, `tls_ca`."""
    return setting("", f"PEM file of {what}; with the other two, mutual TLS")


def tls_server_name() -> Any:
    """The setting `tls_server_name` of a client of the master."""
    return setting("", "name in the master's certificate, if not the host dialled")


def data_secret_file() -> Any:
    """The setting `data_secret_file`."""
    return setting(
        "",
        "file with the secret that readers, writers and stores prove to each other "
        "(or environment REFIMPL_DATA_SECRET)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """What a client of the pool shows and proves."""

    tls: Tls | None
    data_secret: Secret | None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ClientSecurity:
        """What the environment names, by the variables of the roles.

        Raises:
            UsageError: a file or a secret is no good.
        """
        found = os.environ if environ is None else environ
        names = ("TLS_CERT", "TLS_KEY", "TLS_CA", "TLS_SERVER_NAME")
        cert, key, ca, server_name = (found.get(f"REFIMPL_{n}", "") for n in names)
        files = _Files(
            tls_cert=cert, tls_key=key, tls_ca=ca, tls_server_name=server_name
        )
        file = found.get("REFIMPL_DATA_SECRET_FILE", "")
        return cls(
            tls=tls_of(files, "client"),
            data_secret=data_secret_of(file, environ=found),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    tls_cert: str
    tls_key: str
    tls_ca: str
    tls_server_name: str


class _HasTls(Protocol):
    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_ca(self) -> str: ...


def tls_of(settings: _HasTls, side: Side) -> Tls | None:
    """The TLS that a role's settings name, tried; None when they name none.

    Raises:
        UsageError: a file is missing, expired, of another CA.
    """
    if not (settings.tls_cert or settings.tls_key or settings.tls_ca):
        return None
    from refimpl.security.tls import load_tls  # roles without TLS start faster

    return load_tls(
        cert=settings.tls_cert,
        key=settings.tls_key,
        ca=settings.tls_ca,
        server_name=getattr(settings, "tls_server_name", ""),
        side=side,
    )


def data_secret_of(
    file: str = "", *, environ: Mapping[str, str] | None = None
) -> Secret | None:
    """The secret of the data plane; None when there is none.

    Raises:
        UsageError: the file cannot be used, or the secret is too short.
    """
    return read_secret(
        file=file,
        flag="--data-secret-file",
        environ=os.environ if environ is None else environ,
        variable=DATA_SECRET_VARIABLE,
    )

"""The bearer token of a fault proxy's API, and where it must be asked for.

Whoever reaches the API can break every link and open ports on this host: on loopback
that is every user of the host, anywhere else only who has the token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import stat
from typing import TYPE_CHECKING

from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "MOONQUAKE_PROXY_TOKEN"  # noqa: S105 - the name of a variable
LEAST_CHARACTERS = 16
MOST_CHARACTERS = 4096
_REMEDY = "write e.g. the output of `openssl rand -hex 32` there"


def is_loopback(host: str) -> bool:
    """127.0.0.0/8, ::1 and `localhost`; a name that might resolve anywhere is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(file: str = "", *, environ: Mapping[str, str] | None = None) -> str:
    """The token in the file, else in MOONQUAKE_PROXY_TOKEN, else "".

    Raises:
        UsageError: the file cannot be used, or the token is too short; the token itself
            is in no message.
    """
    if file:
        where, token = f"--token-file {file!r}", _read(file)
    else:
        found = (os.environ if environ is None else environ).get(TOKEN_VARIABLE)
        if found is None:
            return ""
        where, token = f"environment {TOKEN_VARIABLE}", found
    if not LEAST_CHARACTERS <= len(token) <= MOST_CHARACTERS:
        between = f"{LEAST_CHARACTERS} to {MOST_CHARACTERS} characters"
        problem = f"{where}: a token has {between}, not {len(token)}"
        raise UsageError(problem, _REMEDY)
    if not all("!" <= letter <= "~" for letter in token):
        problem = f"{where}: a token has no spaces and only ASCII"
        raise UsageError(problem, _REMEDY)
    return token


def admits(token: str, header: str) -> bool:
    """Whether an `Authorization` is right; how long it takes tells nothing."""
    given, wanted = (
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
        for text in (header, f"Bearer {token}")
    )
    return hmac.compare_digest(given, wanted)


def _read(path: str) -> str:
    def refuse(problem: str, remedy: str) -> UsageError:
        return UsageError(f"--token-file {path!r}: {problem}", remedy)

    try:
        # Path.open takes no opener.
        with open(path, "rb", opener=_without_waiting) as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise refuse("is not a plain file", "name a plain file")
            if mode & stat.S_IRWXO:
                raise refuse("is open to every user", "chmod 600 it")
            data = opened.read(MOST_CHARACTERS + 3)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise refuse(f"cannot be read ({why})", "check the path") from error
    return data.rstrip(b"\r\n").decode("utf-8", "surrogateescape")


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for its writer else."""
    return os.open(path, flags | os.O_NONBLOCK)

"""Which private keys a host is offered: the one the inventory names, else the usual."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from inventory.errors import SshError, SshProblem

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from inventory.schema import HostEntry

USUAL_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
AGENT_S = 2.0
MAX_OFFERS = 6
"""sshd ends the connection after as many (MaxAuthTries)."""


def offered_keys(entry: HostEntry) -> Generator[paramiko.PKey]:
    """Keys in the order in which they are tried; closing it lets go of the agent.

    A named key that is encrypted is looked for in the agent, by its public half.

    Raises:
        SshError: the named key cannot be used.
    """
    if entry.key_file is None:
        yield from _offers(None, _usual_keys())
        return
    key = _load(entry, entry.key_file)
    if key is not None:
        yield key
        return
    public = _public_half(entry.key_file)
    found = False
    for held in _offers(public, iter(())):
        found = True
        yield held
    if not found:
        raise _unusable(entry, "is encrypted and no agent holds it", "ssh-add it")


def _offers(
    only: str | None, files: Iterator[paramiko.PKey]
) -> Generator[paramiko.PKey]:
    """Keys of the agent (`only` the one with this base64 text), then those of files."""
    if not _agent_answers():
        yield from itertools.islice(files, MAX_OFFERS)
        return
    agent = paramiko.Agent()
    try:
        held = (k for k in agent.get_keys() if only in (None, k.get_base64()))
        yield from itertools.islice(itertools.chain(held, files), MAX_OFFERS)
    finally:
        agent.close()


def _agent_answers() -> bool:
    """Tried first, because the library leaves a socket open where nobody listens."""
    place = os.environ.get("SSH_AUTH_SOCK", "")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(AGENT_S)
        try:
            agent.connect(place)
        except (OSError, ValueError):
            return False
    return bool(place)


def _usual_keys() -> Iterator[paramiko.PKey]:
    for name in USUAL_FILES:
        try:
            yield paramiko.PKey.from_path(Path(name).expanduser())
        except (OSError, TypeError, ValueError, UnsupportedAlgorithm):
            continue  # not there, or encrypted: the agent was asked already
        except paramiko.SSHException:
            continue


def _load(entry: HostEntry, file: Path) -> paramiko.PKey | None:
    """The key of the file, None if it is encrypted."""
    try:
        return paramiko.PKey.from_path(file)
    except OSError as error:
        raise _unusable(
            entry, f"cannot be read: {error.strerror}", "correct the path"
        ) from error
    except (TypeError, paramiko.PasswordRequiredException):
        return None  # what the library says where a passphrase is missing
    except (ValueError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        raise _unusable(
            entry, "is not a private key that can be used", "name a private key"
        ) from error


def _public_half(file: Path) -> str:
    try:
        fields = Path(f"{file}.pub").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""  # nothing in the agent is like this, so it is reported
    return fields[1] if len(fields) > 1 else ""


def _unusable(entry: HostEntry, problem: str, fix: str) -> SshError:
    return SshError(
        SshProblem.AUTH,
        host=entry.name,
        detail=f"its key file {entry.key_file} {problem}",
        fix=fix,
        phase="the authentication",
    )

"""Is this the host we mean? Strictly by known_hosts; there is no way to switch it off.

Reads OpenSSH's format: plain, hashed and wildcard names, `@revoked`. Certificate
authorities are not used. Lines that cannot be read are no reason to trust anybody, so
they are passed over, as ssh does.
"""

from __future__ import annotations

import fnmatch
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko

from inventory.errors import SshError, SshProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inventory.schema import HostEntry

USUAL_FILES = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKeys:
    """What known_hosts says about one host: (type, base64) pairs."""

    host: HostEntry
    files: tuple[Path, ...]
    good: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    revoked: frozenset[str] = field(default_factory=frozenset)

    def preferred(self, offered: Sequence[str]) -> tuple[str, ...]:
        """Our list of key types with those we know first, so that the host shows one
        that can be compared."""
        known = {kind for kind, _ in self.good}
        if "ssh-rsa" in known:
            known |= set(_RSA_SIGNATURES)
        return tuple(sorted(offered, key=lambda kind: kind not in known))

    def check(self, key: paramiko.PKey) -> None:
        """Returns if the host may be trusted.

        Raises:
            SshError: it shows a key that is revoked, changed or unknown.
        """
        text = key.get_base64()
        if text in self.revoked:
            raise self._error(
                f"shows a revoked key ({key.get_name()} {key.fingerprint})",
                "do not connect; find out who answers there",
            )
        if (key.get_name(), text) in self.good:
            return
        if self.good:
            raise self._changed(key)
        raise self._error(
            f"shows an unknown key ({key.get_name()} {key.fingerprint})"
            f", not in {self._where}",
            f"compare the fingerprint with the host's own, then: {self._scan}",
        )

    def _changed(self, key: paramiko.PKey) -> SshError:
        known = ", ".join(sorted({kind for kind, _ in self.good}))
        name = shlex.join(["ssh-keygen", "-R", known_name(self.host)])
        file = shlex.quote(str(self.files[0]))
        return self._error(
            f"shows a changed key ({key.get_name()} {key.fingerprint})"
            f", {self._where} has another ({known})",
            "if it was installed anew, compare the fingerprint with the host's own, "
            f"then: {name} -f {file}; {self._scan}",
        )

    @property
    def _where(self) -> str:
        return " or ".join(str(file) for file in self.files)

    @property
    def _scan(self) -> str:
        scan = ["ssh-keyscan", "-p", str(self.host.port), self.host.address]
        return f"{shlex.join(scan)} >> {shlex.quote(str(self.files[0]))}"

    def _error(self, detail: str, fix: str) -> SshError:
        return SshError(
            SshProblem.HOST_KEY,
            host=self.host.name,
            detail=detail,
            fix=fix,
            phase="host key",
        )


def known_name(entry: HostEntry) -> str:
    """The name under which known_hosts has the host."""
    return entry.address if entry.port == 22 else f"[{entry.address}]:{entry.port}"


def known_keys(entry: HostEntry) -> KnownKeys:
    """Reads the host's known_hosts, or the usual files.

    Raises:
        SshError: the file that the inventory names cannot be read.
    """
    files = (
        (entry.known_hosts,)
        if entry.known_hosts
        else tuple(Path(file).expanduser() for file in USUAL_FILES)
    )
    lines = [line for file in files for line in _lines_of(file, entry)]
    good = frozenset((kind, key) for mark, kind, key in lines if not mark)
    revoked = frozenset(key for mark, _, key in lines if mark == "@revoked")
    return KnownKeys(host=entry, files=files, good=good, revoked=revoked)


def _lines_of(file: Path, entry: HostEntry) -> Iterator[tuple[str, str, str]]:
    """(mark, type, base64) of every line that speaks of the host."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if entry.known_hosts is None:
            return  # the usual files need not exist
        raise SshError(
            SshProblem.HOST_KEY,
            host=entry.name,
            detail=f"its known_hosts {file} cannot be read: {error.strerror}",
            fix="create it with ssh-keyscan, or correct known_hosts",
            phase="host key",
        ) from error
    for line in text.splitlines():
        fields = line.split()
        mark = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and _names_match(fields[0], known_name(entry)):
            yield mark, fields[1], fields[2]


def _names_match(names: str, wanted: str) -> bool:
    found = False
    for name in names.split(","):
        if name.startswith("!") and _matches(name[1:], wanted):
            return False
        found = found or _matches(name, wanted)
    return found


def _matches(name: str, wanted: str) -> bool:
    if name.startswith("|1|"):
        try:
            return paramiko.HostKeys.hash_host(wanted, name) == name
        except (ValueError, AssertionError):
            return False  # a malformed line speaks of nobody
    if "*" in name or "?" in name:
        return fnmatch.fnmatchcase(wanted, name.replace("[", "[[]"))
    return name.lower() == wanted.lower()

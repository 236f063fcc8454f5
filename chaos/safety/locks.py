"""Locks of failure domains: two runs never break the same thing at the same time.

A lock is a flock'ed file in the state directory, so it ends with its holder, however
that ends. The second run on a domain is refused and told who the first one is.
On the local target a failure domain is a block of addresses, 127.B.C.0/24, chosen by
the first free index.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.report.redaction import clean_text
from chaos.safety.identity import start_ticks_of
from chaos.safety.ledger import state_directory

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = 4096
_FIRST_OCTET = 64
_SPREAD = 97
_GUARD_HOST, _GUARD_PORT = 254, 7999


class DomainBusy(RuntimeError):
    """Another run holds this failure domain; wait for it, or name another one."""

    def __init__(self, domain: str, holder: str) -> None:
        self.domain = domain
        self.holder = holder
        super().__init__(f"failure domain {domain} is in use by {holder}")


class DomainLock:
    """A held lock. `release` gives it back and removes its file."""

    def __init__(self, domain: str, path: Path, descriptor: int) -> None:
        self.domain = domain
        self.path = path
        self._descriptor: int | None = descriptor
        self._guard: socket.socket | None = None

    def guard(self, address: str, port: int) -> None:
        """Holds a listening port as well, which users with other state files see.

        Raises:
            DomainBusy: Somebody holds it; the lock is released.
        """
        guard = socket.socket()
        try:
            guard.bind((address, port))
            guard.listen(1)
        except OSError as error:
            guard.close()
            self.release()
            holder = f"whoever listens on {address}:{port}"
            raise DomainBusy(self.domain, holder) from error
        self._guard = guard

    def release(self) -> None:
        if self._descriptor is None:
            return
        if self._guard is not None:
            self._guard.close()
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressBlock:
    """A leased /24 of loopback addresses."""

    index: int
    lock: DomainLock

    @property
    def prefix(self) -> str:
        return f"127.{_FIRST_OCTET + self.index // 256}.{self.index % 256}"

    def address(self, host: int) -> str:
        """The address of one host of the block, 1..254."""
        if not 1 <= host <= 254:
            message = f"a block has hosts 1..254, not {host}"
            raise ValueError(message)
        return f"{self.prefix}.{host}"


def lock_domain(domain: str, *, directory: Path | None = None) -> DomainLock:
    """Takes the lock of a domain or raises `DomainBusy` naming the holder.

    A holder that releases unlinks the file first, so after locking we check that the
    name still leads to what we locked, else a third run could hold it as well.
    """
    path = (directory or state_directory()) / f"domain-{domain}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace")
            os.close(descriptor)
            raise DomainBusy(domain, holder.strip() or "a run that starts") from None
        if _names(path, descriptor):
            break
        os.close(descriptor)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, _holder().encode(), 0)
    return DomainLock(domain, path, descriptor)


def lease_block(
    *, directory: Path | None = None, pinned: int | None = None, blocks: int = BLOCKS
) -> AddressBlock:
    """Leases the first free block of addresses, or exactly the pinned one."""
    if pinned is not None:
        return _leased(pinned, directory)
    first = os.getuid() * _SPREAD % blocks
    for step in range(blocks):
        index = (first + step) % blocks
        try:
            return _leased(index, directory)
        except DomainBusy:
            continue
    raise DomainBusy("local", f"{blocks} runs, one on every block of addresses")


def _leased(index: int, directory: Path | None) -> AddressBlock:
    lock = lock_domain(f"local-{index}", directory=directory)
    block = AddressBlock(index=index, lock=lock)
    lock.guard(block.address(_GUARD_HOST), _GUARD_PORT)
    return block


def remove_stale_locks(directory: Path | None = None) -> list[Path]:
    """Removes lock files that nobody holds any more; returns which."""
    removed = []
    for path in sorted((directory or state_directory()).glob("domain-*.lock")):
        domain = path.name.removeprefix("domain-").removesuffix(".lock")
        try:
            lock = lock_domain(domain, directory=path.parent)
        except DomainBusy:
            continue
        lock.release()
        removed.append(path)
    return removed


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _holder() -> str:
    pid = os.getpid()
    identity = {"pid": pid, "start_ticks": start_ticks_of(pid)}
    return f"{json.dumps(identity)} {clean_text(' '.join(sys.argv))[:200]}"

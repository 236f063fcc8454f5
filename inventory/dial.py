"""From an inventory entry to an authenticated SSH transport, before a deadline.

Every way of failing is told apart, because a report that says "unreachable" for a
changed key sends people to the wrong place.
"""

from __future__ import annotations

import contextlib
import getpass
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING

import paramiko

from inventory.deadline import OutOfTime, within
from inventory.errors import SshError, SshProblem, shown
from inventory.hostkeys import known_keys
from inventory.keys import offered_keys
from inventory.transport import OrderedTransport

if TYPE_CHECKING:
    from inventory.deadline import Deadline
    from inventory.schema import HostEntry

KEEPALIVE_S = 15
"""Between messages of an idle connection; unanswered ones end it, see below."""
UNACKNOWLEDGED_MS = 20_000
"""The kernel gives a connection up when the peer acknowledges nothing this long."""
BANNER_BYTES = 8192
"""Of what a server may say before it says that it is SSH."""
_HELLO = b"SSH-"

# An SSH library writes every failure to its log as well; without a handler Python
# would print that beside our own one-line message.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def dial(entry: HostEntry, deadline: Deadline) -> paramiko.Transport:
    """An authenticated transport; nothing was executed yet.

    Raises:
        SshError: with the kind and the phase; everything is closed again.
    """
    attempt = _Attempt(entry, deadline)
    try:
        return within(deadline, attempt.run, f"ssh dial {entry.name}")
    except OutOfTime:
        attempt.abort()
        raise attempt.error(
            SshProblem.TIMEOUT,
            f"no answer within {deadline.total_s:g} s, waiting for {attempt.phase}",
            "look whether the host is overloaded or packets to it are dropped",
        ) from None
    except BaseException:
        attempt.abort()
        raise


class _Attempt:
    """One dialling; runs in a thread of its own and can be aborted from outside."""

    def __init__(self, entry: HostEntry, deadline: Deadline) -> None:
        self._entry = entry
        self._deadline = deadline
        self._user = entry.user or getpass.getuser()
        self._sock: socket.socket | None = None
        self._transport: paramiko.Transport | None = None
        self._aborted = False
        self.phase = "name resolution"

    def run(self) -> paramiko.Transport:
        sock = self._connect(self._resolve())
        self._await_hello(sock)
        transport = self._negotiate(sock)
        self._authenticate(transport)
        transport.set_keepalive(KEEPALIVE_S)
        return transport

    def abort(self) -> None:
        """Closes what there is, and what `run` may still open."""
        self._aborted = True
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._sock is not None:
            self._sock.close()

    def error(self, kind: SshProblem, detail: str, fix: str = "") -> SshError:
        return SshError(
            kind, host=self._entry.name, detail=detail, fix=fix, phase=self.phase
        )

    @property
    def _endpoint(self) -> str:
        return f"{self._entry.address} port {self._entry.port}"

    def _resolve(self) -> list[tuple[int, tuple[object, ...]]]:
        address, port = self._entry.address, self._entry.port
        flags = socket.AI_NUMERICHOST if _is_numeric(address) else 0
        try:
            found = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=flags
            )
        except (socket.gaierror, UnicodeError) as error:
            raise self.error(
                SshProblem.UNREACHABLE,
                f"the name {address} cannot be resolved ({_words(error)})",
                "correct ansible_host, or give an IP address",
            ) from error
        return [(family, place) for family, _, _, _, place in found]

    def _connect(self, places: list[tuple[int, tuple[object, ...]]]) -> socket.socket:
        self.phase = "the TCP connection"
        failure: OSError | None = None
        for family, place in places:
            sock = socket.socket(family, socket.SOCK_STREAM)
            self._sock = sock
            if self._aborted:
                sock.close()
            try:
                sock.settimeout(self._deadline.left_s() or 0.001)
                sock.connect(place)
            except OSError as error:
                sock.close()
                failure = error
                continue
            _keep_alive(sock)
            return sock
        raise self._not_connected(failure)

    def _not_connected(self, failure: OSError | None) -> SshError:
        if isinstance(failure, ConnectionRefusedError):
            return self.error(
                SshProblem.REFUSED,
                f"{self._endpoint} refuses the connection: nobody listens there",
                "start sshd, or correct ansible_port",
            )
        if isinstance(failure, TimeoutError):
            return self.error(
                SshProblem.TIMEOUT,
                f"{self._endpoint} did not answer within "
                f"{self._deadline.total_s:g} s, waiting for {self.phase}",
                "look whether the host is up and packets to it are not dropped",
            )
        return self.error(
            SshProblem.UNREACHABLE,
            f"{self._endpoint} cannot be reached ({_words(failure)})",
            "look at the route to it",
        )

    def _await_hello(self, sock: socket.socket) -> None:
        """Looks at the first bytes without taking them: is this SSH at all?"""
        self.phase = "the SSH banner"
        seen = b""
        while not _says_hello(seen):
            sock.settimeout(self._deadline.left_s() or 0.001)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(seen) + 1)
                now = sock.recv(BANNER_BYTES, socket.MSG_PEEK)
            except TimeoutError:
                raise OutOfTime(self.phase) from None
            except OSError as error:
                raise self._no_hello(seen, _words(error)) from error
            if len(now) <= len(seen) or len(now) >= BANNER_BYTES:
                raise self._no_hello(now, "the connection was closed")
            seen = now
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _no_hello(self, seen: bytes, how: str) -> SshError:
        if not seen:
            return self.error(
                SshProblem.LOST,
                f"{self._endpoint} went away before the SSH banner ({how})",
                "look at sshd's log: too many connections (MaxStartups) or a filter",
            )
        return self.error(
            SshProblem.GARBAGE,
            f"{self._endpoint} does not speak SSH, it says {shown(seen[:80])}",
            "correct ansible_port",
        )

    def _negotiate(self, sock: socket.socket) -> paramiko.Transport:
        self.phase = "the key exchange"
        known = known_keys(self._entry)
        transport = OrderedTransport(sock)
        self._transport = transport
        if self._aborted:
            self._close()
        left_s = self._deadline.left_s() + 1.0  # our own deadline comes first
        transport.banner_timeout = transport.handshake_timeout = left_s
        transport.auth_timeout = left_s
        options = transport.get_security_options()
        options.key_types = known.preferred(options.key_types)
        try:
            transport.start_client(timeout=left_s)
        except Exception as error:  # whatever broke the library's own thread
            raise self._not_negotiated(error) from error
        known.check(transport.get_remote_server_key())
        return transport

    def _not_negotiated(self, error: Exception) -> SshError:
        if isinstance(error, (EOFError, OSError)) or "reading SSH" in str(error):
            return self._lost(error)
        return self.error(
            SshProblem.GARBAGE,
            f"{self._endpoint} speaks SSH that we cannot follow ({_words(error)})",
            "look at sshd's version and its algorithms",
        )

    def _lost(self, error: Exception) -> SshError:
        return self.error(
            SshProblem.LOST,
            f"the connection to {self._endpoint} was lost in {self.phase}"
            f" ({_words(error)})",
            "look at sshd's log on the host",
        )

    def _authenticate(self, transport: paramiko.Transport) -> None:
        self.phase = "the authentication"
        with contextlib.closing(offered_keys(self._entry)) as keys:
            refused = 0
            for key in keys:
                if self._accepts(transport, key):
                    return
                refused += 1
        raise self.error(
            SshProblem.AUTH,
            f"refuses user {self._user} with "
            + (f"the {refused} key(s) offered" if refused else "no key to offer"),
            "correct ansible_user or ansible_ssh_private_key_file, or put the public "
            "key into authorized_keys on the host",
        )

    def _accepts(self, transport: paramiko.Transport, key: paramiko.PKey) -> bool:
        try:
            more = transport.auth_publickey(self._user, key)
        except paramiko.BadAuthenticationType as error:
            raise self.error(
                SshProblem.AUTH,
                f"takes no public keys, only {', '.join(error.allowed_types)}",
                "allow PubkeyAuthentication in its sshd_config",
            ) from error
        except Exception as error:  # whatever broke the library's own thread
            if transport.is_active():
                return False
            raise self._lost(error) from error
        if more:
            raise self.error(
                SshProblem.AUTH,
                f"takes the key of {self._user} and wants {', '.join(more)} as well",
                "allow the key alone (AuthenticationMethods) for this user",
            )
        return True


def _says_hello(seen: bytes) -> bool:
    """A line that begins like SSH; servers may say other lines before (RFC 4253)."""
    return seen.startswith(_HELLO) or b"\n" + _HELLO in seen


def _is_numeric(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _keep_alive(sock: socket.socket) -> None:
    """The kernel finds out that the peer is gone, also while nothing is sent."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)


def _words(error: BaseException | None) -> str:
    """What an exception says, on one line."""
    if error is None:
        return "no address"
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(said.split())[:200] or type(error).__name__

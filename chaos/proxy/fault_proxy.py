"""One proxy: its listener, its toxics in order, its live connections, its counters."""

from __future__ import annotations

import errno
import random
import select
import socket
from typing import TYPE_CHECKING, Any

from chaos.proxy.relay import RESET_ON_CLOSE, Connection
from chaos.proxy.stages import stage_for
from chaos.proxy.toxics import MAX_TOXICS, BadToxic, Counter, Stream

if TYPE_CHECKING:
    from chaos.proxy.loop import Loop, Timer
    from chaos.proxy.pipes import PipePool
    from chaos.proxy.stages import Stage
    from chaos.proxy.toxics import Toxic, ToxicChange

BACKLOG = 1024
ACCEPTS_A_TURN = 64
#: Live connections of one proxy; more are closed as soon as they are accepted.
MAX_CONNECTIONS = 4096
#: Pause after accept fails for want of descriptors, seconds.
ACCEPT_PAUSE_S = 0.1
#: Counters kept of toxics that are gone: evidence is read after the revert too.
MAX_PAST_COUNTERS = 64
DEFAULT_LISTEN = "127.0.0.1:0"


class FaultProxy:
    """Listens on one address and relays to another through its toxics."""

    def __init__(
        self,
        *,
        loop: Loop,
        pipes: PipePool,
        seed: int,
        name: str,
        listen: str,
        upstream: str,
    ) -> None:
        self.name = name
        self.listen = listen or DEFAULT_LISTEN
        self.upstream = upstream
        self.enabled = False
        self.toxics: list[Toxic] = []
        self.connections: dict[int, Connection] = {}
        self.accepted = 0
        self.refused = 0
        self._carried = {(way, stream): 0 for way in ("in", "out") for stream in Stream}
        self._past: dict[str, Counter] = {}
        self._down = Counter()
        self._loop = loop
        self._pipes = pipes
        self._seed = seed
        self._listener: socket.socket | None = None
        self._pause: Timer | None = None
        self._dial: tuple[int, tuple[str, int]] | None = None

    # Life.

    def start(self) -> None:
        """Opens the listener; the port is then that of `listen`.

        Raises:
            OSError: the address cannot be had.
        """
        if self.enabled:
            return
        self._dial = resolve(self.upstream)
        if self._listener is None:
            self._listener = _bound_socket(self.listen)
        self._listener.listen(BACKLOG)
        self.listen = format_address(self._listener.getsockname())
        self._watch()
        self.enabled = True

    def stop(self) -> None:
        """Refuses from now on and closes every connection; keeps the port.

        The listening socket is shut down, not closed: the kernel then refuses, and
        nobody else can take the port before `start`.
        """
        if not self.enabled:
            return
        self.enabled = False
        self._unwatch()
        assert self._listener is not None
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            self._release_port()  # a kernel that cannot: give the port up instead
        self._down.connections += len(self.connections)
        for connection in list(self.connections.values()):
            connection.close()

    def destroy(self) -> None:
        """Stops for good and gives the port back."""
        self.stop()
        for toxic in self.toxics:
            _cancel_expiry(toxic)
        self._release_port()

    def update(self, listen: str, upstream: str, *, enabled: bool) -> None:
        """What PATCH does: another address restarts, `enabled` switches.

        Raises:
            OSError: the new address cannot be had; the proxy is then disabled.
        """
        wanted = resolve(listen)
        if wanted is None or format_address(wanted[1]) != self.listen:
            self.stop()
            self._release_port()
            self.listen = listen
        elif upstream != self.upstream:
            self.stop()
        self.upstream = upstream
        if enabled:
            self.start()
        else:
            self.stop()

    # Toxics.

    def find(self, name: str) -> Toxic | None:
        return next((toxic for toxic in self.toxics if toxic.name == name), None)

    def add(self, toxic: Toxic) -> None:
        """Adds a toxic at the end of its chain, on live connections and new ones."""
        if self.find(toxic.name) is not None:
            raise BadToxic("toxic already exists", 409)
        if len(self.toxics) >= MAX_TOXICS:
            raise BadToxic(f"more than {MAX_TOXICS} toxics on one proxy", 409)
        self.toxics.append(toxic)
        self._past.pop(toxic.name, None)
        for connection in list(self.connections.values()):
            self._strike(connection, toxic)
        self._set_expiry(toxic)

    def change(self, toxic: Toxic, change: ToxicChange) -> None:
        """Updates a toxic in place; toxicity decides anew, with the same draws."""
        toxic.attributes.update(change.attributes)
        toxic.toxicity = change.toxicity
        toxic.ttl_ms = change.ttl_ms
        now = self._loop.clock()
        for connection in list(self.connections.values()):
            stage = connection.stages.get(toxic.name)
            if connection.draw >= toxic.toxicity:
                connection.heal(toxic)
            elif stage is None:
                self._strike(connection, toxic)
            else:
                stage.changed(now)
                connection.pump(toxic.stream)
        if change.renews:
            self._set_expiry(toxic)

    def remove(self, toxic: Toxic) -> None:
        """Removes a toxic now, whatever its data path is doing."""
        self.toxics.remove(toxic)
        _cancel_expiry(toxic)
        self._past[toxic.name] = toxic.counter
        while len(self._past) > MAX_PAST_COUNTERS:
            del self._past[next(iter(self._past))]
        for connection in list(self.connections.values()):
            connection.heal(toxic)

    def reset(self) -> None:
        """Removes all toxics and enables: the state of a new proxy."""
        for toxic in list(self.toxics):
            self.remove(toxic)
        self.start()

    # What it tells.

    def wire(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "listen": self.listen,
            "upstream": self.upstream,
            "enabled": self.enabled,
            "toxics": [toxic.wire() for toxic in self.in_order()],
        }

    def in_order(self) -> list[Toxic]:
        """Upstream toxics first, then downstream ones, each as they were added."""
        return [
            toxic
            for stream in Stream
            for toxic in self.toxics
            if toxic.stream is stream
        ]

    def counters(self) -> dict[str, dict[str, int]]:
        """Hits by toxic, gone ones too; `down` counts what disabling cut."""
        counters = {name: counter.wire() for name, counter in self._past.items()}
        counters |= {toxic.name: toxic.counter.wire() for toxic in self.toxics}
        if self._down.connections:
            counters.setdefault("down", self._down.wire())
        return counters

    def live(self) -> list[dict[str, Any]]:
        """Every live connection, and for every toxic whether it is applied there."""
        return [self._describe(connection) for connection in self.connections.values()]

    def carried(self, way: str, stream: Stream) -> int:
        """Bytes received ("in") or sent ("out") in a direction since the start."""
        total = self._carried[way, stream]
        for connection in self.connections.values():
            link = connection.links.get(stream)
            if link is not None:
                total += link.received if way == "in" else link.sent
        return total

    def _describe(self, connection: Connection) -> dict[str, Any]:
        return {
            "index": connection.index,
            "client": connection.peer,
            "age_s": round(self._loop.clock() - connection.opened_at, 6),
            "established": connection.open,
            "draw": connection.draw,
            "bytes": {way.value: link.sent for way, link in connection.links.items()},
            "toxics": {
                toxic.name: _applied(connection.stages.get(toxic.name))
                for toxic in self.toxics
                if toxic.type != "drop_first_n"
            },
        }

    # Connections.

    def _strike(self, connection: Connection, toxic: Toxic) -> None:
        if connection.draw >= toxic.toxicity or connection.closed:
            return
        seed = f"{self._seed}/{self.name}/{connection.index}/{toxic.name}"
        stage = stage_for(toxic, seed, self._loop.clock())
        if stage is None:
            return
        before = self.toxics[: self.toxics.index(toxic)]
        place = sum(
            1
            for other in before
            if other.stream is toxic.stream and other.name in connection.stages
        )
        toxic.counter.connections += 1
        connection.strike(toxic, place, stage)

    def _on_acceptable(self, _: int) -> None:
        for _attempt in range(ACCEPTS_A_TURN):
            if self._listener is None or not self.enabled:
                return
            try:
                sock, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    self._pause_accepting()
                    return
                continue  # the client was gone before we took it
            self._take(sock, peer)

    def _take(self, sock: socket.socket, peer: Any) -> None:
        index = self.accepted
        self.accepted += 1
        draw = random.Random(f"{self._seed}/{self.name}/{index}").random()
        if len(self.connections) >= MAX_CONNECTIONS or self._drops(draw):
            self.refused += 1
            _reset(sock)
            return
        connection = Connection(
            loop=self._loop,
            pipes=self._pipes,
            index=index,
            draw=draw,
            client=sock,
            peer=format_address(peer),
            on_close=self._forget,
        )
        self.connections[index] = connection
        if self._dial is None:
            connection.close()
            return
        connection.start(*self._dial, lambda: self._strike_all(connection))

    def _strike_all(self, connection: Connection) -> None:
        for toxic in self.toxics:
            self._strike(connection, toxic)

    def _drops(self, draw: float) -> bool:
        for toxic in self.toxics:
            if toxic.type != "drop_first_n" or draw >= toxic.toxicity:
                continue
            if toxic.counter.connections < toxic.attributes["connections"]:
                toxic.counter.connections += 1
                toxic.counter.hit(0)
                return True
        return False

    def _forget(self, connection: Connection) -> None:
        self.connections.pop(connection.index, None)
        for stream, link in connection.links.items():
            self._carried["in", stream] += link.received
            self._carried["out", stream] += link.sent

    # Listener and time.

    def _watch(self) -> None:
        assert self._listener is not None
        self._loop.register(
            self._listener.fileno(), self._on_acceptable, select.EPOLLIN
        )

    def _unwatch(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._listener is not None:
            self._loop.unregister(self._listener.fileno())

    def _pause_accepting(self) -> None:
        self._unwatch()
        when = self._loop.clock() + ACCEPT_PAUSE_S
        self._pause = self._loop.at(when, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._pause = None
        if self.enabled:
            self._watch()

    def _release_port(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _set_expiry(self, toxic: Toxic) -> None:
        _cancel_expiry(toxic)
        if toxic.ttl_ms is not None:
            when = self._loop.clock() + toxic.ttl_ms / 1000
            toxic.expiry = self._loop.at(when, lambda: self._expire(toxic))

    def _expire(self, toxic: Toxic) -> None:
        if toxic in self.toxics:
            self.remove(toxic)


def parse_address(text: str) -> tuple[str, int]:
    """Splits "host:port" or "[host]:port"; an empty host is loopback.

    Raises:
        OSError: in Toxiproxy's words.
    """
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        raise OSError(f"listen tcp: address {text}: missing port in address")
    if not port.isdecimal() or int(port) > 65_535:
        raise OSError(f"listen tcp: address {port}: invalid port")
    return host.strip("[]") or "127.0.0.1", int(port)


def format_address(address: Any) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(text: str) -> tuple[int, tuple[str, int]] | None:
    """The family and address to dial, None when nobody knows the name.

    Called when a proxy starts, never per connection: a name server must not be able to
    stall the loop. Numeric addresses, as the harness uses them, ask nobody.
    """
    try:
        host, port = parse_address(text)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def _bound_socket(listen: str) -> socket.socket:
    host, port = parse_address(listen)
    found = resolve(format_address((host, port)))
    if found is None:
        raise OSError(f"listen tcp: lookup {host}: no such host")
    family, address = found
    try:
        if address[1]:
            return _bind(family, address)
        # A port the kernel picked is given up when the listener is shut down, one that
        # was asked for is not: so ask for the one it picked, while it is still held.
        with _bind(family, address) as picked:
            return _bind(family, (address[0], picked.getsockname()[1]))
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"listen tcp {listen}: bind: {reason}") from error


def _bind(family: int, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _cancel_expiry(toxic: Toxic) -> None:
    if toxic.expiry is not None:
        toxic.expiry.cancel()
        toxic.expiry = None


def _applied(stage: Stage | None) -> dict[str, Any]:
    if stage is None:
        return {"applied": False, "bytes": 0, "chunks": 0}
    return {"applied": True, "bytes": stage.hit_bytes, "chunks": stage.hits}


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    sock.close()

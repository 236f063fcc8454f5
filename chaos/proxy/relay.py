"""Carries the bytes of one proxied connection, both ways, through its toxics.

    client --- Endpoint --- Link "upstream"   ---> Endpoint --- server
                       <--- Link "downstream" ---

A link without toxics moves bytes with splice(2) through a borrowed pipe. The moment a
toxic is added, whatever is in that pipe becomes the head of the output queue and the
link reads, steps its stages and writes instead; when the last one is gone and the queue
is empty it goes back to splicing. All of it happens on one loop, between two events.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING

from chaos.proxy.stages import Demand
from chaos.proxy.toxics import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.proxy.loop import Loop, Timer
    from chaos.proxy.pipes import Pipe, PipePool
    from chaos.proxy.stages import Data, Stage
    from chaos.proxy.toxics import Toxic

#: Most bytes one splice moves, and pieces of work a link gets in one turn.
SPLICE_BYTES = 1 << 20
TURN_BUDGET = 4
READ_BYTES = 64 << 10
COPY_BYTES = 256 << 10
#: Output queued behind a full socket before the stages stop.
OUT_BYTES = 256 << 10
CONNECT_TIMEOUT_S = 10.0
_EDGE = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_INCOMING = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
#: SO_LINGER value with which close sends RST.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


#: Shared by all links: nothing stays in it from one call to the next.
_COPY_BUFFER = memoryview(bytearray(COPY_BYTES))


class Endpoint:
    """A socket with what the edge-triggered events said of it."""

    __slots__ = ("fd", "readable", "sock", "writable")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.fd = sock.fileno()
        self.readable = False
        self.writable = False


class Link:
    """One direction of a connection. `received` and `sent` count its bytes."""

    def __init__(
        self, connection: Connection, stream: Stream, source: Endpoint, dest: Endpoint
    ) -> None:
        self.stream = stream
        self.stages: list[Stage] = []
        self.received = 0
        self.sent = 0
        self.ended = False
        self.finished = False
        self._connection = connection
        self._loop = connection.loop
        self._pipes = connection.pipes
        self._source = source
        self._dest = dest
        self._out: deque[Data] = deque()
        self._out_bytes = 0
        self._source_ended = False
        self._close_when_drained = False
        self._pipe: Pipe | None = None
        self._in_pipe = 0
        self._timer: Timer | None = None
        self._queued = False

    # The end of the chain: what the last stage puts its output into.

    def accepts(self) -> bool:
        return self._out_bytes < OUT_BYTES

    def put(self, data: Data, stamp: float) -> None:
        self._out.append(data)
        self._out_bytes += len(data)

    def end(self, now: float) -> None:
        self.ended = True

    # What the connection and the proxy call.

    def pump(self) -> None:
        """Moves what can be moved now, bounded; goes on in the next turn if needed."""
        if not self._alive():
            return
        try:
            if self.stages or self._out:
                more = self._pump_stages()
            else:
                more = self._pump_plain()
            if self._alive():
                self._finish()
        except OSError:
            self._connection.abort()  # one side is broken: so is the other
            return
        if more:
            self._go_on()

    def insert(self, place: int, stage: Stage) -> None:
        """Puts a stage into the chain; data that is already past it stays past."""
        self._drain_pipe()
        after = self.stages[place] if place < len(self.stages) else self
        if after.ended:
            stage.ended = stage.closed = True
        self.stages.insert(place, stage)

    def remove(self, stage: Stage) -> None:
        """Takes a stage out and hands what it holds on, in order, without waiting."""
        place = self.stages.index(stage)
        after = self.stages[place + 1] if place + 1 < len(self.stages) else self
        del self.stages[place]
        now = self._loop.clock()
        for data, stamp in stage.inbox:
            after.put(data, stamp)
        if stage.ended and not stage.closed:
            after.end(now)

    def release(self) -> None:
        """Gives everything back that is not a socket; the link is dead after it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pipe is not None:
            self._pipes.give_back(self._pipe, dirty=self._in_pipe > 0)
            self._pipe = None
        self._out.clear()
        self.stages.clear()

    # Without toxics.

    def _pump_plain(self) -> bool:
        for _ in range(TURN_BUDGET):
            if self._in_pipe:
                if not self._dest.writable or not self._pipe_to_dest():
                    return False
            elif self._out or not self._source.readable or self._source_ended:
                return bool(self._out)
            elif not self._source_to_pipe():
                return False
        return True

    def _source_to_pipe(self) -> bool:
        if self._pipe is None:
            self._pipe = self._pipes.lend()
            if self._pipe is None:
                return self._copy()
        try:
            size = os.splice(
                self._source.fd, self._pipe.write_fd, SPLICE_BYTES, flags=_MOVE
            )
        except BlockingIOError:
            self._source.readable = False
            self._return_pipe()
            return False
        if size == 0:
            self._return_pipe()
            self._source_end()
            return False
        self._in_pipe = size
        self.received += size
        return True

    def _pipe_to_dest(self) -> bool:
        assert self._pipe is not None
        try:
            size = os.splice(
                self._pipe.read_fd, self._dest.fd, self._in_pipe, flags=_MOVE
            )
        except BlockingIOError:
            self._dest.writable = False
            return False
        self._in_pipe -= size
        self.sent += size
        return True

    def _copy(self) -> bool:
        """The way without a pipe: one read, one write, the rest into the queue."""
        try:
            size = self._source.sock.recv_into(_COPY_BUFFER)
        except BlockingIOError:
            self._source.readable = False
            return False
        if size == 0:
            self._source_end()
            return False
        self.received += size
        sent = self._send(_COPY_BUFFER[:size]) if self._dest.writable else 0
        if sent < size:
            self.put(bytes(_COPY_BUFFER[sent:size]), 0.0)
        return True

    def _return_pipe(self) -> None:
        if self._pipe is not None:
            self._pipes.give_back(self._pipe)
            self._pipe = None

    def _drain_pipe(self) -> None:
        """What splice already took in becomes the head of the output queue."""
        if self._pipe is None:
            return
        while self._in_pipe:
            data = os.read(self._pipe.read_fd, self._in_pipe)
            self._in_pipe -= len(data)
            self.put(data, 0.0)
        self._return_pipe()

    # With toxics.

    def _pump_stages(self) -> bool:
        for _ in range(TURN_BUDGET):
            now = self._loop.clock()
            moved = self._step(now)
            if self._obey():
                return False
            moved |= self._flush()
            moved |= self._take(now)
            if not moved:
                break
        else:
            return True
        self._arm(now)
        return not self.stages and not self._out and self._source.readable

    def _step(self, now: float) -> bool:
        """Steps the chain from its end, so that what moves makes room behind it."""
        moved = False
        for place in range(len(self.stages) - 1, -1, -1):
            after = self.stages[place + 1] if place + 1 < len(self.stages) else self
            moved |= self.stages[place].step(now, after)
        return moved

    def _obey(self) -> bool:
        """Does what a stage demands of the connection; True when that ended it."""
        for stage in self.stages:
            if stage.demand is Demand.RESET:
                self._connection.abort()
                return True
            if stage.demand is Demand.CLOSE:
                self._connection.close()
                return True
            if stage.demand is Demand.CLOSE_AFTER_FLUSH:
                self._close_when_drained = True
        return False

    def _take(self, now: float) -> bool:
        first = self.stages[0] if self.stages else self
        if not self._source.readable or self._source_ended or not first.accepts():
            return False
        data = self._read()
        if data:
            first.put(data, now)
        return data is not None

    def _read(self) -> bytes | None:
        """One read; None when nothing is there, b"" once at the end of the stream."""
        try:
            data = self._source.sock.recv(READ_BYTES)
        except BlockingIOError:
            self._source.readable = False
            return None
        if not data:
            self._source_end()
        self.received += len(data)
        return data

    def _flush(self) -> bool:
        moved = False
        while self._out and self._dest.writable:
            data = self._out[0]
            size = self._send(data)
            if size == 0:
                break
            moved = True
            self._out_bytes -= size
            if size == len(data):
                self._out.popleft()
            else:
                self._out[0] = memoryview(data)[size:]
        return moved

    def _send(self, data: Data) -> int:
        """One write; 0 when the socket takes nothing now."""
        try:
            size = self._dest.sock.send(data)
        except BlockingIOError:
            self._dest.writable = False
            return 0
        self.sent += size
        return size

    def _arm(self, now: float) -> None:
        """Sets the timer to the earliest instant at which a stage has something due.

        Nothing moved at `now`, so what was due by then waits for room behind it, and
        the one who makes room pumps again: a timer for it would only spin.
        """
        dues = [
            due
            for stage in self.stages
            if (due := stage.due()) is not None and due > now
        ]
        if not dues:
            return
        due = min(dues)
        if self._timer is not None and not self._timer.cancelled:
            if self._timer.when <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.at(due, self.pump)

    # Both.

    def _alive(self) -> bool:
        return self._connection.open

    def _source_end(self) -> None:
        self._source_ended = True
        now = self._loop.clock()
        (self.stages[0] if self.stages else self).end(now)

    def _finish(self) -> None:
        """Passes the end of the stream on once everything before it is out."""
        if self._out or self._in_pipe or self.finished:
            return
        if self._close_when_drained and all(
            stage.closed or not stage.inbox for stage in self._after_limit()
        ):
            self._connection.close()
        elif self.ended:
            self.finished = True
            try:
                self._dest.sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise
            self._connection.link_finished()

    def _after_limit(self) -> list[Stage]:
        for place, stage in enumerate(self.stages):
            if stage.demand is Demand.CLOSE_AFTER_FLUSH:
                return self.stages[place + 1 :]
        return []

    def _go_on(self) -> None:
        if not self._queued:
            self._queued = True
            self._loop.soon(self._resume)

    def _resume(self) -> None:
        self._queued = False
        self.pump()


_MOVE = getattr(os, "SPLICE_F_MOVE", 1) | getattr(os, "SPLICE_F_NONBLOCK", 2)


class Connection:
    """A client's connection and ours to the server behind, joined by two links.

    `index` counts the connections of a proxy, from 0; `draw` in [0, 1) is compared with
    the toxicity of every toxic: a connection is struck when draw < toxicity.
    """

    def __init__(
        self,
        *,
        loop: Loop,
        pipes: PipePool,
        index: int,
        draw: float,
        client: socket.socket,
        peer: str,
        on_close: Callable[[Connection], None],
    ) -> None:
        self.loop = loop
        self.pipes = pipes
        self.index = index
        self.draw = draw
        self.peer = peer
        self.opened_at = loop.clock()
        self.open = False
        self.closed = False
        self.stages: dict[str, Stage] = {}
        self._on_close = on_close
        self._client = Endpoint(client)
        self._server: Endpoint | None = None
        self._deadline: Timer | None = None
        self.links: dict[Stream, Link] = {}

    def start(
        self,
        family: int,
        address: tuple[str, int],
        strike: Callable[[], None],
    ) -> None:
        """Dials the server, calls `strike` before the first byte can move.

        The client is closed when dialling fails, as Toxiproxy does.
        """
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            self.close()
            return
        self._server = server = Endpoint(sock)
        self.links = {
            Stream.UP: Link(self, Stream.UP, self._client, server),
            Stream.DOWN: Link(self, Stream.DOWN, server, self._client),
        }
        strike()
        self.loop.register(self._client.fd, self._on_client, _EDGE)
        error = sock.connect_ex(address)
        if error not in (0, errno.EINPROGRESS):
            self.close()
            return
        self.loop.register(server.fd, self._on_server, _EDGE)
        self._deadline = self.loop.at(self.opened_at + CONNECT_TIMEOUT_S, self.close)
        if error == 0:
            self._connected()

    def strike(self, toxic: Toxic, place: int, stage: Stage) -> None:
        """Puts a toxic's stage at its place in the chain of its direction."""
        self.stages[toxic.name] = stage
        link = self.links.get(toxic.stream)
        if link is not None:
            link.insert(place, stage)
            self.loop.soon(link.pump)

    def heal(self, toxic: Toxic) -> bool:
        """Takes a toxic's stage out; closes a connection that lost bytes to it."""
        stage = self.stages.pop(toxic.name, None)
        link = self.links.get(toxic.stream)
        if stage is None or link is None or self.closed:
            return False
        link.remove(stage)
        if stage.lost or stage.demand is not Demand.NONE:
            self.close()
        else:
            self.loop.soon(link.pump)
        return True

    def pump(self, stream: Stream) -> None:
        link = self.links.get(stream)
        if link is not None:
            link.pump()

    def link_finished(self) -> None:
        if all(link.finished for link in self.links.values()):
            self.close()

    def abort(self) -> None:
        """Ends both sides with a real RST."""
        for endpoint in self._endpoints():
            try:
                endpoint.sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE
                )
            except OSError:
                continue  # already gone: there is nothing left to reset
        self.close()

    def close(self) -> None:
        """Ends both sides and gives everything back; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self.open = False
        if self._deadline is not None:
            self._deadline.cancel()
        for link in self.links.values():
            link.release()
        for endpoint in self._endpoints():
            self.loop.unregister(endpoint.fd)
            endpoint.sock.close()
        self._on_close(self)

    def _endpoints(self) -> list[Endpoint]:
        return [end for end in (self._client, self._server) if end is not None]

    def _connected(self) -> None:
        self.open = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for link in self.links.values():
            link.pump()

    def _on_client(self, mask: int) -> None:
        self._note(self._client, mask, Stream.UP, Stream.DOWN)

    def _on_server(self, mask: int) -> None:
        assert self._server is not None
        if not self.open:
            error = self._server.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self.close()
                return
            if not mask & select.EPOLLOUT:
                return
            self._server.writable = True
            self._connected()
        self._note(self._server, mask, Stream.DOWN, Stream.UP)

    def _note(self, end: Endpoint, mask: int, reads: Stream, writes: Stream) -> None:
        """Keeps what an event says and moves the links it concerns."""
        if mask & select.EPOLLERR and self._broken(end):
            return
        if mask & select.EPOLLOUT and not end.writable:
            end.writable = True
            self.links[writes].pump()
        if mask & _INCOMING and not self.closed:
            end.readable = True
            self.links[reads].pump()

    def _broken(self, end: Endpoint) -> bool:
        """A reset of one side reaches the other at once, whatever is queued."""
        if not end.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return False
        self.abort()
        return True

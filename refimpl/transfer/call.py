"""One call of the transfer engine, from its first request to its last byte."""

from __future__ import annotations

import select
from collections import deque
from typing import TYPE_CHECKING, Final

from refimpl.core.codes import Code
from refimpl.security.handshake import HandshakeRefused
from refimpl.transfer.connections import abort, start_connect
from refimpl.transfer.frames import FrameError, FrameOp
from refimpl.transfer.lane import Lane
from refimpl.transfer.slices import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from refimpl.security.secret import Secret
    from refimpl.transfer.cancel import Cancel
    from refimpl.transfer.connections import ConnectionPool
    from refimpl.transfer.operation import Op, TransferSettings, Watch
    from refimpl.transfer.rails import Rails
    from refimpl.transfer.slices import Slice

_ATTEMPTS: Final = 2
"""A request is dispatched once, and once more on another rail."""
_OPS: Final = 4096
"""Ops in one call, alternatives included."""
_CHECKS_PER_STALL: Final = 8
"""How often silence is looked for within the time that makes a rail silent."""


class _Work:
    """What is left of one op."""

    __slots__ = (
        "bad",
        "blamed",
        "failure",
        "lanes",
        "left",
        "op",
        "pending",
        "renewed",
        "reserve",
        "split",
        "started_at",
        "untried",
    )

    def __init__(self, op: Op, slices: list[Slice], now: float) -> None:
        self.op = op
        self.started_at = now
        self.pending = deque(slices)
        self.lanes: list[Lane] = []
        self.untried: deque[tuple[str, str]] = deque()
        self.reserve: deque[tuple[str, str]] = deque()
        """Paused rails: only when nothing else is left."""
        self.failure = Code.TRANSFER_FAIL
        """What rows get that no rail could carry."""
        self.blamed: set[str] = set()
        """Rails given up for their silence; charged once a sibling proves alive."""
        self.renewed: set[str] = set()
        """Rails whose stale idle connection was replaced by a fresh one."""
        self.left = set(op.rows.tolist())
        """Rows that are not done."""
        self.split: dict[int, int] = {}
        """Pieces missing of rows that travel in several."""
        self.bad: dict[int, int] = {}
        if sum(len(piece.rows) for piece in slices) > len(self.left):
            self._count_pieces(slices)

    def _count_pieces(self, slices: list[Slice]) -> None:
        for piece in slices:
            for row in piece.rows:
                self.split[row] = self.split.get(row, 0) + 1

    @property
    def last_progress(self) -> float:
        """When the last byte moved on any rail."""
        return max((ln.last_progress for ln in self.lanes), default=self.started_at)

    @property
    def can_move(self) -> bool:
        """True while some rail may still carry requests."""
        return bool(self.lanes or self.untried or self.reserve)


class Call:
    """A read or a write of many ops: `run` once, then look at `codes`."""

    def __init__(
        self,
        *,
        direction: FrameOp,
        pool: ConnectionPool,
        rails: Rails,
        settings: TransferSettings,
        clock: Callable[[], float],
        deadline: float,
        cancel: Cancel | None,
        watch: Watch | None,
        secret: Secret | None = None,
    ) -> None:
        self.codes: dict[int, int] = {}
        self._direction = direction
        self._pool = pool
        self._rails = rails
        self._settings = settings
        self._clock = clock
        self._deadline = deadline
        self._cancel = cancel
        self._watch = watch
        self._secret = secret
        self._is_watched_read = watch is not None and direction is FrameOp.READ
        self._has_work = watch is not None
        """The watch has something to do while bytes are on their way."""
        self._works: list[_Work] = []
        self._owner: dict[Lane, _Work] = {}
        self._unfinished = 0
        self._failed: list[tuple[Op, dict[int, int]]] = []
        self._check_every = settings.rail_stall_s / _CHECKS_PER_STALL
        self._check_at = clock() + self._check_every
        # Not `selectors`: its layer costs as much again as a small receive.
        self._epoll = select.epoll()
        self._lanes: dict[int, Lane] = {}

    def run(self, ops: Sequence[Op]) -> None:
        """Moves everything, or as much as the deadline lets."""
        try:
            if self._cancel is not None and self._cancel.fileno() >= 0:
                self._epoll.register(self._cancel.fileno(), select.EPOLLIN)
            self._start(ops)
            self._retry_elsewhere()
            while self._unfinished and self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        """One pass of the loop; False at the deadline or when cancelled."""
        now = self._clock()
        if now >= self._deadline or (self._cancel and self._cancel.is_set()):
            return False
        wait = min(self._deadline, self._check_at) - now
        events = self._epoll.poll(0.0 if self._has_work else max(0.0, wait))
        if self._has_work and not events:
            self._has_work = self._watch is not None and self._watch.idle()
        now = self._clock()
        for fd, mask in events:
            lane = self._lanes.get(fd)
            if lane is not None:
                self._step(lane, mask, now)
        if now >= self._check_at:
            self._check_silence(now)
        if self._failed:
            self._retry_elsewhere()
        return True

    def _start(self, ops: Iterable[Op]) -> None:
        for op in ops:
            now = self._clock()
            usable, paused = self._rails.choose(op.segment, now)
            work = _Work(op, cut(op, len(usable), self._settings), now)
            work.untried.extend(usable)
            work.reserve.extend(paused)
            self._works.append(work)
            self._unfinished += len(work.left)
            self._feed(work)

    # Requests and the lanes that carry them.

    def _feed(self, work: _Work) -> None:
        """Hands out pending requests while a lane has room, or fails them."""
        while work.pending:
            lane = self._lane_with_room(work)
            if lane is None:
                break
            self._dispatch(lane, work.pending.popleft())
        if work.pending and not work.can_move:
            lost = list(work.pending)
            work.pending.clear()
            self._lose(work, lost, work.failure)

    def _lane_with_room(self, work: _Work) -> Lane | None:
        """An idle lane, a new one, or the one with the shortest queue."""
        best = min(work.lanes, key=lambda lane: len(lane.held), default=None)
        if best is not None and not best.held:
            return best
        while work.untried or (work.reserve and not work.lanes):
            rail, address = (work.untried or work.reserve).popleft()
            lane = self._open(work, rail, address)
            if lane is not None:
                return lane
        if best is not None and len(best.held) < self._settings.window:
            return best
        return None

    def _open(self, work: _Work, rail: str, address: str) -> Lane | None:
        """A lane over an idle connection or a new one; None when refused at once."""
        now = self._clock()
        segment = work.op.segment.id
        sock = self._pool.take(segment, address)
        reused = sock is not None
        if sock is None:
            try:
                sock = start_connect(address, self._settings.socket_buffer_bytes)
            except (OSError, ValueError):
                self._rails.failed(work.op.segment, rail, now, had_other=work.can_move)
                return None
        lane = Lane(
            sock,
            op=self._direction,
            segment=segment,
            rail=rail,
            address=address,
            reused=reused,
            now=now,
            finished=self._finished,
            landed=self._landed if self._is_watched_read else None,
            secret=self._secret,
        )
        work.lanes.append(lane)
        self._owner[lane] = work
        return lane

    def _dispatch(self, lane: Lane, piece: Slice) -> None:
        try:
            lane.dispatch(piece, self._clock())
        except OSError:
            self._broken(lane)
        else:
            self._listen(lane)

    def _step(self, lane: Lane, mask: int, now: float) -> None:
        try:
            lane.step(mask & ~select.EPOLLOUT, mask & ~select.EPOLLIN, now)
        except (OSError, FrameError):
            self._broken(lane)
        except HandshakeRefused as refusal:
            self._refused(lane, refusal.code)
        else:
            if lane.wants_write is not lane.polls_write and lane in self._owner:
                self._listen(lane)

    def _listen(self, lane: Lane) -> None:
        """Keeps the kernel's interest in step with what the lane waits for."""
        fd = lane.sock.fileno()
        events = select.EPOLLIN | (select.EPOLLOUT if lane.wants_write else 0)
        if fd not in self._lanes:
            self._epoll.register(fd, events)
            self._lanes[fd] = lane
        elif lane.wants_write is not lane.polls_write:
            self._epoll.modify(fd, events)
        lane.polls_write = lane.wants_write

    def _finished(self, lane: Lane, piece: Slice, codes: int | list[int]) -> None:
        """A request was answered."""
        work = self._owner[lane]
        if work.blamed:
            self._judge_blamed(work, lane)
        if codes == Code.OK and not work.split:
            self._complete(work, piece.rows, {})
        else:
            each = codes if isinstance(codes, list) else [codes] * len(piece.rows)
            self._settle(work, piece.rows, each)
        if work.pending:
            self._feed(work)

    def _landed(self, lane: Lane, rows: Sequence[int]) -> None:
        """Tells the watch of whole rows, as long as they are warm in the cache."""
        work = self._owner[lane]
        if work.split:
            return
        assert self._watch is not None
        self._watch.landed(work.op, rows)

    # Rows that are done, and rows that are not to be had here.

    def _settle(self, work: _Work, rows: Sequence[int], codes: Sequence[int]) -> None:
        """Counts pieces of rows off; a row counts when its last piece does."""
        good: list[int] = []
        bad: dict[int, int] = {}
        for row, code in zip(rows, codes, strict=True):
            if code != Code.OK:
                work.bad.setdefault(row, code)
            if work.split.get(row, 1) > 1:
                work.split[row] -= 1
            elif row in work.bad:
                bad[row] = work.bad.pop(row)
            else:
                good.append(row)
        if work.split and good and self._watch is not None:
            self._watch.landed(work.op, good)
        self._complete(work, good, bad)

    def _complete(self, work: _Work, good: Sequence[int], bad: dict[int, int]) -> None:
        """Whole rows are here, or will not come from here."""
        work.left.difference_update(good)
        work.left.difference_update(bad)
        if good and self._watch is not None:
            refused = self._watch.arrived(work.op, good)
            if refused:
                bad = {**bad, **refused}
                good = [row for row in good if row not in refused]
        self.codes.update(dict.fromkeys(good, int(Code.OK)))
        self._unfinished -= len(good)
        if bad:
            self._failed.append((work.op, bad))

    def _lose(self, work: _Work, pieces: Iterable[Slice], code: int) -> None:
        for piece in pieces:
            self._settle(work, piece.rows, [code] * len(piece.rows))

    def _retry_elsewhere(self) -> None:
        """Asks the caller where else failed rows may be had, once they are at rest."""
        while self._failed:
            op, bad = self._failed.pop()
            self._unfinished -= len(bad)
            more = self._ask_for_more(op, bad)
            moved = {row for other in more for row in other.rows.tolist()}
            self.codes.update((r, code) for r, code in bad.items() if r not in moved)
            self._start(more)

    def _ask_for_more(self, op: Op, bad: Mapping[int, int]) -> Sequence[Op]:
        if self._watch is None or self._clock() >= self._deadline:
            return ()
        more = self._watch.failed(op, bad)
        return more if len(self._works) + len(more) <= _OPS else ()

    # Rails that break or are silent.

    def _broken(self, lane: Lane) -> None:
        """The connection is of no use: its requests go to another rail, once."""
        work = self._owner[lane]
        held = self._drop(lane)
        if held and lane.reused and not lane.bytes_in and lane.rail not in work.renewed:
            # It had gone stale in the pool, which says nothing about the rail.
            work.renewed.add(lane.rail)
            work.untried.appendleft((lane.rail, lane.address))
            for piece in held:
                piece.attempts -= 1
        elif held:
            self._rails.failed(
                work.op.segment, lane.rail, self._clock(), had_other=work.can_move
            )
        self._requeue(work, held, work.failure)

    def _refused(self, lane: Lane, code: Code) -> None:
        """The handshake came to nothing; other rails may lead to the right process.

        One that proved to serve another segment does so on all its rails.
        """
        work = self._owner[lane]
        held = self._drop(lane)
        if code == Code.SEGMENT_NOT_FOUND:
            held += work.pending
            work.pending.clear()
            work.untried.clear()
            work.reserve.clear()
            self._lose(work, held, code)
            return
        work.failure = code
        self._rails.unproved()
        self._rails.failed(
            work.op.segment, lane.rail, self._clock(), had_other=work.can_move
        )
        self._requeue(work, held, code)

    def _requeue(self, work: _Work, held: Iterable[Slice], code: int) -> None:
        spent = [piece for piece in held if piece.attempts >= _ATTEMPTS]
        fresh = [piece for piece in held if piece.attempts < _ATTEMPTS]
        work.pending.extendleft(reversed(fresh))
        self._lose(work, spent, code)
        self._feed(work)

    def _drop(self, lane: Lane) -> list[Slice]:
        """Closes a lane: from here on nothing writes to its buffers, here or there."""
        work = self._owner.pop(lane)
        work.lanes.remove(lane)
        if self._lanes.pop(lane.sock.fileno(), None) is not None:
            self._epoll.unregister(lane.sock)
        self._rails.count(work.op.segment, lane)
        held = lane.release()
        abort(lane.sock)
        return held

    def _check_silence(self, now: float) -> None:
        """Looks for rails and stores that say nothing."""
        self._check_at = now + self._check_every
        for lane in list(self._owner):
            # A lane asks to be woken for many bytes at once: few are no silence.
            if lane in self._owner and now - lane.last_progress >= self._check_every:
                self._step(lane, select.EPOLLIN, now)
        for work in list(self._works):
            if not work.left:
                continue
            if now - work.last_progress >= work.op.silence_s:
                self._give_up(work)
                continue
            for lane in [ln for ln in work.lanes if self._is_stalled(ln, now)]:
                self._move_away(work, lane, now)

    def _is_stalled(self, lane: Lane, now: float) -> bool:
        return bool(lane.held) and (
            now - lane.last_progress >= self._settings.rail_stall_s
        )

    def _move_away(self, work: _Work, lane: Lane, now: float) -> None:
        """A silent rail's requests go to a sibling that is alive or was not asked.

        A sibling proves that the store is alive; from then on this rail has the same
        patience once more, else a store that is slow on all rails would look like a
        broken one. When all are silent it is the store, and moving requests about
        would only lose what is on its way.
        """
        patience_s = self._settings.rail_stall_s
        has_other = bool(work.untried) or any(
            now - other.first_byte_at >= patience_s and not self._is_stalled(other, now)
            for other in work.lanes
            if other is not lane
        )
        if has_other and all(piece.attempts < _ATTEMPTS for piece in lane.held):
            work.blamed.add(lane.rail)
            self._pool.discard(work.op.segment.id, lane.address)
            self._requeue(work, self._drop(lane), Code.RPC_TIMEOUT)

    def _judge_blamed(self, work: _Work, sibling: Lane) -> None:
        """A sibling answered: in good time, then the silence was the rail's own."""
        answered_in_s = sibling.first_byte_at - sibling.opened_at
        if answered_in_s < self._settings.rail_stall_s:
            for rail in work.blamed:
                self._rails.failed(work.op.segment, rail, self._clock(), had_other=True)
        work.blamed.clear()

    def _give_up(self, work: _Work) -> None:
        """The whole store is silent and the caller has an alternative."""
        held = list(work.pending)
        work.pending.clear()
        now = self._clock()
        for lane in list(work.lanes):
            self._rails.failed(work.op.segment, lane.rail, now, had_other=True)
            self._pool.discard(work.op.segment.id, lane.address)
            held += self._drop(lane)
        work.untried.clear()
        work.reserve.clear()
        self._lose(work, held, Code.RPC_TIMEOUT)

    # The end.

    def _end(self) -> None:
        """Closes what is unfinished, keeps what is clean, names what is missing."""
        now = self._clock()
        cancelled = self._cancel is not None and self._cancel.is_set()
        for lane, work in list(self._owner.items()):
            if lane.is_clean:
                self._keep(lane, work, now)
                continue
            if self._is_stalled(lane, now) and not cancelled:
                self._rails.failed(work.op.segment, lane.rail, now, had_other=False)
                self._pool.discard(work.op.segment.id, lane.address)
            self._drop(lane)
        self._epoll.close()
        self._lanes.clear()
        for work in self._works:
            self.codes.update(dict.fromkeys(work.left, Code.RPC_TIMEOUT))
        for _op, bad in self._failed:
            self.codes.update(bad)
        self._failed.clear()
        # Lanes know their call and the call its lanes: callers' buffers would live on
        # until the collector finds the cycle.
        self._works.clear()

    def _keep(self, lane: Lane, work: _Work, now: float) -> None:
        del self._owner[lane]
        self._rails.count(work.op.segment, lane)
        if lane.bytes_in:
            self._rails.worked(work.op.segment, lane.rail, now)
        lane.release()
        self._pool.give(work.op.segment.id, lane.address, lane.sock)

"""The checker: operations and windows in, findings out. Pure.

The value of every write is its own, so a read tells which write it read from, and what
is wrong can be told key by key from what must have come before what. One operation
comes before another only when it ended before the other began; what overlapped may have
happened in any order, and what was never answered at any later time, or not at all.

Nothing is found that a correct cache could have shown. The converse does not hold: a
violation that nobody read is not seen.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chaos.correctness.findings import Finding, Kind
from chaos.correctness.laws import PRESSURE
from chaos.correctness.operation import NOT_ANSWERED
from chaos.systems.seen import Found, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chaos.correctness.laws import Laws
    from chaos.correctness.operation import Operation, Window

OK: Final = 0
_WITH_ITS_STORE: Final = -712
_ABSENT: Final = frozenset({-704, _WITH_ITS_STORE})
"""Not there, or gone with its store: a definite miss (Mooncake `types.h`)."""
_REFUSED: Final = frozenset({-10, -200, -400, -600, -601, -705, -1700})
"""A write with such an answer has done nothing, and will not."""
_OPEN: Final = frozenset({NOT_ANSWERED, -901, -9001})
"""No answer in time, of the system or of its client: it may have begun, and stay so."""
_HAS_LEASE: Final = -706
_LATE: Final = -707
_LEASES: Final = 3.0
"""A read may look a key up twice, and a busy machine may hold it up before."""
_SLACK_S: Final = 0.05
_SOON_S: Final = 0.5
"""Real seconds in which a removal may not be done yet that was acknowledged."""
_BEGINS_S: Final = 15.0
"""Real seconds in which the stores are back with a master that begins."""
_BY_FOUND: Final = {
    Found.ZEROS: Kind.ZEROS,
    Found.OTHER: Kind.OTHER_KEY,
    Found.TORN: Kind.TORN,
    Found.FOREIGN: Kind.FOREIGN,
}


def check(
    operations: Iterable[Operation], windows: Iterable[Window], laws: Laws
) -> list[Finding]:
    """Everything that no correct cache could have shown, in the order of the steps."""
    rows: dict[str, list[_Row]] = defaultdict(list)
    for operation in operations:
        for index, key in enumerate(operation.keys):
            rows[key].append(_Row(operation=operation, index=index))
    faults = tuple(windows)
    found = [
        finding
        for key, own in rows.items()
        for finding in _Key(key, own, faults, laws).findings()
    ]
    return sorted(found, key=lambda finding: finding.steps[-1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One key of one operation."""

    operation: Operation
    index: int

    @property
    def do(self) -> str:
        return self.operation.do

    @property
    def begin_s(self) -> float:
        return self.operation.begin_s

    @property
    def end_s(self) -> float:
        return self.operation.end_s

    @property
    def code(self) -> int:
        return self.operation.code(self.index)

    @property
    def step(self) -> int:
        return self.operation.step

    @property
    def value(self) -> int:
        return self.operation.value

    @property
    def seen(self) -> Seen:
        seen = self.operation.seen
        return seen[self.index] if self.index < len(seen) else Seen(code=self.code)

    @property
    def owners(self) -> tuple[str, ...]:
        owners = self.operation.owners
        return owners[self.index] if self.index < len(owners) else ()

    def before(self, other: _Row) -> bool:
        return self.end_s < other.begin_s

    @property
    def whole(self) -> bool:
        """A good read that gave a value of its key."""
        return self.do == "get" and self.code == OK and self.seen.found is Found.WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gone:
    """Proof that a key held no value but `but` at some moment of a row."""

    row: _Row
    kind: Kind
    words: str
    but: frozenset[int] = field(default_factory=frozenset)


class _Key:
    """Everything about one key."""

    def __init__(
        self,
        key: str,
        rows: Sequence[_Row],
        windows: Sequence[Window],
        laws: Laws,
    ) -> None:
        self._key = key
        self._rows = sorted(rows, key=lambda row: (row.begin_s, row.step))
        self._windows = windows
        self._laws = laws
        self._writes = [row for row in self._rows if _may_write(row)]
        self._gone = list(self._proofs())
        self._undefined_from_s = self._first_legal_end()

    def findings(self) -> Iterator[Finding]:
        yield from self._stale_ends()
        for row in self._rows:
            if row.do == "get" and row.code == OK:
                yield from self._of_read(row)
            elif row.do == "exists" and row.code == OK:
                yield from self._of_value(row, None)
        yield from self._losses()
        yield from self._unreadable()

    # -- reads ---------------------------------------------------------------------

    def _of_read(self, row: _Row) -> Iterator[Finding]:
        """A good read: whose bytes, are they still those of the key, in time?"""
        kind = _BY_FOUND.get(row.seen.found)
        if kind is not None and not self._undefined(row):
            name = f" of {row.seen.name}" if row.seen.name else ""
            yield self._finding(kind, f"a good read gave {kind.value}{name}", row)
        elif row.whole:
            yield from self._of_value(row, row.seen.variant)
        if self._too_late(row):
            took_s = _seconds(row.operation)
            words = f"took {took_s:.3f} s under a lease of {self._laws.lease_s:.3f} s"
            yield self._finding(Kind.LATE_READ, f"a good read {words}", row)

    def _of_value(self, row: _Row, value: int | None) -> Iterator[Finding]:
        """A value was there (None: some value): who wrote it, is it long gone?"""
        if self._undefined(row):
            return
        what = "the key" if value is None else f"value {value}"
        writes = [w for w in self._writes_of(value) if w.begin_s <= row.end_s]
        if not writes:
            yield self._finding(
                Kind.UNWRITTEN, f"{what} is there, nobody had written it", row
            )
            return
        for gone in reversed(self._gone):
            if gone.row.before(row) and self._contradicts(value, writes, gone):
                words = f"{what} is there again after {gone.words}"
                yield self._finding(gone.kind, words, gone.row, row)
                return

    def _contradicts(
        self, value: int | None, writes: Sequence[_Row], gone: _Gone
    ) -> bool:
        """Whether a value (None: some value) cannot have come after it was gone."""
        if value in gone.but:
            return False
        if value is None and (gone.but or gone.row.code == _WITH_ITS_STORE):
            return False  # the master may name what is gone until it notices
        return not any(self._may_follow(write, gone.row) for write in writes)

    def _may_follow(self, write: _Row, gone: _Row) -> bool:
        """Whether a write may have had its effect after the key was seen without.

        One that was not answered may still come, unless its value was read before.
        """
        if write.end_s < gone.begin_s and _acknowledged(write):
            return False
        if write.code not in (OK, *_REFUSED):
            reads = (row for row in self._rows if row.whole)
            return not any(
                row.seen.variant == write.value and row.before(gone) for row in reads
            )
        return True

    def _too_late(self, row: _Row) -> bool:
        """Whether its lease was over long ago, whatever it had to look up twice."""
        lease_s, operation = self._laws.lease_s, row.operation
        if not lease_s or operation.calls != 1:
            return False
        if any(
            not window.target.startswith("store") or window.kind in ("kill", "restart")
            for window in self._windows
            if window.kind != PRESSURE and window.meets(row.begin_s, row.end_s)
        ):
            return False
        return _seconds(operation) > _LEASES * lease_s + _SLACK_S

    # -- proofs that a value is gone -----------------------------------------------

    def _proofs(self) -> Iterator[_Gone]:
        for row in self._rows:
            if row.do == "remove" and row.code == OK:
                yield _Gone(row=row, kind=Kind.RESURRECTED, words="its removal")
            elif row.do in ("get", "exists", "remove") and row.code in _ABSENT:
                words = f"a miss ({row.code})"
                yield _Gone(row=row, kind=Kind.FLAP, words=words)
            elif row.whole:
                value = row.seen.variant
                yield _Gone(
                    row=row,
                    kind=Kind.STALE,
                    words=f"value {value} was read",
                    but=frozenset({value}),
                )
            elif _acknowledged(row) and not self._laws.keeps_old:
                yield _Gone(
                    row=row,
                    kind=Kind.STALE,
                    words=f"value {row.value} was written",
                    but=frozenset({row.value}),
                )

    # -- announced writes ----------------------------------------------------------

    def _stale_ends(self) -> Iterator[Finding]:
        for end, start, heir in self._ends():
            if heir is not None and end.code == OK:
                words = "the end of a write was accepted that another had replaced"
                yield self._finding(Kind.STALE_END, words, start, heir, end)

    def _ends(self) -> Iterator[tuple[_Row, _Row, _Row | None]]:
        """Each end, the announcement it belongs to, and who took the key over."""
        starts = {
            row.operation.name: row
            for row in self._rows
            if row.do == "announce" and row.code == OK
        }
        for end in self._rows:
            start = starts.get(end.operation.name) if end.do == "end" else None
            if start is None:
                continue
            heirs = [
                row
                for row in self._rows
                if row.do in ("announce", "put")
                and row.code == OK
                and start.before(row)
                and row.before(end)
            ]
            yield end, start, heirs[-1] if heirs else None

    def _first_legal_end(self) -> float:
        """From when on a write without bytes is complete: nothing is known then."""
        legal = [
            end.begin_s
            for end, _, heir in self._ends()
            if heir is None and end.code not in (*_ABSENT, *_REFUSED)
        ]
        return min(legal, default=float("inf"))

    def _undefined(self, row: _Row) -> bool:
        return row.end_s >= self._undefined_from_s

    # -- what was lost -------------------------------------------------------------

    def _losses(self) -> Iterator[Finding]:
        for row in self._rows:
            if not self._shows_absence(row):
                continue
            put = self._last_acknowledged(row)
            if put is None or self._lost_before(put, row) or self._is_back(row):
                continue
            if not self._may_be_lost(put, row):
                held = ", ".join(put.owners) or "nobody knows which store"
                how = "was replaced" if row.do == "put" else f"is gone ({row.code})"
                words = f"value {put.value} was acknowledged ({held}) and {how}"
                if self._never_told(row):
                    words = f"{words}, and was removed before it could be back"
                    yield self._finding(Kind.FLAP, words, put, row)
                else:
                    yield self._lost(Kind.ACK_LOSS, words, put, row)

    def _shows_absence(self, row: _Row) -> bool:
        """A definite miss, or a write that only a key without a value lets in."""
        if row.do == "put":
            return row.code == OK and not self._laws.keeps_old
        return row.do in ("get", "exists", "remove") and row.code in _ABSENT

    def _last_acknowledged(self, row: _Row) -> _Row | None:
        puts = [put for put in self._rows if _acknowledged(put) and put.before(row)]
        return max(puts, key=lambda put: put.end_s, default=None)

    def _lost_before(self, put: _Row, row: _Row) -> bool:
        """Whether an earlier miss has told it already."""
        return any(
            self._shows_absence(other)
            and put.before(other)
            and (other.begin_s, other.step) < (row.begin_s, row.step)
            for other in self._rows
        )

    def _never_told(self, miss: _Row) -> bool:
        """Whether it may have been away for a moment only, as a master began.

        It was removed later, without another value in between, and nobody had looked
        again when it must be back.
        """
        began = any(
            miss.begin_s - _BEGINS_S <= edge_s <= miss.end_s
            for window in self._windows
            if not window.target.startswith("store") and window.kind != PRESSURE
            for edge_s in (window.begin_s, window.end_s)
        )
        removed_s = [
            row.begin_s
            for row in self._rows
            if row.do == "remove"
            and row.code not in (_HAS_LEASE, *_ABSENT)
            and miss.before(row)
            and not any(
                look.whole and miss.before(look) and look.before(row)
                for look in self._rows
            )
        ]
        return (
            began
            and bool(removed_s)
            and not any(
                miss.end_s + _BEGINS_S <= row.begin_s < min(removed_s)
                for row in self._rows
                if self._shows_absence(row)
            )
        )

    def _is_back(self, miss: _Row) -> bool:
        """Whether a later look proves a flap: it was there again, and so is not lost.

        What is said here is found by `_of_value`, of that look.
        """
        gone = next((gone for gone in self._gone if gone.row is miss), None)
        return gone is not None and any(
            miss.before(row) and self._disproves(row, gone) for row in self._rows
        )

    def _disproves(self, row: _Row, gone: _Gone) -> bool:
        """Whether a good look cannot be, a key being gone before."""
        if not (row.whole or (row.do == "exists" and row.code == OK)):
            return False
        value = row.seen.variant if row.whole else None
        writes = [w for w in self._writes_of(value) if w.begin_s <= row.end_s]
        if not writes or self._undefined(row):
            return False
        return self._contradicts(value, writes, gone)

    def _may_be_lost(self, put: _Row, row: _Row) -> bool:
        """Whether something between a write and a miss may have taken the value.

        A removal without a clear answer may have its effect long after.
        """
        begin_s, end_s = put.begin_s, row.end_s
        removed = any(
            other.do == "remove"
            and other.code not in (_HAS_LEASE, *_ABSENT)
            and other.begin_s <= end_s
            and (other.code != OK or begin_s <= other.end_s)
            for other in self._rows
        )
        return removed or self._holders_failed(put, begin_s, end_s)

    def _holders_failed(self, put: _Row, begin_s: float, end_s: float) -> bool:
        """Whether each store that held it failed, or what knows about all of them."""
        hit = {
            window.target
            for window in self._windows
            if self._laws.may_lose(window.kind, window.target)
            and window.meets(begin_s - self._laws.tail_s, end_s)
        }
        stores = {role for role in hit if role.startswith("store")}
        if hit - stores:
            return True
        if not put.owners:
            return bool(stores)
        return all(owner in stores for owner in put.owners)

    def _unreadable(self) -> Iterator[Finding]:
        """Reads after everything had healed, of what nothing could have taken."""
        known = (OK, NOT_ANSWERED, _LATE, *_ABSENT)
        for row in self._rows:
            if row.do != "get" or not row.operation.quiet or row.code in known:
                continue
            put = self._last_acknowledged(row)
            if put is None or self._undefined(row) or self._may_be_lost(put, row):
                continue
            words = f"value {put.value} was acknowledged and cannot be read"
            yield self._lost(Kind.UNREADABLE, f"{words} ({row.code})", put, row)
            return

    def _lost(self, kind: Kind, words: str, put: _Row, row: _Row) -> Finding:
        """What was lost; of kinds of their own are two ways in which it never was."""
        if (other := self._open_beside(put, row)) is not None:
            told = f"{words}, beside a write that was not answered"
            return self._finding(Kind.UNFINISHED, told, other, put, row)
        removal = self._removed_just_before(put, row)
        if kind is Kind.ACK_LOSS and removal is not None:
            told = f"{words}, written right after its removal"
            return self._finding(Kind.REMOVED_LATE, told, removal, put, row)
        return self._finding(kind, words, put, row)

    def _removed_just_before(self, put: _Row, row: _Row) -> _Row | None:
        """A removal that may have taken what the system found there for the write.

        It was soon over: a key that is there later was written.
        """
        if not self._laws.logs_removals or self._seen_between(put, row):
            return None
        for each in self._rows:
            soon = each.before(put) and put.begin_s - each.end_s <= _SOON_S
            if each.do != "remove" or each.code != OK or not soon:
                continue
            stayed = any(
                look.do == "exists"
                and look.code == OK
                and each.end_s + _SOON_S < look.begin_s
                and put.before(look)
                and look.before(row)
                for look in self._rows
            )
            return None if stayed else each
        return None

    def _open_beside(self, put: _Row, row: _Row) -> _Row | None:
        """A write that the system may have taken for a value when it acknowledged one.

        It began before and nobody was told its end, its value was never seen and never
        removed; and of what was acknowledged nothing was ever seen either.
        """
        if not self._laws.keeps_old or self._seen_between(put, row):
            return None
        for other in self._writes:
            if (
                other.code in _OPEN
                and other.begin_s <= put.end_s
                and row.begin_s - other.begin_s <= self._laws.open_s
                and not any(
                    each.whole and each.seen.variant == other.value
                    for each in self._rows
                )
                and not any(
                    each.do == "remove"
                    and each.code == OK
                    and other.begin_s <= each.end_s
                    and each.begin_s <= put.begin_s
                    for each in self._rows
                )
            ):
                return other
        return None

    def _seen_between(self, put: _Row, row: _Row) -> bool:
        return any(
            each.whole and put.end_s <= each.end_s and each.begin_s <= row.end_s
            for each in self._rows
        )

    # -- words ---------------------------------------------------------------------

    def _writes_of(self, value: int | None) -> list[_Row]:
        return [row for row in self._writes if value in (None, row.value)]

    def _finding(self, kind: Kind, why: str, *rows: _Row) -> Finding:
        last = rows[-1].operation
        path = f" by {last.path}" if last.path else ""
        return Finding(
            kind=kind,
            key=self._key,
            why=f"{why} ({last.client}{path})",
            steps=tuple(row.step for row in rows),
        )


def _seconds(operation: Operation) -> float:
    """How long a read was in the system's client; all of its time if nobody knows."""
    return operation.took_s or operation.end_s - operation.begin_s


def _acknowledged(row: _Row) -> bool:
    return row.do == "put" and row.code == OK


def _may_write(row: _Row) -> bool:
    """A write that was not refused: it has happened, or may have."""
    return row.do == "put" and row.code not in _REFUSED

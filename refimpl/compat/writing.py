"""The write calls of upstream's client.

Putting a key that exists is success and keeps the old bytes. An upsert replaces them:
the old object is removed, then the new one put, so that for a moment nobody finds the
key (upstream's objects are not readable meanwhile either), and a failed upsert leaves
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from refimpl.compat.config import ReplicateConfig
from refimpl.compat.reading import at_offsets
from refimpl.core.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from refimpl.compat.connected import Connected
    from refimpl.compat.read_sessions import Pieces

_BAD: Final = int(Code.INVALID_PARAMS)
_COPIED_AT_ONCE: Final = 64 << 20
"""Bytes of objects that are gathered from several buffers before they are written."""

Parts = tuple[memoryview, ...]
"""What an object is made of, in order."""


class Writing:
    """Calls that write; `_now` is what `setup` made, or None."""

    _now: Connected | None = None

    # Values that are copied: upstream takes room for them from the local buffer.

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Writes an object. An existing one keeps its bytes: 0 as well."""
        return self._copied([key], [(flat(value),)], config, upsert=False)

    def put_parts(
        self, key: str, *args: Any, config: ReplicateConfig | None = None
    ) -> int:
        """Writes one object out of parts. No bytes: 0, and nothing is."""
        return self._of_parts(key, args, config, upsert=False)

    def put_batch(
        self,
        keys: list[str],
        values: list[Any],
        config: ReplicateConfig | None = None,
    ) -> int:
        """Writes objects; 0, or the first bad code of one of them."""
        wanted = [(flat(value),) for value in values]
        return self._copied(keys, wanted, config, upsert=False)

    def upsert(
        self, key: str, value: Any, config: ReplicateConfig | None = None
    ) -> int:
        """Writes an object, or replaces it."""
        return self._copied([key], [(flat(value),)], config, upsert=True)

    def upsert_parts(
        self, key: str, *args: Any, config: ReplicateConfig | None = None
    ) -> int:
        """Writes one object out of parts, or replaces it. No bytes: 0, untouched."""
        return self._of_parts(key, args, config, upsert=True)

    def upsert_batch(
        self,
        keys: list[str],
        values: list[Any],
        config: ReplicateConfig | None = None,
    ) -> int:
        """Writes objects, or replaces them."""
        wanted = [(flat(value),) for value in values]
        return self._copied(keys, wanted, config, upsert=True)

    # Registered memory.

    def put_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Writes an object from registered memory. No bytes: 0, and nothing is."""
        if size == 0 and self._now is not None:
            return 0
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Writes metadata, then data, as one object."""
        if size == 0 and self._now is not None:
            return 0
        ptrs, sizes = [metadata_buffer_ptr, buffer_ptr], [metadata_size, size]
        return self.batch_put_from_multi_buffers([key], [ptrs], [sizes], config)[0]

    def batch_put_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Writes objects from registered memory; a code each."""
        return self._from_memory(keys, buffer_ptrs, sizes, config, upsert=False)

    def upsert_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Writes an object from registered memory, or replaces it."""
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def batch_upsert_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Writes objects from registered memory, or replaces them; a code each."""
        return self._from_memory(keys, buffer_ptrs, sizes, config, upsert=True)

    def batch_put_from_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Writes each object out of several buffers; a code each."""
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes):
            return [_BAD] * len(keys)
        rows = zip(all_buffer_ptrs, all_sizes, strict=True)
        wanted = [self._parts_of(ptrs, sizes) for ptrs, sizes in rows]
        return self._write(keys, wanted, config, upsert=False, same_node=True)

    # Sessions.

    def batch_put_session_start(
        self,
        keys: list[str],
        sizes: list[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Takes places for objects; a code each."""
        chosen = config or ReplicateConfig()
        refused = _refused(chosen, len(keys)) or len(keys) != len(sizes)
        if self._now is None or refused:
            return [_BAD] * len(keys)
        return self._now.put_sessions.start(keys, sizes, chosen)

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_dst_offsets: list[list[int]],
    ) -> list[int]:
        """Gives ranges of objects with a session; bytes in all or a code each."""
        now = self._now
        lists = (all_buffer_ptrs, all_sizes, all_dst_offsets)
        if now is None or any(len(one) != len(keys) for one in lists):
            return [_BAD] * len(keys)
        pieces: list[Pieces | None] = [
            at_offsets(now.memory, *row) for row in zip(*lists, strict=True)
        ]
        return now.put_sessions.write(keys, pieces)

    def batch_put_session_end(self, keys: list[str]) -> list[int]:
        """Makes objects readable; a code each."""
        if self._now is None:
            return [_BAD] * len(keys)
        return self._now.put_sessions.end(keys)

    def batch_put_session_revoke(self, keys: list[str]) -> list[int]:
        """Gives objects up; a code each."""
        if self._now is None:
            return [_BAD] * len(keys)
        return self._now.put_sessions.revoke(keys)

    # Privately.

    def _copied(
        self,
        keys: Sequence[str],
        wanted: Sequence[Parts],
        config: ReplicateConfig | None,
        *,
        upsert: bool,
    ) -> int:
        """Writes values that the local buffer has room for; one code for all."""
        now = self._now
        if now is None or len(keys) != len(wanted):
            return _BAD
        if not keys:
            return 0
        total = sum(len(part) for parts in wanted for part in parts)
        with now.buffer.lent(total) as taken:
            if not taken:
                return _BAD
            codes = self._write(keys, wanted, config, upsert=upsert)
        return next((code for code in codes if code != Code.OK), 0)

    def _of_parts(
        self,
        key: str,
        values: Sequence[Any],
        config: ReplicateConfig | None,
        *,
        upsert: bool,
    ) -> int:
        parts = tuple(map(flat, values))
        if self._now is not None and not any(map(len, parts)):
            return 0
        return self._copied([key], [parts], config, upsert=upsert)

    def _from_memory(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None,
        *,
        upsert: bool,
    ) -> list[int]:
        if not len(keys) == len(ptrs) == len(sizes):
            return [_BAD] * len(keys)
        rows = zip(ptrs, sizes, strict=True)
        wanted = [self._parts_of([pointer], [size]) for pointer, size in rows]
        return self._write(keys, wanted, config, upsert=upsert)

    def _parts_of(self, ptrs: Sequence[int], sizes: Sequence[int]) -> Parts:
        """Registered memory; () when some of it is not."""
        if self._now is None or len(ptrs) != len(sizes):
            return ()
        rows = zip(ptrs, sizes, strict=True)
        views = [self._now.memory.view(pointer, size) for pointer, size in rows]
        parts = tuple(view for view in views if view is not None)
        return parts if len(parts) == len(views) else ()

    def _write(
        self,
        keys: Sequence[str],
        wanted: Sequence[Parts],
        config: ReplicateConfig | None,
        *,
        upsert: bool,
        same_node: bool = False,
    ) -> list[int]:
        """Writes objects; INVALID_PARAMS for those without a name or without bytes.

        `prefer_alloc_in_same_node` is refused unless `same_node`, as upstream does; an
        object is in one segment here anyway.
        """
        now, chosen = self._now, config or ReplicateConfig()
        codes = [_BAD] * len(keys)
        elsewhere = chosen.prefer_alloc_in_same_node and not same_node
        if now is None or elsewhere or _refused(chosen, len(keys)):
            return codes
        good = [
            row for row, key in enumerate(keys) if key and any(map(len, wanted[row]))
        ]
        for rows in _some(good, lambda row: _copied_bytes(wanted[row])):
            names = [keys[row] for row in rows]
            if upsert:
                # By force: who holds a lease keeps reading the old bytes until it ends.
                now.link.remove(names, force=True)
            values = [joined(wanted[row]) for row in rows]
            for row, code in zip(
                rows, now.link.put(names, values, chosen), strict=True
            ):
                codes[row] = code
        return codes


def flat(value: Any) -> memoryview:
    """A value as bytes without a copy.

    Raises:
        TypeError: it has no buffer, or is not contiguous.
    """
    view = memoryview(value)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def joined(parts: Parts) -> memoryview | bytes:
    """The bytes of an object: its one part, or a copy of all."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _copied_bytes(parts: Parts) -> int:
    return 0 if len(parts) == 1 else sum(map(len, parts))


def _some(rows: Sequence[int], weight: Callable[[int], int]) -> Iterator[list[int]]:
    """Rows in groups that are copied at once, one row at least."""
    group: list[int] = []
    total = 0
    for row in rows:
        if group and total + weight(row) > _COPIED_AT_ONCE:
            yield group
            group, total = [], 0
        group.append(row)
        total += weight(row)
    if group:
        yield group


def _refused(config: ReplicateConfig, count: int) -> bool:
    """Whether nothing of this batch can be written as asked."""
    groups = config.group_ids
    unmatched = groups is not None and len(groups) != count
    return unmatched or config.refusal() != Code.OK

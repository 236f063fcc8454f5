"""A client of a schedule: its probe, and one call at a time on a thread of its own.

A call that never comes back hangs its thread and nothing else: the client goes on with
a new probe, and the operation stays without an end.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaos.errors import NotHere
from chaos.systems.seen import Found, SeeingProbe, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.systems.base import KvProbe

OK: Final = 0
THREADS: Final = "correctness-"
_BATCH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call came to; `codes` in the order of the keys, empty when it broke.

    `took_s` is the time in the system's client where it matters, 0 elsewhere: without
    that of a client that had to start first.
    """

    codes: tuple[int, ...] = ()
    seen: tuple[Seen, ...] = ()
    owners: tuple[tuple[str, ...], ...] = ()
    calls: int = 1
    took_s: float = 0.0
    token: int = 0
    error: str = ""


class Call:
    """One call on a daemon thread; `done` is called there, once, with its answer."""

    def __init__(
        self, name: str, act: Callable[[], Answer], done: Callable[[Answer], None]
    ) -> None:
        self._act = act
        self._done = done
        self._thread = threading.Thread(
            target=self._body, name=f"{THREADS}{name}", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _body(self) -> None:
        try:
            answer = self._act()
        except NotHere as error:
            answer = Answer(error=f"not here: {error.reason}")
        except Exception as error:  # nobody knows what became of it: it is recorded
            answer = Answer(error=f"{type(error).__name__}: {error}"[:200])
        self._done(answer)


class Client:
    """The calls of one client. Keys are those of the schedule; `prefix` makes names."""

    def __init__(
        self,
        name: str,
        make: Callable[[], KvProbe],
        *,
        prefix: str,
        size_bytes: int,
        among: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._clock = clock
        self.call: Call | None = None
        self._make = make
        self._prefix = prefix
        self._size = size_bytes
        self._among = [f"{prefix}{key}" for key in among]
        self._probe: KvProbe | None = None

    def begin(self, act: Callable[[], Answer], done: Callable[[Answer], None]) -> Call:
        """Begins a call; the one before must have ended or been given up."""
        self.call = Call(self.name, act, done)
        return self.call

    def renew(self, *, hung: bool = False) -> None:
        """Forgets everything: the next call has a probe that knows nothing.

        The probe of a hung call is left alone: it may be in use.
        """
        probe, self._probe, self.call = self._probe, None, None
        if probe is not None and not hung:
            probe.close()

    def put(
        self, keys: Sequence[str], value: int, timeout_s: float, *, owners: bool
    ) -> Answer:
        """Writes; where all is good, looks up which stores have it, if asked to."""
        names, probe = self._names(keys), self._here()
        codes = probe.write(
            names, size_bytes=self._size, timeout_s=timeout_s, variant=value
        )
        held: list[tuple[str, ...]] = []
        if owners and any(code == OK for code in codes):
            held = _owners(probe, names, timeout_s)
        return Answer(codes=tuple(codes), owners=tuple(held))

    def get(self, keys: Sequence[str], path: str, timeout_s: float) -> Answer:
        """Reads, and says whose bytes they were."""
        probe = self._here()
        if not isinstance(probe, SeeingProbe):
            raise NotHere(capability="read_by", target="", reason="no seeing probe")
        join = getattr(probe, "join", None)  # of clients that are processes
        if join is not None:
            join()
        begin_s = self._clock()
        seen = probe.read_by(
            path,
            self._names(keys),
            size_bytes=self._size,
            timeout_s=timeout_s,
            among=self._among,
        )
        took_s = self._clock() - begin_s
        # Whether ranges and sessions look up once for all keys is the system's affair.
        calls = 1 if path == "batched" else len(keys)
        return Answer(
            codes=tuple(one.code for one in seen),
            seen=tuple(self._told(one) for one in seen),
            calls=calls,
            took_s=took_s,
        )

    def exists(self, keys: Sequence[str], timeout_s: float) -> Answer:
        """0 there, -704 not."""
        codes = self._here().exists(self._names(keys), timeout_s=timeout_s)
        return Answer(codes=tuple(codes))

    def remove(self, keys: Sequence[str], timeout_s: float) -> Answer:
        codes = self._here().remove(self._names(keys), timeout_s=timeout_s)
        return Answer(codes=tuple(codes))

    def announce(self, key: str, timeout_s: float) -> Answer:
        (name,) = self._names([key])
        code, token = self._here().start_write(
            name, size_bytes=self._size, timeout_s=timeout_s
        )
        return Answer(codes=(code,), token=token)

    def end(self, key: str, token: int, timeout_s: float) -> Answer:
        (name,) = self._names([key])
        return Answer(codes=(self._here().end_write(name, token, timeout_s=timeout_s),))

    def fill(self, count: int, label: str, timeout_s: float) -> Answer:
        """Writes so many objects of no interest; errors are of no interest either."""
        names = [f"{self._prefix}{label}-{number}" for number in range(count)]
        for at in range(0, count, _BATCH):
            part = names[at : at + _BATCH]
            self._here().write(part, size_bytes=self._size, timeout_s=timeout_s)
        return Answer(codes=(OK,))

    def owners(self, key: str, timeout_s: float) -> tuple[str, ...]:
        """The stores that have a key now; () when that cannot be told."""
        held = _owners(self._here(), self._names([key]), timeout_s)
        return held[0] if held else ()

    def paths(self) -> list[str]:
        """The ways of reading that there are."""
        probe = self._here()
        return probe.read_paths() if isinstance(probe, SeeingProbe) else []

    def _here(self) -> KvProbe:
        if self._probe is None:
            self._probe = self._make()
        return self._probe

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [f"{self._prefix}{key}" for key in keys]

    def _told(self, seen: Seen) -> Seen:
        """With the key of the schedule in place of its name."""
        if seen.found is not Found.OTHER:
            return seen
        return Seen(
            code=seen.code,
            found=seen.found,
            variant=seen.variant,
            name=seen.name.removeprefix(self._prefix),
        )


def _owners(
    probe: KvProbe, names: Sequence[str], timeout_s: float
) -> list[tuple[str, ...]]:
    """Which stores hold the names; nothing where the master does not answer."""
    try:
        return probe.owners(names, timeout_s=timeout_s)
    except Exception:  # unknown owners make the checker lenient, never wrong
        return []

"""Random schedules from a seed: traffic of several clients around phrases of faults.

A phrase is a short sequence that makes sense by itself: something is broken, clients go
on, it is healed, somebody who knows nothing looks. Between its steps there is traffic.
Every write of a key has a value of its own, so that a read tells which write it saw.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chaos.correctness.schedule import Do, Schedule, Step

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

FIRST_VALUE: Final = 1
_VALUES: Final = 255
_KEYS_AT_ONCE: Final = 4
_ELECTION_S: Final = 4.0
_LOOKS: Final = 10
_TRAFFIC: Final = (
    (Do.PUT, 6),
    (Do.GET, 6),
    (Do.EXISTS, 2),
    (Do.REMOVE, 2),
    (Do.FRESH, 1),
    (Do.WAIT, 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """From what schedules are drawn. Times are the system's own seconds.

    `phrases` are names with their weights, `paths` the ways of reading, `waits_s` how
    long something is broken: shorter and longer than the pool's patience. `fill_count`
    objects of `size_bytes` fill the pool. `slow_kb_per_s` is real: a link so slow that
    the read of one value outlasts its lease by far.
    """

    system: str = "refimpl"
    target: str = "local"
    time_scale: float = 0.1
    clients: int = 3
    keys: int = 8
    size_bytes: int = 16 << 10
    steps: int = 40
    stores: int = 3
    masters: tuple[str, ...] = ("master",)
    others: tuple[str, ...] = ()
    paths: tuple[str, ...] = ("plain", "batched")
    phrases: Mapping[str, int] = field(default_factory=dict)
    waits_s: tuple[float, ...] = (1.0, 5.0, 13.0)
    lease_s: float = 10.0
    discard_s: float = 30.0
    timeout_s: float = 20.0
    slow_timeout_s: float = 100.0
    slow_kb_per_s: int = 8
    fill_count: int = 0
    master_share: float = 0.25
    shape: Mapping[str, Any] = field(default_factory=dict)


def draw(dice: random.Random, space: Space, name: str, seed: int = 0) -> Schedule:
    """A schedule; the same dice give the same one."""
    return Schedule(
        name=name,
        system=space.system,
        target=space.target,
        seed=seed,
        time_scale=space.time_scale,
        size_bytes=space.size_bytes,
        timeout=space.timeout_s,
        shape=dict(space.shape),
        steps=tuple(_Drawing(dice, space).steps()),
    )


class _Drawing:
    """One schedule being drawn: which values were used, how many phrases there are."""

    def __init__(self, dice: random.Random, space: Space) -> None:
        self._dice = dice
        self._space = space
        self._keys = [f"k{number}" for number in range(space.keys)]
        self._clients = [f"c{number}" for number in range(space.clients)]
        self._value = itertools.count(FIRST_VALUE)
        self._labels = itertools.count(1)

    def steps(self) -> Iterator[Step]:
        """Puts, then traffic with phrases in it, until there are enough steps."""
        space, made = self._space, 0
        for step in self._everything():
            made += 1
            yield step
        while made < space.steps:
            for step in self._piece():
                made += 1
                yield step

    def _everything(self) -> Iterator[Step]:
        """Puts of every key; those that are still there refuse, or keep their value."""
        for start in range(0, len(self._keys), _KEYS_AT_ONCE):
            keys = self._keys[start : start + _KEYS_AT_ONCE]
            yield self._put(tuple(keys))

    def _piece(self) -> Iterator[Step]:
        """A few steps of traffic, or a phrase with traffic in its middle."""
        phrases = self._space.phrases
        if not phrases or self._dice.random() < 0.4:
            yield from self._traffic(self._dice.randint(2, 5))
            return
        (name,) = self._dice.choices(list(phrases), list(phrases.values()))
        yield from self._phrases[name]()

    @property
    def _phrases(self) -> Mapping[str, Callable[[], Iterator[Step]]]:
        return {
            "kill": self._kill,
            "restart": self._restart,
            "pause": self._pause,
            "partition": self._partition,
            "slow": self._slow,
            "corrupt": self._corrupt,
            "announce": self._announce,
            "failover": self._failover,
            "sleep": self._sleep,
            "watch": self._watch,
            "fill": self._fill,
        }

    # -- traffic -------------------------------------------------------------------

    def _traffic(self, count: int) -> Iterator[Step]:
        for _ in range(count):
            yield from self._one()

    def _one(self) -> Iterator[Step]:
        """One step of a client; a removal is often followed by another value."""
        (do,) = self._dice.choices(
            [do for do, _ in _TRAFFIC], [weight for _, weight in _TRAFFIC]
        )
        keys = self._some_keys()
        if do is Do.PUT:
            yield self._put(keys)
        elif do is Do.GET:
            yield self._get(keys)
        elif do is Do.REMOVE:
            yield Step(do=do, by=self._client(), keys=keys)
            if self._dice.random() < 0.7:
                yield self._put(keys)
        elif do is Do.WAIT:
            yield self._wait(self._dice.choice((0.5, 1.0, 1.1 * self._space.lease_s)))
        elif do is Do.FRESH:
            yield Step(do=do, by=self._client())
        else:
            yield Step(do=do, by=self._client(), keys=keys)

    def _put(self, keys: tuple[str, ...], by: str = "") -> Step:
        value = next(self._value) % _VALUES + FIRST_VALUE - 1
        later = not by and self._dice.random() < 0.1
        return Step(
            do=Do.PUT,
            by=by or self._client(),
            keys=keys,
            value=value,
            background=later,
        )

    def _get(self, keys: tuple[str, ...], by: str = "") -> Step:
        later = not by and self._dice.random() < 0.1
        return Step(
            do=Do.GET,
            by=by or self._client(),
            keys=keys,
            path=self._path(),
            background=later,
        )

    def _look_anew(self) -> Iterator[Step]:
        """A client forgets what it knows and reads everything."""
        who = self._client()
        yield Step(do=Do.FRESH, by=who)
        yield self._get(tuple(self._keys), by=who)

    # -- phrases -------------------------------------------------------------------

    def _kill(self) -> Iterator[Step]:
        """A role dies, and comes back after a while, soon or late."""
        yield from self._broken("kill", self._role())

    def _pause(self) -> Iterator[Step]:
        yield from self._broken("pause", self._role(also_others=True))

    def _partition(self) -> Iterator[Step]:
        """A store is cut off, wholly or on one plane; somebody wants what it has."""
        plane = self._dice.choice(("", "", "data", "heartbeat"))
        if plane != "data":
            more = {"plane": plane} if plane else {}
            yield from self._broken("partition", self._store(), more)
            return
        key, who = self._key(), self._client()
        yield self._put((key,), by=who)
        first, *rest = self._broken("partition", f"holder {key}", {"plane": plane})
        yield first
        yield self._get((key,), by=who)
        yield from rest

    def _broken(
        self, fault: str, target: str, parameters: Mapping[str, Any] | None = None
    ) -> Iterator[Step]:
        """Broken, traffic and a wait shorter or longer than the pool's patience."""
        label = f"f{next(self._labels)}"
        yield Step(
            do=Do.BREAK,
            fault=fault,
            target=target,
            name=label,
            parameters=dict(parameters or {}),
        )
        yield from self._traffic(self._dice.randint(1, 3))
        yield self._wait(self._dice.choice(self._space.waits_s))
        yield from self._traffic(self._dice.randint(0, 2))
        yield Step(do=Do.HEAL, name=label)
        yield from self._traffic(self._dice.randint(0, 2))
        yield from self._look_anew()
        if self._dice.random() < 0.5:
            yield from self._everything()

    def _restart(self) -> Iterator[Step]:
        """A role is another one at once, and others go on with what they knew."""
        orderly = {"orderly": True} if self._dice.random() < 0.2 else {}
        target = self._role()
        yield Step(do=Do.BREAK, fault="restart", target=target, parameters=orderly)
        if self._dice.random() < 0.6:
            yield self._wait(self._dice.choice((0.5, 2.0)))
        if self._dice.random() < 0.5:
            yield self._put(self._some_keys())
        yield from self._look_anew()
        if self._dice.random() < 0.5:
            yield self._wait(2.0)
            yield from self._everything()
            yield from self._look_anew()
        yield from self._traffic(self._dice.randint(0, 2))

    def _failover(self) -> Iterator[Step]:
        """A leader, or what it needs, is away for long; then its heir dies as well.

        What was written between must be known to the next one, at once and for good; a
        removal is over before, so that it cannot be what took the write.
        """
        away, dead = f"f{next(self._labels)}", f"f{next(self._labels)}"
        target = self._dice.choice((*self._space.masters, *self._space.others))
        yield Step(do=Do.BREAK, fault="pause", target=target, name=away)
        yield from self._traffic(2)
        yield self._wait(max(self._space.waits_s))
        yield Step(do=Do.HEAL, name=away)
        yield self._wait(2.0)
        keys = tuple(self._keys[: len(self._keys) // 2])
        yield Step(do=Do.REMOVE, by=self._client(), keys=keys)
        yield self._wait(1.0)
        yield self._put(keys, by=self._client())
        heir = self._dice.choice(self._space.masters)
        yield Step(do=Do.BREAK, fault="kill", target=heir, name=dead)
        yield self._wait(_ELECTION_S)
        who = self._client()
        for _ in range(_LOOKS):
            yield Step(do=Do.EXISTS, by=who, keys=tuple(self._keys))
            yield self._wait(0.4)
        yield Step(do=Do.HEAL, name=dead)
        yield from self._look_anew()

    def _sleep(self) -> Iterator[Step]:
        """A leader sleeps while a client waits for it, and wakes beside its heir.

        Nobody else writes meanwhile: what it does as it wakes and what the heir does
        next take the same place in the log. All is written anew, then the heir dies.
        """
        label, who = f"f{next(self._labels)}", self._client()
        leader = self._dice.choice(self._space.masters)
        keys = self._some_keys()
        yield self._put(keys, by=who)
        yield Step(do=Do.BREAK, fault="pause", target=leader, name=label)
        yield Step(do=Do.REMOVE, by=who, keys=keys[:1], background=True)
        yield self._wait(max(self._space.waits_s))
        yield Step(do=Do.HEAL, name=label)
        yield self._wait(2.0)
        yield from self._everything()
        yield from self._watch()
        yield from self._look_anew()

    def _watch(self) -> Iterator[Step]:
        """A leader dies, and somebody looks again and again while its heir begins."""
        dead, who = f"f{next(self._labels)}", self._client()
        heir = self._dice.choice(self._space.masters)
        keys, long_s = tuple(self._keys), 2 * _ELECTION_S
        yield Step(do=Do.BREAK, fault="kill", target=heir, name=dead)
        yield Step(do=Do.EXISTS, by=who, keys=keys, seconds=long_s)
        yield Step(do=Do.HEAL, name=dead)

    def _slow(self) -> Iterator[Step]:
        """The store of a key has a slow link: a read of it outlasts its lease."""
        label, key = f"f{next(self._labels)}", self._key()
        who = self._client()
        yield self._put((key,), by=who)
        yield Step(
            do=Do.BREAK,
            fault="bandwidth",
            target=f"holder {key}",
            name=label,
            parameters={"kb_per_s": self._space.slow_kb_per_s},
        )
        yield Step(
            do=Do.GET,
            by=who,
            keys=(key,),
            path=self._path(),
            timeout=self._space.slow_timeout_s,
        )
        yield Step(do=Do.HEAL, name=label)

    def _corrupt(self) -> Iterator[Step]:
        """The store of a key flips bits in what it sends."""
        label, key = f"f{next(self._labels)}", self._key()
        who = self._client()
        yield self._put((key,), by=who)
        yield Step(
            do=Do.BREAK,
            fault="failpoint",
            target=f"holder {key}",
            name=label,
            parameters={"name": "store.corrupt", "spec": "on"},
        )
        yield self._get((key,), by=who)
        yield Step(do=Do.HEAL, name=label)

    def _announce(self) -> Iterator[Step]:
        """A writer is held up until another has taken its key over."""
        first, second = f"a{next(self._labels)}", f"a{next(self._labels)}"
        key = f"x{next(self._labels)}"
        by, heir = self._client(), self._client()
        yield Step(do=Do.ANNOUNCE, by=by, keys=(key,), name=first)
        yield from self._traffic(1)
        yield self._wait(1.2 * self._space.discard_s)
        yield Step(do=Do.ANNOUNCE, by=heir, keys=(key,), name=second)
        yield Step(do=Do.END, by=by, name=first)
        yield Step(do=Do.EXISTS, by=heir, keys=(key,))

    def _fill(self) -> Iterator[Step]:
        """So much is written that something has to go."""
        yield Step(do=Do.FILL, by=self._client(), count=self._space.fill_count)
        yield from self._look_anew()

    # -- choices -------------------------------------------------------------------

    def _wait(self, seconds: float) -> Step:
        return Step(do=Do.WAIT, seconds=round(seconds, 2))

    def _client(self) -> str:
        return self._dice.choice(self._clients)

    def _key(self) -> str:
        return self._dice.choice(self._keys)

    def _path(self) -> str:
        return self._dice.choice(self._space.paths)

    def _some_keys(self) -> tuple[str, ...]:
        count = self._dice.randint(1, min(_KEYS_AT_ONCE, len(self._keys)))
        return tuple(sorted(self._dice.sample(self._keys, count)))

    def _store(self) -> str:
        return f"store-{self._dice.randrange(self._space.stores)}"

    def _role(self, *, also_others: bool = False) -> str:
        """Mostly a store, now and then a master or what masters need."""
        others = (*self._space.masters, *(self._space.others if also_others else ()))
        if others and self._dice.random() < self._space.master_share:
            return self._dice.choice(others)
        return self._store()

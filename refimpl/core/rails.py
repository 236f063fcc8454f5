"""Rails: which NIC carries a transfer, and which one is left alone (facts 4.2-4.4)."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from refimpl.core.scaling import scale

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

WILDCARD = "*"
ERR_DEVICE_NOT_FOUND = -6
ERR_MALFORMED_JSON = -103


class TopologyError(ValueError):
    """The topology cannot be used; `code` is the transfer engine's own number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """NICs of one storage location: near ones first, the others behind."""

    preferred: tuple[str, ...] = ()
    available: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Preferred first, then available: the order of retries."""
        return self.preferred + self.available


class Topology:
    """Storage locations and their NICs, with an index per NIC that never changes."""

    def __init__(self, locations: Mapping[str, Choices]) -> None:
        self._locations = dict(locations)
        names = dict.fromkeys(n for c in self._locations.values() for n in c.all)
        self.devices: tuple[str, ...] = tuple(names)
        self._index = {name: i for i, name in enumerate(self.devices)}
        if self.devices and WILDCARD not in self._locations:
            self._locations[WILDCARD] = Choices(preferred=self.devices)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads `{"cpu:0": [[preferred...], [available...]], ...}`.

        Raises:
            TopologyError: any other shape (ERR_MALFORMED_JSON).
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise TopologyError(ERR_MALFORMED_JSON, f"not JSON: {error}") from error
        if not isinstance(document, dict):
            raise TopologyError(ERR_MALFORMED_JSON, "not an object of locations")
        return cls({name: _choices(name, v) for name, v in document.items()})

    def index(self, device: str) -> int:
        """The stable number of a NIC, also while it is disabled."""
        try:
            return self._index[device]
        except KeyError:
            raise TopologyError(ERR_DEVICE_NOT_FOUND, f"no NIC {device!r}") from None

    def choices(self, location: str) -> Choices:
        """The NICs of a location; nothing for an unknown one."""
        return self._locations.get(location, Choices())

    def disable(self, device: str) -> None:
        """Takes a NIC out of every list; the others keep their index."""
        self.index(device)
        for name, choices in self._locations.items():
            self._locations[name] = Choices(
                preferred=tuple(d for d in choices.preferred if d != device),
                available=tuple(d for d in choices.available if d != device),
            )

    def select(self, location: str, retry: int, rng: random.Random) -> str:
        """The NIC for try number `retry`: random among the preferred, then in turn.

        Raises:
            TopologyError: unknown location or none left (ERR_DEVICE_NOT_FOUND).
        """
        choices = self.choices(location)
        if not choices.all:
            raise TopologyError(ERR_DEVICE_NOT_FOUND, f"no NIC for {location!r}")
        if retry == 0:
            return rng.choice(choices.preferred or choices.available)
        return choices.all[(retry - 1) % len(choices.all)]


def _choices(name: str, value: Any) -> Choices:
    lists = value if isinstance(value, list) else []
    if len(lists) != 2 or not all(
        isinstance(part, list) and all(isinstance(n, str) for n in part)
        for part in lists
    ):
        raise TopologyError(
            ERR_MALFORMED_JSON, f"{name!r} is not exactly two lists of NIC names"
        )
    return Choices(preferred=tuple(lists[0]), available=tuple(lists[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RailSettings:
    """Upstream: 5 errors in 5 s pause a rail for 30 s, then it is usable again."""

    errors: int = 5
    window_s: float = 5.0
    pause_s: float = 30.0
    rails_kept: int = 4096

    def scaled(self, factor: float) -> Self:
        """Every duration times `factor`."""
        return scale(self, factor)


@dataclass(slots=True)
class _Rail:
    errors: deque[float] = field(default_factory=deque)
    paused_until: float = float("-inf")


class RailHealth:
    """Which rails (`store@nic`) are paused. The caller serialises the calls.

    Only transport errors belong here: local ones (length, protection) must not be
    charged to the peer's rail (Mooncake#3299).
    """

    def __init__(self, settings: RailSettings) -> None:
        self.settings = settings
        self.pauses = 0
        self._rails: dict[str, _Rail] = {}

    def usable(self, rails: Sequence[str], now: float) -> list[str]:
        """The rails that are not paused, in the order given; [] when all are."""
        return [rail for rail in rails if not self.paused(rail, now)]

    def paused(self, rail: str, now: float) -> bool:
        """True while the rail rests."""
        found = self._rails.get(rail)
        return found is not None and now < found.paused_until

    def record(
        self, rail: str, ok: bool, now: float, *, alternative: bool = False
    ) -> None:
        """A transfer over the rail ended.

        Args:
            rail: its name.
            ok: False for a transport error. Successes do not excuse errors:
                five within the window are enough, as upstream.
            now: the instant of the end.
            alternative: another rail of this store is usable: pause this one at once.
        """
        if ok:
            return
        found = self._rails.get(rail) or self._remember(rail)
        found.errors.append(now)
        while found.errors[0] <= now - self.settings.window_s:
            found.errors.popleft()
        if alternative or len(found.errors) >= self.settings.errors:
            found.errors.clear()
            found.paused_until = now + self.settings.pause_s
            self.pauses += 1

    def _remember(self, rail: str) -> _Rail:
        while len(self._rails) >= self.settings.rails_kept:
            self._rails.pop(next(iter(self._rails)))
        self._rails[rail] = _Rail(deque(maxlen=max(1, self.settings.errors)))
        return self._rails[rail]

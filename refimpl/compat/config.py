"""`ReplicateConfig` and its enumerations, with upstream's fields and defaults.

Fields check what they are given as upstream's bindings do: a wrong type is a TypeError
where it is assigned, not a code from a later put.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from refimpl.core.codes import Code
from refimpl.core.objects import REPLICAS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

_U64_MAX: Final = (1 << 64) - 1


class _Named(IntEnum):
    """Prints as upstream's enumerations do."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class SoftPinAction(_Named):
    """What a put does to the soft pin of its object."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(_Named):
    """What an object is; the pool stores all of them alike."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicaStatus(_Named):
    """Life of a replica; only complete ones are ever described."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


def _count(value: object) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and 0 <= int(value) <= _U64_MAX  # type: ignore[call-overload]


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_text, value))


def _maybe(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


_FIELDS: Final[dict[str, Callable[[object], bool]]] = {
    "replica_num": _count,
    "nof_replica_num": _count,
    "dfs_replica_num": _count,
    "soft_pin_action": lambda value: isinstance(value, SoftPinAction),
    "soft_pin_ttl_ms": _maybe(_count),
    "with_hard_pin": _flag,
    "preferred_segments": _texts,
    "preferred_nof_segments": _texts,
    "preferred_segment": _text,
    "prefer_alloc_in_same_node": _flag,
    "data_type": lambda value: isinstance(value, ObjectDataType),
    "group_ids": _maybe(_texts),
}


class ReplicateConfig:
    """How many replicas an object gets, where, and what keeps it in memory."""

    def __init__(self) -> None:
        self.replica_num: int = 1
        self.nof_replica_num: int = 0
        self.dfs_replica_num: int = 0
        self.soft_pin_action: SoftPinAction = SoftPinAction.PRESERVE
        self.soft_pin_ttl_ms: int | None = None
        self.with_hard_pin: bool = False
        self.preferred_segments: list[str] = []
        self.preferred_nof_segments: list[str] = []
        self.preferred_segment: str = ""
        self.prefer_alloc_in_same_node: bool = False
        self.data_type: ObjectDataType = ObjectDataType.UNKNOWN
        self.group_ids: list[str] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses unknown fields and values of a wrong type.

        Raises:
            AttributeError: there is no such field.
            TypeError: the field cannot hold this value.
        """
        check = _FIELDS.get(name)
        if check is None:
            raise AttributeError(f"ReplicateConfig has no field {name!r}")
        if not check(value):
            raise TypeError(f"ReplicateConfig.{name} cannot be {value!r}")
        object.__setattr__(self, name, value)

    def __str__(self) -> str:
        shown = {name: getattr(self, name) for name in _FIELDS if name != "group_ids"}
        shown["soft_pin_action"] = self.soft_pin_action.name
        shown["data_type"] = self.data_type.name
        if self.soft_pin_ttl_ms is None:
            shown["soft_pin_ttl_ms"] = "default"
        body = ", ".join(f"{name}: {value}" for name, value in shown.items())
        return f"ReplicateConfig: {{ {body} }}"

    def refusal(self) -> Code:
        """INVALID_PARAMS for wishes that contradict each other or that nobody grants.

        The pool has memory replicas only, at least one, and a soft pin has the pool's
        time to live: a ttl of its own is taken where a pin is asked for, and means the
        pool's.
        """
        has_ttl = self.soft_pin_ttl_ms is not None
        contradicts = has_ttl and self.soft_pin_action is not SoftPinAction.ENABLE
        elsewhere = self.nof_replica_num or self.dfs_replica_num
        if contradicts or elsewhere or not self.replica_num:
            return Code.INVALID_PARAMS
        return Code.OK

    @property
    def replicas(self) -> int:
        """As many as the pool can make: who asks for more than fit gets fewer."""
        return min(self.replica_num, REPLICAS_MAX)

    @property
    def pin(self) -> str:
        """The pool's word for what keeps the object in memory."""
        if self.with_hard_pin:
            return "hard"
        return "soft" if self.soft_pin_action is SoftPinAction.ENABLE else ""

    @property
    def preferred(self) -> tuple[str, ...]:
        """Names of segments to try first, in order."""
        first = (self.preferred_segment,) if self.preferred_segment else ()
        return (*first, *(s for s in self.preferred_segments if s not in first))

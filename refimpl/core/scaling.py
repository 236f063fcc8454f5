"""One factor for every time constant, so that a suite can run faster than life.

Durations are float fields whose names end in ``_s``. Polls never scale: they are the
machine's granularity, not the system's patience; name them in `fixed`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

    from _typeshed import DataclassInstance

    _Settings = TypeVar("_Settings", bound=DataclassInstance)


def scale(settings: _Settings, factor: float, fixed: Collection[str] = ()) -> _Settings:
    """Return `settings` with every float ``*_s`` field multiplied by `factor`.

    Args:
        settings: a dataclass instance; it is not changed.
        factor: 1.0 is real time, 0.1 is ten times faster.
        fixed: names of fields that keep their value.

    Raises:
        ValueError: when the factor is not positive.
    """
    if not factor > 0:
        raise ValueError(f"time scale must be positive, got {factor!r}")
    durations = {
        field.name: value * factor
        for field in dataclasses.fields(settings)
        if field.name.endswith("_s") and field.name not in fixed
        if isinstance(value := getattr(settings, field.name), float)
    }
    return dataclasses.replace(settings, **durations)

"""What a cluster of Mooncake is asked to be: a `ClusterSpec` in Mooncake's own words.

Overrides by role kind, beside those of engines, which are the reference engine's own:

    mooncake  profile (default, tuned); metadata (p2p, http); masters (1 to 3, more than
              one are elected over etcd); oplog (their op log on); aslr (false: a store
              comes back under its old name, its memory at the old addresses)
    master    flags of mooncake_master, without dashes; a time in the words of the
              reference (`client_ttl_s`) is scaled as there and becomes its flag
    store     variables of the environment (MC_*, MOONCAKE_*) of stores alone
    client    variables of the environment of clients alone
    env       variables of the environment of stores and clients
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chaos.errors import UsageError
from chaos.systems.mooncake.profile import DEFAULT, VARIABLE, profile_of

if TYPE_CHECKING:
    from chaos.systems.base import ClusterSpec
    from chaos.systems.mooncake.profile import Profile

MOST_MASTERS: Final = 3
_KINDS: Final = frozenset({"mooncake", "master", "store", "client", "env", "engine"})
_OWN: Final = frozenset({"profile", "metadata", "masters", "oplog", "aslr"})
#: Placement in the words of the reference system, and of `--allocation_strategy`.
_PLACEMENTS: Final = {
    "local_first": "local_first",
    "random": "random",
    "free_ratio_first": "free_ratio_first",
}
#: Times of the reference's master: the flag of the same meaning, and its unit in s.
_TIMES: Final = {
    "client_ttl_s": ("client_ttl", 1.0),
    "default_kv_lease_ttl_s": ("default_kv_lease_ttl", 0.001),
    "put_start_discard_timeout_s": ("put_start_discard_timeout_sec", 1.0),
    "put_start_release_timeout_s": ("put_start_release_timeout_sec", 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A cluster in Mooncake's own words."""

    spec: ClusterSpec
    profile: Profile
    http_metadata: bool = False
    masters: int = 1
    oplog: bool = False
    aslr: bool = True
    store_env: Mapping[str, str] = field(default_factory=dict)
    client_env: Mapping[str, str] = field(default_factory=dict)

    @property
    def elected(self) -> bool:
        """Whether masters are elected over etcd."""
        return self.masters > 1 or self.oplog

    @property
    def master_flags(self) -> list[str]:
        return self.profile.flags()


def shape_of(spec: ClusterSpec) -> Shape:
    """Reads a spec.

    Raises:
        UsageError: It asks for what Mooncake does not have.
    """
    overrides = spec.overrides
    unknown = sorted(set(overrides) - _KINDS)
    if unknown:
        fix = f"there are {', '.join(sorted(_KINDS))}"
        raise UsageError(f"no override of Mooncake is called {unknown[0]!r}", fix)
    for kind, value in overrides.items():
        if not isinstance(value, Mapping):
            raise UsageError(f"the override {kind} is {value!r}", "name settings in it")
    own = dict(overrides.get("mooncake", {}))
    strange = sorted(set(own) - _OWN)
    if strange:
        fix = f"there are {', '.join(sorted(_OWN))}"
        raise UsageError(f"no setting of Mooncake is called {strange[0]!r}", fix)
    if spec.defects:
        raise UsageError("--defect is for the reference system", "leave it out")
    if spec.placement not in _PLACEMENTS:
        fix = f"there are {', '.join(_PLACEMENTS)}"
        raise UsageError(f"Mooncake has no placement {spec.placement!r}", fix)
    profile = profile_of(str(own.get("profile") or os.environ.get(VARIABLE) or DEFAULT))
    flags = {"allocation_strategy": _PLACEMENTS[spec.placement]}
    flags |= _flags(overrides.get("master", {}), spec.time_scale)
    return Shape(
        spec=spec,
        profile=profile.changed(master=flags, env=overrides.get("env", {})),
        http_metadata=_metadata(own) == "http",
        masters=_masters(own),
        oplog=_flag(own, "oplog", default=False),
        aslr=_flag(own, "aslr", default=True),
        store_env=_texts(overrides.get("store", {})),
        client_env=_texts(overrides.get("client", {})),
    )


def _flags(asked: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Flags as they are; times of the reference's master in whole units, 1 at least."""
    flags = {}
    for name, value in asked.items():
        if name not in _TIMES:
            flags[name] = value
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"the master's {name} is {value!r}", "say seconds")
        flag, unit_s = _TIMES[name]
        flags[flag] = max(1, math.ceil(round(value * scale / unit_s, 6)))
    return flags


def _metadata(own: Mapping[str, Any]) -> str:
    metadata = str(own.get("metadata", "p2p"))
    if metadata not in ("p2p", "http"):
        raise UsageError(
            f"no metadata is called {metadata!r}", "there are p2p and http"
        )
    return metadata


def _masters(own: Mapping[str, Any]) -> int:
    masters = own.get("masters", 1)
    if not isinstance(masters, int) or not 1 <= masters <= MOST_MASTERS:
        raise UsageError(f"{masters!r} masters", f"take 1 to {MOST_MASTERS}")
    return masters


def _flag(own: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A text is refused: "false" would be true."""
    value = own.get(name, default)
    if not isinstance(value, bool):
        raise UsageError(f"{name} of Mooncake is {value!r}", "say true or false")
    return value


def _texts(env: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in env.items()}

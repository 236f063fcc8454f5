"""From what schedules are drawn, by system and mode: small clusters, all of a kind.

A mode is a way to run a system that has promises of its own: Mooncake with one master,
with stores that come back as themselves, with elected masters, with their op log, and
with clients that wait for a master as long as they do by default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.correctness.generate import Space
from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REFIMPL_SHAPE: Final[Mapping[str, Any]] = {
    "stores": 3,
    "engines": 0,
    "rails": 1,
    "store_bytes": 4 << 20,
    "overrides": {
        "master": {"default_kv_lease_ttl_s": 4.0, "put_start_discard_timeout_s": 6.0}
    },
}
_REFIMPL: Final = Space(
    system="refimpl",
    phrases={
        "kill": 2,
        "restart": 3,
        "pause": 2,
        "partition": 2,
        "slow": 1,
        "corrupt": 1,
        "announce": 2,
        "fill": 1,
    },
    lease_s=4.0,
    discard_s=6.0,
    slow_kb_per_s=10,
    timeout_s=10.0,
    master_share=0.15,
    fill_count=1000,
    shape=_REFIMPL_SHAPE,
)
_MOONCAKE: Final = Space(
    system="mooncake",
    time_scale=1.0,
    keys=8,
    size_bytes=64 << 10,
    steps=30,
    stores=2,
    masters=("leader",),
    paths=("plain", "batched", "ranges", "session"),
    phrases={"kill": 2, "restart": 4, "pause": 2, "fill": 1},
    waits_s=(0.5, 2.0, 4.0),
    lease_s=1.0,
    timeout_s=12.0,
    fill_count=1400,
    shape={
        "stores": 2,
        "engines": 0,
        "store_bytes": 32 << 20,
        "placement": "random",
    },
)
_TUNED: Final = {"profile": "tuned"}


def _mooncake(
    own: Mapping[str, Any],
    *,
    client_ttl: int = 3,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> Space:
    """Mooncake with these settings of its own, tuned for short waits."""
    master = {"default_kv_lease_ttl": 500, "client_ttl": client_ttl}
    overrides: dict[str, Any] = {"mooncake": {**_TUNED, **own}, "master": master}
    if env:
        overrides["env"] = env
    shape = {**_MOONCAKE.shape, "overrides": overrides}
    return dataclasses.replace(_MOONCAKE, shape=shape, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way to run a system: its space, and under which name its laws stand.

    `expects` are the kinds of findings that are known of it, each with a minimal
    schedule in `suites/scenarios/minimal`; in a suite they are no news.
    """

    name: str
    laws: str
    space: Space
    expects: tuple[str, ...] = ()


MODES: Final[Mapping[str, tuple[Mode, ...]]] = {
    "refimpl": (Mode(name="plain", laws="", space=_REFIMPL),),
    "mooncake": (
        Mode(name="plain", laws="", expects=("unfinished",), space=_mooncake({})),
        Mode(
            name="same-identity",
            laws="",
            expects=("other-key", "zeros"),
            space=_mooncake(
                {"metadata": "http", "aslr": False},
                client_ttl=10,
                phrases={"restart": 5, "kill": 1, "pause": 1},
                master_share=0.0,
                steps=20,
            ),
        ),
        Mode(
            name="ha",
            laws="ha",
            space=_mooncake(
                {"masters": 2},
                phrases={"failover": 3, "pause": 3, "kill": 1, "restart": 1},
                others=("etcd",),
                master_share=0.7,
                waits_s=(2.0, 8.0, 25.0),
            ),
        ),
        Mode(
            name="oplog",
            laws="oplog",
            expects=("flap", "removed-late"),
            space=_mooncake(
                {"masters": 3, "oplog": True},
                phrases={"failover": 4, "watch": 3, "pause": 2, "kill": 2},
                others=("etcd",),
                master_share=0.8,
                waits_s=(2.0, 8.0, 25.0),
            ),
        ),
        Mode(
            name="patient",
            laws="oplog",
            expects=("ack-loss", "flap", "removed-late"),
            space=_mooncake(
                {"masters": 3, "oplog": True},
                env={"MC_RPC_TIMEOUT_MS": "30000"},
                phrases={"sleep": 1},
                steps=20,
                waits_s=(25.0,),
                timeout_s=40.0,
            ),
        ),
    ),
}


def modes_of(system: str, names: Sequence[str] = ()) -> list[Mode]:
    """The modes of a system, or those that were named.

    Raises:
        UsageError: There is no such system or mode.
    """
    if system not in MODES:
        raise UsageError(
            f"no schedules are drawn for {system!r}", f"there are {', '.join(MODES)}"
        )
    known = {mode.name: mode for mode in MODES[system]}
    for name in names:
        if name not in known:
            raise UsageError(
                f"{system} has no mode {name!r}", f"there are {', '.join(known)}"
            )
    return [known[name] for name in names or known]


def laws_mode(system: str, shape: Mapping[str, Any]) -> str:
    """Under which name the laws of a shape stand; see `laws.laws_of`."""
    if system != "mooncake":
        return ""
    own = shape.get("overrides", {}).get("mooncake", {})
    if own.get("oplog"):
        return "oplog"
    return "ha" if int(own.get("masters", 1)) > 1 else ""

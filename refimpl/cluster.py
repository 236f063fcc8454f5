"""`refimpl up`: a whole cluster on this machine until Ctrl-C, which leaves nothing.

Every role is a process on a free loopback port. Kill one by its pid and watch.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from refimpl.processes import RoleProcess
from refimpl.role import stop_on_signals
from refimpl.settings import setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from threading import Event

    from refimpl.synthetic import SyntheticLoad

_READY_S: Final = 20.0
_ANYWHERE: Final = "127.0.0.1:0"
_MARGIN_S: Final = 5.0
_STORE_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """Shape of the cluster; what is not here has the roles' own defaults."""

    stores: int = setting(4, "number of stores", at_least=1, at_most=64)
    engines: int = setting(2, "number of engines", at_least=0, at_most=64)
    rails: int = setting(2, "rails of each store", at_least=1, at_most=8)
    store_size: int = setting(64 << 20, "bytes of each store", at_least=1 << 20)
    placement: str = setting(
        "local_first",
        "where new pages go",
        choices=("local_first", "free_ratio_first", "random"),
    )
    page_tokens: int = setting(64, "tokens of a page", at_least=1)
    page_bytes: int = setting(16 << 10, "bytes of a page", at_least=64)
    time_scale: float = setting(1.0, "factor on every duration", at_least=0.001)
    load: float = setting(
        0.0, "synthetic requests per second, 0 none", at_least=0, at_most=1000
    )
    seed: int = setting(0, "seed of engines and load")
    duration_s: float = setting(0.0, "seconds to run, 0 until Ctrl-C", at_least=0)
    status_s: float = setting(
        5.0, "seconds between status lines, where there is no terminal", at_least=0.1
    )


class LocalCluster:
    """The processes of one cluster: started in order, ended all at once."""

    def __init__(self, settings: UpSettings) -> None:
        self.settings = settings
        self.roles: list[RoleProcess] = []
        self.addresses: dict[str, Mapping[str, str]] = {}

    def start(self) -> None:
        """Starts the master, then stores and engines side by side.

        Raises:
            RoleFailed: a role did not get ready.
        """
        settings = self.settings
        self._spawn("master", "master", _master_flags(settings))
        self._wait_for_all()
        master = self.addresses["master"]
        for i in range(settings.stores):
            self._spawn("store", f"store-{i}", _store_flags(settings, i, master))
        for i in range(settings.engines):
            self._spawn("engine", f"engine-{i}", _engine_flags(settings, i, master))
        self._wait_for_all()

    def stop(self) -> dict[str, int]:
        """Ends every role within seconds and returns the exit codes by name."""
        order = sorted(self.roles, key=lambda role: role.role == "master")
        for role in order:
            if role.role != "master":
                role.ask_to_stop()
        deadline_s = time.monotonic() + _STORE_GRACE_S + _MARGIN_S
        return {role.name: role.stop(deadline_s) for role in order}

    def of_kind(self, kind: str) -> list[RoleProcess]:
        """The roles of one kind, in order of their numbers."""
        return [role for role in self.roles if role.role == kind]

    def _spawn(self, role: str, name: str, flags: Sequence[str]) -> None:
        self.roles.append(RoleProcess(role, name, flags))

    def _wait_for_all(self) -> None:
        for role in self.roles:
            self.addresses[role.name] = role.wait_ready(_READY_S)


def run(settings: UpSettings) -> int:
    """Runs a cluster until SIGTERM, Ctrl-C or the end of its duration."""
    stop = stop_on_signals()
    cluster = LocalCluster(settings)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        _say(_how_to(cluster))
        load = _load(cluster, stack)
        _watch(cluster, load, stop)
        _say("stopping")
    _say("stopped; nothing is left running")
    return 0


def _watch(cluster: LocalCluster, load: SyntheticLoad | None, stop: Event) -> None:
    from refimpl.status import watch

    settings = cluster.settings
    watch(
        cluster,
        load,
        stop,
        duration_s=settings.duration_s or None,
        line_period_s=settings.status_s,
    )


def _load(cluster: LocalCluster, stack: ExitStack) -> SyntheticLoad | None:
    """The synthetic load, when asked for and there is an engine to send it to."""
    settings, engines = cluster.settings, cluster.of_kind("engine")
    if not settings.load or not engines:
        return None
    from refimpl.synthetic import SyntheticLoad

    addresses = [cluster.addresses[engine.name]["listen"] for engine in engines]
    load = SyntheticLoad(addresses, rate=settings.load, seed=settings.seed)
    stack.callback(load.close)
    load.start()
    return load


def _how_to(cluster: LocalCluster) -> str:
    """What a newcomer does with it."""
    master = cluster.addresses["master"]
    lines = [
        f"master   {master['listen']}  heartbeats {master['heartbeat']}"
        f"  admin http://{master['admin']}/metrics"
    ]
    lines += [
        f"engine   {cluster.addresses[engine.name]['listen']}  (gRPC, service Engine)"
        for engine in cluster.of_kind("engine")
    ]
    lines += [
        f"client   PoolClient({master['listen']!r}) of refimpl.client",
        "another  refimpl store --name store-x --master "
        f"{master['listen']} --heartbeat {master['heartbeat']}",
        "break it kill -STOP or kill -9 a pid below; Ctrl-C ends everything",
    ]
    return "\n".join(lines)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _master_flags(settings: UpSettings) -> list[str]:
    return [
        *("--listen", _ANYWHERE, "--heartbeat-listen", _ANYWHERE),
        *("--admin-listen", _ANYWHERE, "--time-scale", str(settings.time_scale)),
        *("--allocation-strategy", settings.placement),
    ]


def _store_flags(
    settings: UpSettings, number: int, master: Mapping[str, str]
) -> list[str]:
    rails = [f"rail{r}={_ANYWHERE}" for r in range(settings.rails)]
    return [
        *("--host-id", f"host-{number}", "--size", str(settings.store_size)),
        *(flag for rail in rails for flag in ("--rail", rail)),
        *("--master", master["listen"], "--heartbeat", master["heartbeat"]),
        *("--admin-listen", _ANYWHERE, "--time-scale", str(settings.time_scale)),
        *("--grace-s", str(_STORE_GRACE_S / settings.time_scale)),
    ]


def _engine_flags(
    settings: UpSettings, number: int, master: Mapping[str, str]
) -> list[str]:
    return [
        *("--host-id", f"host-{number % settings.stores}"),
        *("--listen", _ANYWHERE, "--admin-listen", _ANYWHERE),
        *("--master", master["listen"], "--time-scale", str(settings.time_scale)),
        *("--page-tokens", str(settings.page_tokens)),
        *("--page-bytes", str(settings.page_bytes), "--seed", str(settings.seed)),
    ]

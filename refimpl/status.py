"""What a running cluster looks like: a live table on a terminal, plain lines else."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from refimpl.security.token import token_of_environment

if TYPE_CHECKING:
    from threading import Event

    from rich.table import Table

    from refimpl.cluster import LocalCluster
    from refimpl.processes import RoleProcess
    from refimpl.synthetic import LoadView, SyntheticLoad

_ASK_TIMEOUT_S: Final = 0.3
_TABLE_PERIOD_S: Final = 1.0
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One role: how it is, and what there is to say about it."""

    role: str
    name: str
    pid: int
    address: str
    health: str
    detail: str

    @property
    def is_up(self) -> bool:
        """It runs and answers."""
        return self.health == "up"


def watch(
    cluster: LocalCluster,
    load: SyntheticLoad | None,
    stop: Event,
    *,
    duration_s: float | None,
    line_period_s: float = 5.0,
) -> None:
    """Shows the cluster until `stop` is set or the duration is over."""
    ends_s = time.monotonic() + duration_s if duration_s else float("inf")
    if sys.stdout.isatty():
        _watch_table(cluster, load, stop, ends_s)
    else:
        _watch_lines(cluster, load, stop, ends_s, line_period_s)


def rows_of(cluster: LocalCluster) -> list[Row]:
    """One row a role, from its process and the admin doors; never raises."""
    master = _ask(cluster, "master")
    segments = {s["name"]: s for s in (master or {}).get("segments", [])}
    return [_row(cluster, role, master, segments) for role in cluster.roles]


def _watch_table(
    cluster: LocalCluster, load: SyntheticLoad | None, stop: Event, ends_s: float
) -> None:
    from rich.live import Live

    started_s = time.monotonic()
    with Live(auto_refresh=False) as live:
        while True:
            age_s = time.monotonic() - started_s
            view = load.view() if load else None
            live.update(_table(rows_of(cluster), view, age_s), refresh=True)
            if _is_over(stop, ends_s, _TABLE_PERIOD_S):
                return


def _watch_lines(
    cluster: LocalCluster,
    load: SyntheticLoad | None,
    stop: Event,
    ends_s: float,
    period_s: float,
) -> None:
    started_s = time.monotonic()
    while True:
        age_s = time.monotonic() - started_s
        view = load.view() if load else None
        sys.stdout.write(line_of(rows_of(cluster), view, age_s) + "\n")
        sys.stdout.flush()
        if _is_over(stop, ends_s, period_s):
            return


def _is_over(stop: Event, ends_s: float, period_s: float) -> bool:
    left_s = ends_s - time.monotonic()
    return stop.wait(max(0.0, min(period_s, left_s))) or time.monotonic() >= ends_s


def line_of(rows: list[Row], load: LoadView | None, age_s: float) -> str:
    """The whole cluster in one line; roles that are not up are named."""
    parts = [f"{age_s:5.0f} s"]
    for kind in ("master", "store", "engine"):
        of_kind = [row for row in rows if row.role == kind]
        if of_kind:
            parts.append(f"{kind}s {sum(r.is_up for r in of_kind)}/{len(of_kind)} up")
    parts += [f"{row.name} {row.health}" for row in rows if not row.is_up]
    parts += [row.detail for row in rows if row.role == "master" and row.detail]
    if load:
        parts.append(_load_words(load))
    return "  ".join(parts)


def _table(rows: list[Row], load: LoadView | None, age_s: float) -> Table:
    from rich.markup import escape
    from rich.table import Table

    caption = f"{age_s:.0f} s up; Ctrl-C ends it"
    table = Table(
        title="refimpl cluster",
        caption=f"{_load_words(load)}; {caption}" if load else caption,
    )
    for heading in ("role", "pid", "address", "health", ""):
        table.add_column(heading, justify="right" if heading == "pid" else "left")
    for row in rows:
        colour = "green" if row.is_up else "red"
        health = f"[{colour}]{escape(row.health)}[/]"
        cells = (escape(row.name), str(row.pid), escape(row.address))
        table.add_row(*cells, health, escape(row.detail))
    return table


def _load_words(load: LoadView) -> str:
    return (
        f"load: {load.sent} sent, {load.failed} failed, {load.shed} shed, "
        f"hit rate {load.hit_rate:.0%}, TTFT p50 {load.ttft_p50_s:.3f} s (modelled)"
    )


def _row(
    cluster: LocalCluster,
    role: RoleProcess,
    master: dict[str, Any] | None,
    segments: dict[str, dict[str, Any]],
) -> Row:
    addresses = cluster.addresses.get(role.name, {})
    state = master if role.role == "master" else _ask(cluster, role.name)
    detail = ""
    if role.role == "master" and state:
        detail = _master_words(state)
    elif role.role == "store":
        detail = _segment_words(segments.get(role.name))
    elif state:
        detail = _engine_words(state)
    return Row(
        role=role.role,
        name=role.name,
        pid=role.pid,
        address=_address_words(addresses.get("listen", "")),
        health=_health(role, answers=state is not None),
        detail=detail,
    )


def _address_words(listen: Any) -> str:
    """One address, or those of all rails."""
    return ", ".join(listen.values()) if isinstance(listen, dict) else str(listen)


def _health(role: RoleProcess, *, answers: bool) -> str:
    code = role.exit_code
    if code is not None:
        return f"killed by signal {-code}" if code < 0 else f"ended, exit {code}"
    return "up" if answers else "silent"


def _master_words(state: dict[str, Any]) -> str:
    gauges = {**state.get("counters", {}), **state.get("gauges", {})}
    keys = int(gauges.get("master_key_count", 0))
    return f"{keys} keys, {int(gauges.get('master_allocated_bytes', 0)) / _MIB:.1f} MiB"


def _segment_words(segment: dict[str, Any] | None) -> str:
    if segment is None:
        return "not in the pool"
    used, size = segment["allocated"] / _MIB, segment["size"] / _MIB
    return f"{used:.1f} of {size:.0f} MiB, {segment['status']}"


def _engine_words(state: dict[str, Any]) -> str:
    counters = state.get("engine", {}).get("counters", {})
    tokens = counters.get("tokens", {})
    asked = tokens.get("input", 0)
    hits = sum(tokens.get(tier, 0) for tier in ("l1", "l2", "l3"))
    rate = f"hit rate {hits / asked:.0%}" if asked else "no request yet"
    served = counters.get("requests", {}).get("ok", 0)
    return f"breaker {state.get('breaker', '?')}, {served} served, {rate}"


def _ask(cluster: LocalCluster, name: str) -> dict[str, Any] | None:
    """The admin `/state` of a role; None when it does not answer in time."""
    address = str(cluster.addresses.get(name, {}).get("admin", ""))
    host, _, port = address.rpartition(":")
    if not host:
        return None
    connection = http.client.HTTPConnection(host, int(port), timeout=_ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/state", headers=_authorization())
        answer = connection.getresponse()
        document = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return document if answer.status == http.client.OK else None


def _authorization() -> dict[str, str]:
    """What doors ask for whose token stands in our environment, like in theirs."""
    token = token_of_environment(os.environ)
    return {"Authorization": token.header} if token else {}

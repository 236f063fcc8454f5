"""What a suite may ask of a system under test, without knowing which one it is.

A `Cluster` is a running system: a master, stores, engines, each a process. The suites,
faults, load and checkers see only this file; `chaos/systems/<name>.py` implements it.
All durations are seconds as the system really takes them, after time scaling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.hosts.host import Hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The shape of a cluster; everything not said here has the system's default.

    `time_scale` multiplies every time constant of the system. `overrides` are settings
    by role kind ("master", "store", "engine") and field name, at factor 1. `more_roles`
    are what a system has beyond one master, stores and engines ("master-1", "etcd").
    """

    stores: int = 8
    engines: int = 2
    rails: int = 2
    stores_per_host: int = 1
    store_bytes: int = 64 << 20
    page_tokens: int = 64
    page_bytes: int = 16 << 10
    placement: str = "local_first"
    time_scale: float = 0.1
    seed: int = 0
    defects: tuple[str, ...] = ()
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    more_roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt, in the trace schema: equal block ids are equal 512-token blocks."""

    request_id: str
    session: str
    at_s: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine said of one request. Prefill time is modelled, waits are real."""

    request_id: str
    ok: bool
    error: str
    queue_s: float
    cache_wait_s: float
    deadline_s: float
    prefill_modelled_s: float
    ttft_modelled_s: float
    input_tokens: int
    l1_tokens: int
    l2_tokens: int
    l3_tokens: int
    recomputed_tokens: int
    output_hash: str
    prefetch_outcome: str
    stores: tuple[str, ...]
    touched_fault: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The system's own promises, as configured (scaled). `poll_s` never scales."""

    deadline_base_s: float
    deadline_per_ki_token_s: float
    deadline_max_s: float
    poll_s: float
    client_ttl_s: float
    ping_interval_s: float
    lease_ttl_s: float
    breaker_window_s: float
    breaker_open_for_s: float
    breaker_probes_to_close: int
    prefill_tokens_per_s: float
    block_tokens: int
    page_tokens: int
    breaker_min_samples: int = 20
    breaker_fault_ratio: float = 0.5
    breaker_consecutive_deadlines: int = 5
    breaker_probe_deadline_s: float = 1.0
    quarantine_probe_interval_s: float = 1.0

    def deadline_s(self, tokens: int) -> float:
        """T = min(max, base + per_ki_token * tokens / 1024) (SGLang HiCache)."""
        linear = self.deadline_base_s + self.deadline_per_ki_token_s * tokens / 1024
        return min(self.deadline_max_s, linear)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One address of a role that a fault can act on: `store-3.rail0`, `master.rpc`.

    `owner` is the role that listens; `user` is the one role that connects through this
    link, or "" when everybody does. `plane` says what flows: data, rpc or heartbeat.
    `proxy` is "" where nothing stands in the link: then `listen` is the `upstream`.
    `greeting` is what the owner answers at once and with data, changing nothing: when
    it does, and whether, shows a fault where nothing counts.
    """

    name: str
    owner: str
    user: str
    plane: str
    rail: str
    proxy: str
    listen: str
    upstream: str
    greeting: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that we started: its pid is only good together with its start time."""

    role: str
    pid: int
    start_ticks: int


class KvProbe(Protocol):
    """put/get/exists through the system's own client; values are functions of keys.

    Codes are per key in request order, 0 good, negative the system's error code.
    `read` returns (codes, wrong) where `wrong` counts keys whose bytes were not theirs.
    A `variant` (0 to 255) is another value of the same key: every byte of it xor the
    variant. Reading variant None takes any of them, as long as it is one, whole.
    """

    def write(
        self,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        replicas: int = 1,
        host: str = "",
        variant: int = 0,
    ) -> list[int]: ...
    def write_part(
        self,
        names: Sequence[str],
        part: int,
        parts: int,
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
    ) -> list[int]:
        """Writes one of `parts` equal parts of every value, as one rank of several."""
        ...

    def read(
        self,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        variant: int | None = 0,
    ) -> tuple[list[int], int]: ...
    def exists(self, names: Sequence[str], *, timeout_s: float = 2.0) -> list[int]: ...
    def remove(self, names: Sequence[str], *, timeout_s: float = 2.0) -> list[int]: ...
    def owners(
        self, names: Sequence[str], *, timeout_s: float = 2.0
    ) -> list[tuple[str, ...]]:
        """The stores that hold each name now, without granting a lease."""
        ...

    def start_write(
        self, name: str, *, size_bytes: int = 16 << 10, timeout_s: float = 2.0
    ) -> tuple[int, int]:
        """Announces a write without doing it: (code, the token that its end needs)."""
        ...

    def end_write(self, name: str, token: int, *, timeout_s: float = 2.0) -> int:
        """Declares an announced write complete, as a delayed writer would: its code."""
        ...

    def close(self) -> None: ...


class Cluster(Protocol):
    """A running system under test."""

    spec: ClusterSpec
    limits: Limits

    @property
    def hosts(self) -> Hosts | None:
        """The hosts that faults act on; None where they act on proxies."""
        ...

    def address_of(self, role: str, plane: str = "control", rail: int = 0) -> str:
        """The address of a role on a plane: "control", "data" or "management"."""
        ...

    @property
    def masters(self) -> tuple[str, ...]: ...
    @property
    def stores(self) -> tuple[str, ...]: ...
    @property
    def engines(self) -> tuple[str, ...]: ...
    @property
    def links(self) -> tuple[Link, ...]: ...
    def host_of(self, role: str) -> str: ...
    def process(self, role: str) -> Process | None:
        """The live process of a role, None when it is not running."""
        ...

    def start_role(self, role: str) -> Process:
        """Starts a stopped role again, same name and addresses, and waits for ready."""
        ...

    def stop_role(self, role: str, *, timeout_s: float = 10.0) -> int:
        """Ends a role orderly (SIGTERM) and returns its exit code."""
        ...

    def remove_store(self, store: str) -> float:
        """Takes a store out of the pool at once; the seconds that the call took.

        Its process goes on; it is back after `stop_role` and `start_role`.
        """
        ...

    def prefill(self, engine: str, request: Request, *, timeout_s: float) -> Answer:
        """Sends one request; never raises for a failure of the system: ok=False."""
        ...

    def abort(self, engine: str, request_id: str) -> None: ...
    def expected_output(self, request: Request) -> str:
        """The output hash of a run without any cache: the oracle of O3."""
        ...

    def engine_state(self, engine: str) -> dict[str, Any]:
        """Breaker, quarantine, ledger and counters of one engine, as JSON."""
        ...

    def role_state(self, role: str) -> dict[str, Any]:
        """The admin /state document of a role."""
        ...

    def local_only(self, engine: str, on: bool) -> None:
        """The operator's lever: L3 off (the local-only arm of O5), or normal again."""
        ...

    def flush_local(self, engine: str) -> None:
        """Empties L1 and L2 of one engine, so that the next hit must come from L3."""
        ...

    def set_failpoint(self, role: str, name: str, spec: str) -> None: ...
    def clear_failpoints(self, role: str) -> None: ...
    def failpoint_hits(self, role: str, name: str) -> int: ...
    def owners_of(self, request: Request) -> list[tuple[str, ...]]:
        """The stores holding each whole page of a prompt, () where nobody does."""
        ...

    def owned_bytes(self) -> dict[str, int]:
        """Bytes allocated on every live store, by name."""
        ...

    def kv(self, host: str = "") -> KvProbe: ...
    def conservation(self) -> list[str]:
        """Broken conservation laws in words; empty when the ledger is clean (O11)."""
        ...

    def drop_pages(
        self, request: Request, pages: Sequence[int], *, component: str | None = None
    ) -> int:
        """Removes single pages of a prompt from the pool; returns how many went.

        Where a page is several objects, `component` names the one to remove.
        """
        ...

    def reset(self) -> None:
        """Back to an empty, healthy cluster: roles up, no object, breakers closed."""
        ...

    def stop(self) -> None: ...


@runtime_checkable
class Observed(Protocol):
    """A cluster that says more of itself than it is asked, all the time."""

    @property
    def version(self) -> str:
        """Version and build of what runs."""
        ...

    def observe_into(self, sink: Callable[[str, Mapping[str, Any]], object]) -> None:
        """`sink(role, what)` is called from a thread, when something changed."""
        ...


@runtime_checkable
class Mounting(Protocol):
    """A cluster that tells which store is which: one that came back is another one."""

    def mounts(self) -> dict[str, int]:
        """Store -> identity of the memory that it has mounted; {}: it was not told.

        A store that was taken for dead is missing, and new when it is back.
        """
        ...


@runtime_checkable
class WithoutFailpoints(Protocol):
    """A cluster some of whose roles are not ours, and have no failpoints."""

    def refuse_failpoint(self, role: str, name: str) -> None:
        """Raises `NotHere` where nothing would hit this one."""
        ...

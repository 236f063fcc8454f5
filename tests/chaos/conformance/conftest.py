from __future__ import annotations

import time

import pytest

from chaos.conformance.faults import NamedFault
from chaos.conformance.measured import Measured
from chaos.conformance.profile import Profile
from chaos.conformance.properties import Arm
from chaos.conformance.stage import Identity, Stage
from chaos.faults.base import Evidence, Receipt
from chaos.systems.base import Answer, Limits

LIMITS = Limits(
    deadline_base_s=0.2,
    deadline_per_ki_token_s=0.01,
    deadline_max_s=3.0,
    poll_s=0.02,
    client_ttl_s=1.0,
    ping_interval_s=0.1,
    lease_ttl_s=1.0,
    breaker_window_s=1.0,
    breaker_open_for_s=0.5,
    breaker_probes_to_close=3,
    prefill_tokens_per_s=200_000.0,
    block_tokens=512,
    page_tokens=64,
)


def answer(request, **changes):
    told = {
        "request_id": request.request_id,
        "ok": True,
        "error": "",
        "queue_s": 0.0,
        "cache_wait_s": 0.0,
        "deadline_s": 0.2,
        "prefill_modelled_s": 0.0,
        "ttft_modelled_s": 0.0,
        "input_tokens": request.input_length,
        "l1_tokens": 0,
        "l2_tokens": 0,
        "l3_tokens": 0,
        "recomputed_tokens": 0,
        "output_hash": "right",
        "prefetch_outcome": "complete",
        "stores": (),
        "touched_fault": False,
    }
    return Answer(**{**told, **changes})


ROW = {
    "fault": "store-paused",
    "law": "stall-bounded",
    "arm": "bare",
    "settings": "tuned",
    "expect": "fails",
    "seen": {"held": 0, "failed": 20},
    "reference": "the status timer of 30 s",
}


@pytest.fixture
def row():
    """One row of a profile, with changes; `None` leaves a field out."""

    def build(**changes):
        made = {**ROW, **changes}
        return {name: value for name, value in made.items() if value is not None}

    return build


@pytest.fixture
def profile(row):
    """A profile of these rows."""

    def build(*rows, system="mooncake", version="1.2.3"):
        return Profile.model_validate(
            {"system": system, "version": version, "expected": list(rows) or [row()]}
        )

    return build


@pytest.fixture
def measured():
    """A measured property, with changes."""

    def build(**changes):
        told = {
            "system": "mooncake",
            "version": "1.2.3",
            "settings": "tuned",
            "arm": Arm.BARE,
            "fault": "store-paused",
            "law": "stall-bounded",
            "held": False,
            "observed": "30.02 s",
            "limit": "0.24 s",
            "samples": 3,
            "reproduce": "pytest x --seed 1",
        }
        return Measured(**{**told, **changes})

    return build


class Pool:
    """A pool of three stores under a fault that tests choose: what reads of keys on
    the sick store answer, after how long, and what becomes of their neighbours."""

    def __init__(self) -> None:
        self.stores = ("store-0", "store-1", "store-2")
        self.engines = ("engine-0",)
        self.hosts = None
        self.links = ()
        self.limits = LIMITS
        self.sick = ""
        self.code = -800
        self.stall_s = 0.0
        self.poisons = 0
        self.wrong = 0
        self.breaks: Exception | None = None
        self.never_back = False
        self.was_sick = False
        self.kept: dict[str, str] = {}
        self.l3 = True
        self.wait_s = 0.0
        self.fails = False
        self.output = ""
        self.closed = 0

    def owner(self, name):
        return self.kept.get(name)

    def kv(self, host=""):
        return Kv(self)

    # --- engines ---

    def prefill(self, engine, request, *, timeout_s):
        pages = [f"{request.hash_ids}-{n}" for n in range(16)]
        known = [self.kept.get(page) for page in pages]
        sick = self.sick and self.sick in self.stores
        good = next(
            (n for n, s in enumerate(known) if s is None or (sick and s == self.sick)),
            16,
        )
        for n, page in enumerate(pages):
            self.kept.setdefault(page, self.stores[(n // 4 + 1) % 3])
        tokens = 64 * good if self.l3 or not self.sick else 0
        if self.never_back and self.was_sick and not self.sick:
            tokens = 0
        waited_s = self.wait_s if self.sick else 0.0
        return answer(
            request,
            l3_tokens=tokens,
            cache_wait_s=waited_s,
            deadline_s=LIMITS.deadline_base_s,
            ok=not (self.fails and self.sick),
            output_hash=self.output if self.sick and self.output else "right",
        )

    def expected_output(self, request):
        return "right"

    def owners_of(self, request):
        pages = [f"{request.hash_ids}-{n}" for n in range(16)]
        return [(self.kept[page],) if page in self.kept else () for page in pages]

    def engine_state(self, engine):
        return {
            "hicache": {
                "requests": 0,
                "prefetches": 0,
                "writeback": {"pending": 0},
                "pages": {},
            }
        }

    def flush_local(self, engine):
        pass


class Kv:
    def __init__(self, pool):
        self.pool = pool

    def write(self, names, *, replicas=1, timeout_s=2.0, **_):
        pool = self.pool
        if pool.never_back and pool.was_sick and not pool.sick:
            return [-800] * len(names)
        for number, name in enumerate(names):
            pool.kept[name] = pool.stores[number % 3]
        return [0] * len(names)

    def owners(self, names, *, timeout_s=2.0):
        kept = self.pool.kept
        return [(kept[name],) if name in kept else () for name in names]

    def exists(self, names, *, timeout_s=2.0):
        return [0] * len(names)

    def read(self, names, *, timeout_s=2.0, **_):
        pool = self.pool
        hit = [pool.sick == "master" or pool.kept.get(n) == pool.sick for n in names]
        if pool.sick and any(hit):
            time.sleep(pool.stall_s)
            if pool.breaks is not None:
                raise pool.breaks
            return [pool.code if bad else pool.poisons for bad in hit], pool.wrong
        return [0 if n in pool.kept else -704 for n in names], 0

    def close(self):
        self.pool.closed += 1


class Injection:
    def __init__(self, pool, store):
        self.pool, self.store = pool, store
        self.receipt = Receipt(
            fault_id="f-1", kind="kill", target=store, planned_at_s=0.0
        )

    def __enter__(self):
        self.pool.sick, self.pool.was_sick = self.store, True
        self.receipt.injected_at_s = time.monotonic()
        self.receipt.evidence = Evidence(
            measure="gone", effect=self.pool.effect, detail=""
        )
        return self.receipt

    def __exit__(self, *_):
        self.receipt.reverting_at_s = time.monotonic()
        self.pool.sick = ""


@pytest.fixture
def pool():
    made = Pool()
    made.effect = 1.0
    return made


@pytest.fixture
def stage(pool):
    """A short fault of one store of the fake pool."""

    def build(**changes):
        fault = NamedFault(
            name="store-killed",
            what="a fake",
            make=lambda _c, _i, store: Injection(pool, store or "master"),
            of_master=changes.pop("of_master", False),
        )
        told = {
            "cluster": pool,
            "inject": None,
            "fault": fault,
            "identity": Identity(system="fake", version="1"),
            "window_s": 0.5,
            "patience_s": 2.0,
        }
        return Stage(**{**told, **changes})

    return build


@pytest.fixture
def by_law():
    """Measured rows by their property."""
    return lambda rows: {row.law: row for row in rows}

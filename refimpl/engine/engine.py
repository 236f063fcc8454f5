"""An engine: serves prompts with whatever the cache gives, and without it as well.

The thread that brings a request serves it. Walk: place in the queue -> prefetch begins
-> wait until it may end -> wait for a slot -> the slot is held for the modelled time of
what must be computed -> output over real and computed bytes -> pages to the cache.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from refimpl.engine.cache import CacheErrors, CacheUse, HiCacheLike, Reused
from refimpl.engine.ledger import Ledger
from refimpl.engine.model import output_hash, page_bytes, prefill_s, prompt_of
from refimpl.engine.scheduler import Scheduler
from refimpl.engine.settings import POLICIES
from refimpl.engine.slots import DuplicateRequest, PrefillSlots, QueueFull
from refimpl.engine.ticket import Cancelled, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from refimpl.core.hashing import Fingerprint
    from refimpl.engine.model import Prompt

NOTHING_REUSED = Reused()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The engine without its cache; real seconds, already scaled."""

    fingerprint: Fingerprint
    page_bytes: int
    prefill_tokens_per_s: float
    prefill_slots: int = 4
    capacity: int = 256
    policy: str = "timeout"
    poll_s: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request as the engine takes it."""

    request_id: str
    input_length: int
    hash_ids: NDArray[np.int64]
    policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of one request; fields as in `PrefillResponse`."""

    request_id: str
    ok: bool = False
    error: str = ""
    queue_s: float = 0.0
    prefill_modelled_s: float = 0.0
    ttft_modelled_s: float = 0.0
    input_tokens: int = 0
    recomputed_tokens: int = 0
    output_hash: str = ""
    page_tokens: int = 0
    result: str = "ok"
    """ok | aborted | shed (engine full) | bad (the client's mistake) | failed"""
    reused: Reused = NOTHING_REUSED


class Engine:
    """Serves requests until `close`; `serve` may be called from many threads.

    Args:
        settings: model and queue.
        cache: HiCache, or a fake of it. Its `on_ready` is set to wake this engine.
        now: monotonic seconds.
    """

    def __init__(
        self,
        settings: ModelSettings,
        cache: HiCacheLike,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.ledger = Ledger()
        self.cache_errors = CacheErrors()
        self.slots = PrefillSlots(settings.prefill_slots, settings.capacity)
        self._cache = cache
        self._now = now
        self._scheduler = Scheduler(settings.poll_s, now)
        self._closed = False
        cache.on_ready = self._scheduler.notify

    def ticket(self, request_id: str) -> Ticket:
        """A place for a request that enters now; hand it to `serve`."""
        return Ticket(request_id, self._now())

    def serve(self, order: Order, ticket: Ticket) -> Served:
        """Serves one request to its end. Never raises: failures are answers."""
        try:
            served = self._serve(order, ticket)
        except Cancelled as cancelled:
            served = _refused(order, "aborted", f"aborted: {cancelled}")
        except QueueFull as full:
            served = _refused(order, "shed", f"engine is full: {full}")
        except (DuplicateRequest, ValueError) as mistake:
            served = _refused(order, "bad", f"bad request: {mistake}")
        except Exception as error:
            # The law: a broken request is an answer and a counter, never a dead engine.
            self.ledger.add("failures", type(error).__name__)
            served = _refused(order, "failed", f"{type(error).__name__}: {error}")
        self._count(served)
        return served

    def abort(self, request_id: str, reason: str = "by the client") -> bool:
        """Calls a request off, wherever it stands; False when it is not inside."""
        ticket = self.slots.find(request_id)
        if ticket is None:
            return False
        ticket.cancel(reason)
        return True

    def call_off(self, reason: str, timeout_s: float = 1.0) -> bool:
        """Cancels all that is inside; True when nobody is left after the timeout."""
        for ticket in self.slots.inside():
            ticket.cancel(reason)
        return self.slots.wait_empty(timeout_s)

    def reset(self) -> None:
        """Counters to zero."""
        self.ledger.clear()
        self.cache_errors.clear()

    def state(self) -> dict[str, object]:
        """Gauges and counters, as JSON."""
        return {
            **self.slots.counts(),
            "waiting_for_cache": self._scheduler.waiting,
            "cache_errors": self.cache_errors.snapshot(),
            "counters": self.ledger.snapshot(),
        }

    def close(self) -> None:
        """Takes nothing new and calls off what is inside."""
        self._closed = True
        self.call_off("the engine ends")
        self._scheduler.close()

    def _serve(self, order: Order, ticket: Ticket) -> Served:
        policy = order.policy or self.settings.policy
        if policy not in POLICIES:
            raise ValueError(f"no policy {policy!r}; use one of {', '.join(POLICIES)}")
        fingerprint = self.settings.fingerprint
        prompt = prompt_of(order.hash_ids, order.input_length, fingerprint)
        self.slots.enter(ticket)
        use = CacheUse(self._cache, self.cache_errors)
        try:
            if self._closed:  # asked inside: `close` sees who entered before it
                raise Cancelled("the engine ends")
            return self._inside(order, ticket, prompt, use, policy)
        finally:
            use.abort()
            self.slots.leave(ticket)

    def _inside(
        self,
        order: Order,
        ticket: Ticket,
        prompt: Prompt,
        use: CacheUse,
        policy: str,
    ) -> Served:
        use.begin(order.request_id, prompt.keys, order.policy)
        if policy == "best_effort":  # takes what is there when its turn comes
            self.slots.acquire(ticket)
            reused = use.finish(prompt.pages)
        else:
            self._scheduler.await_ready(ticket, use)
            reused = use.finish(prompt.pages)
            self.slots.acquire(ticket)
        served = self._prefill(order, ticket, prompt, reused)
        size = self.settings.page_bytes
        output = output_hash(reused.pages, prompt, size)
        use.commit(lambda keys, out: page_bytes(keys, size, out))
        return replace(served, ok=True, output_hash=output)

    def _prefill(
        self, order: Order, ticket: Ticket, prompt: Prompt, reused: Reused
    ) -> Served:
        """Holds a slot for the modelled time; times from the entry of the request."""
        page_tokens = self.settings.fingerprint.page_size
        recomputed = prompt.tokens - len(reused.pages) * page_tokens
        started = self._now()
        modelled_s = prefill_s(recomputed, self.settings.prefill_tokens_per_s)
        ticket.wait_until(started + modelled_s, self._now)
        ended = self._now()
        self.slots.release(ticket)
        return Served(
            request_id=order.request_id,
            queue_s=started - ticket.entered_s,
            prefill_modelled_s=modelled_s,
            ttft_modelled_s=ended - ticket.entered_s,
            input_tokens=prompt.tokens,
            recomputed_tokens=recomputed,
            page_tokens=page_tokens,
            reused=reused,
        )

    def _count(self, served: Served) -> None:
        self.ledger.add("requests", served.result)
        if not served.ok:
            return
        reused, page = served.reused, self.settings.fingerprint.page_size
        self.ledger.add("prefetch", reused.outcome)
        self.ledger.add("tokens", "input", served.input_tokens)
        self.ledger.add("tokens", "l1", reused.l1_pages * page)
        self.ledger.add("tokens", "l2", reused.l2_pages * page)
        self.ledger.add("tokens", "l3", reused.l3_pages * page)
        self.ledger.add("tokens", "recomputed", served.recomputed_tokens)
        self.ledger.observe_ttft(served.ttft_modelled_s)


def _refused(order: Order, result: str, error: str) -> Served:
    return Served(
        request_id=order.request_id,
        error=error,
        input_tokens=order.input_length,
        result=result,
        reused=Reused(outcome="aborted" if result == "aborted" else "none"),
    )

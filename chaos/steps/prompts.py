"""Steps that all pages share: make a prompt, put it in the pool, ask again.

Every wait here waits for a state of the cluster, bounded, never for a time. What is
asked comes back as a `Sample`, the same record that load leaves, so that the same
checkers judge one request and a thousand.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.errors import HarnessError
from chaos.history.checkers import (
    judge_contiguous_reuse,
    judge_no_failures,
    judge_wrong_bytes,
)
from chaos.judge.latency import judge_cache_wait
from chaos.judge.limit import at_least
from chaos.judge.verdict import Judgement, Verdict
from chaos.load.sample import Sample
from chaos.safety.identity import wait_until
from chaos.systems.base import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chaos.faults.injector import Injection
    from chaos.systems.base import Cluster, Link

ASK_TIMEOUT_S = 60.0
STATE_TIMEOUT_S = 20.0
_KEEP_TRIES = 3
_KEPT_S = 8.0
_POLL_S = 0.02


def prompt(cluster: Cluster, name: str, tokens: int, *, session: str = "") -> Request:
    """A prompt whose blocks are its own: other names share nothing with it."""
    return extended(
        cluster,
        Request(
            request_id=name,
            session=session or name,
            at_s=0.0,
            input_length=0,
            output_length=16,
            hash_ids=(),
        ),
        name,
        tokens,
    )


def extended(cluster: Cluster, base: Request, name: str, tokens: int) -> Request:
    """The prompt of `base` with `tokens` more tokens: the next turn of its session.

    `base` must end at the end of a block, otherwise its last page would change.
    """
    block = cluster.limits.block_tokens
    if base.input_length % block:
        message = f"{base.request_id} does not end at a block of {block} tokens"
        raise ValueError(message)
    fresh = tuple(_block_id(name, index) for index in range(-(-tokens // block)))
    return replace(
        base,
        request_id=name,
        input_length=base.input_length + tokens,
        hash_ids=base.hash_ids + fresh,
    )


def suffix(cluster: Cluster, request: Request, cut_tokens: int) -> Request:
    """A prompt that equals the end of another: it must share nothing with it."""
    blocks = cut_tokens // cluster.limits.block_tokens
    return replace(
        request,
        request_id=f"{request.request_id}/from-{cut_tokens}",
        input_length=request.input_length - blocks * cluster.limits.block_tokens,
        hash_ids=request.hash_ids[blocks:],
    )


def again(request: Request, name: str, *, policy: str = "") -> Request:
    """The same prompt under another request id."""
    return replace(request, request_id=f"{request.request_id}/{name}", policy=policy)


def whole_pages(cluster: Cluster, request: Request) -> int:
    """How many whole pages a prompt has: the most that can be reused."""
    return request.input_length // cluster.limits.page_tokens


def ask(
    cluster: Cluster,
    engine: str,
    request: Request,
    *,
    timeout_s: float = ASK_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Sample:
    """Sends one request now and waits for its answer."""
    begin = clock()
    answer = cluster.prefill(engine, request, timeout_s=timeout_s)
    return Sample(
        request=request,
        engine=engine,
        intended_s=begin,
        sent_s=begin,
        done_s=clock(),
        answer=answer,
    )


def ask_together(
    cluster: Cluster, pairs: Sequence[tuple[str, Request]], *, at_once: int = 64
) -> list[Sample]:
    """Sends several requests, each to its engine, `at_once` of them at one time."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="ask") as pool:
        return list(pool.map(lambda pair: ask(cluster, *pair), pairs))


def keep(cluster: Cluster, engine: str, request: Request) -> Sample:
    """Has `engine` compute a prompt and waits until the pool holds all of it.

    The engine forgets L1 and L2, so that the next hit must come from the pool. A
    write-back that a busy machine let fail is left to the next request for the same
    prompt, as the system does it.
    """
    sample = ask(cluster, engine, request)
    for _ in range(_KEEP_TRIES - 1):
        if wait_until(
            lambda: _is_kept(cluster, request), timeout_s=_KEPT_S, poll_s=_POLL_S
        ):
            break
        cluster.flush_local(engine)
        ask(cluster, engine, again(request, "keep"))
    wait_kept(cluster, [request])
    cluster.flush_local(engine)
    return sample


def _is_kept(cluster: Cluster, request: Request) -> bool:
    return all(cluster.owners_of(request))


def keep_on_two(
    cluster: Cluster, request: Request, head_tokens: int
) -> tuple[str, str]:
    """Puts the head of a prompt on one store and its tail on another.

    Under local-first a writer's pages go to the store on its own host: the first engine
    writes the head, the second extends it. Returns (store of the head, of the tail).

    Raises:
        HarnessError: The pages did not land as the placement promises.
    """
    block = cluster.limits.block_tokens
    head = replace(
        request,
        request_id=f"{request.request_id}/head",
        input_length=head_tokens,
        hash_ids=request.hash_ids[: head_tokens // block],
    )
    first, second = cluster.engines[:2]
    keep(cluster, first, head)
    keep(cluster, second, again(request, "keep"))
    pages = cluster.owners_of(request)
    cut = head_tokens // cluster.limits.page_tokens
    stores = [{name for page in part for name in page} for part in _cut(pages, cut)]
    if any(len(names) != 1 for names in stores) or stores[0] == stores[1]:
        message = f"head and tail lie on {stores[0]} and {stores[1]}, not one each"
        raise HarnessError(message)
    return stores[0].pop(), stores[1].pop()


def wait_kept(cluster: Cluster, requests: Iterable[Request]) -> None:
    """Waits until every whole page of these prompts is in the pool.

    Raises:
        HarnessError: Some page never came: nothing could be judged after this.
    """
    for request in requests:

        def kept(request: Request = request) -> bool:
            return _is_kept(cluster, request)

        wait_for(kept, f"the pool to hold all pages of {request.request_id}")


def wait_for(
    state: Callable[[], bool], what: str, *, timeout_s: float = STATE_TIMEOUT_S
) -> None:
    """Waits for a state of the cluster.

    Raises:
        HarnessError: It did not come in time.
    """
    if not wait_until(state, timeout_s=timeout_s, poll_s=_POLL_S):
        message = f"waited {timeout_s:g} s for {what}"
        raise HarnessError(message)


def wait_idle(cluster: Cluster, engine: str) -> None:
    """Waits until an engine has no request, prefetch or write-back under way."""
    if not becomes_idle(cluster, engine):
        message = f"waited {STATE_TIMEOUT_S:g} s for {engine} to be idle"
        raise HarnessError(message)


def becomes_idle(
    cluster: Cluster, engine: str, *, timeout_s: float = STATE_TIMEOUT_S
) -> bool:
    """Whether an engine comes to rest: no request, prefetch or write-back is left."""

    def idle() -> bool:
        cache = cluster.engine_state(engine)["hicache"]
        busy = cache["requests"] + cache["prefetches"] + cache["writeback"]["pending"]
        flying = sum(tier["in_flight"] for tier in cache["pages"].values())
        return not busy and not flying

    return wait_until(idle, timeout_s=timeout_s, poll_s=_POLL_S)


def engine_counter(cluster: Cluster, engine: str, name: str, label: str = "") -> int:
    """One counter of an engine's cache, 0 while it has never counted."""
    found = cluster.engine_state(engine)["hicache"]["counters"].get(name, 0)
    return int(found.get(label, 0)) if isinstance(found, dict) else int(found)


def ask_when_kept(cluster: Cluster, engine: str, request: Request) -> Sample:
    """Waits until the pool holds a prompt again and asks for it with empty tiers."""
    wait_kept(cluster, [request])
    wait_idle(cluster, engine)
    cluster.flush_local(engine)
    return ask(cluster, engine, again(request, "healed"))


def seconds_until_reused(
    cluster: Cluster, engine: str, request: Request, tokens: int, limit_s: float
) -> float:
    """How long it takes until a prompt is found in the pool again; inf: never.

    The tiers are emptied before every try, so that only the pool can help.
    """
    begin = time.monotonic()
    tries = 0
    while (took_s := time.monotonic() - begin) <= limit_s:
        cluster.flush_local(engine)
        if reused(ask(cluster, engine, again(request, f"back-{tries}"))) >= tokens:
            return took_s
        tries += 1
    return math.inf


def ask_and_abort(
    cluster: Cluster,
    engine: str,
    requests: Sequence[Request],
    delays_s: Sequence[float],
    *,
    workers: int = 16,
) -> int:
    """Asks in turn and aborts each after its delay; answers how many were cut off.

    The tiers are emptied before each, so that it has to ask the pool.
    """

    def one(index: int) -> bool:
        name = f"abort-{index}"
        request = again(requests[index % len(requests)], name)
        answers: list[Sample] = []
        cluster.flush_local(engine)
        thread = threading.Thread(
            target=lambda: answers.append(ask(cluster, engine, request)), daemon=True
        )
        thread.start()
        thread.join(delays_s[index])
        cluster.abort(engine, request.request_id)
        thread.join(ASK_TIMEOUT_S)
        return bool(answers and answers[0].answer and not answers[0].answer.ok)

    with ThreadPoolExecutor(workers, thread_name_prefix="abort") as pool:
        return sum(pool.map(one, range(len(delays_s))))


def ask_while(
    cluster: Cluster, engine: str, request: Request, fault: Injection, held_s: float
) -> tuple[Sample, bool]:
    """Asks under a fault that is lifted after `held_s`.

    Returns the sample, and whether its answer came before the fault was lifted.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ask") as pool, fault:
        future = pool.submit(ask, cluster, engine, request)
        done, _ = wait([future], held_s)
        fault.stop()
        return future.result(ASK_TIMEOUT_S), bool(done)


@contextmanager
def asking(
    cluster: Cluster, engine: str, requests: Sequence[Request]
) -> Iterator[None]:
    """Has requests under way for the length of a block; they are aborted after it."""
    with ThreadPoolExecutor(len(requests) or 1, thread_name_prefix="asking") as pool:
        futures = [pool.submit(ask, cluster, engine, each) for each in requests]
        try:
            yield
        finally:
            for each in requests:
                cluster.abort(engine, each.request_id)
            wait(futures, ASK_TIMEOUT_S)


@contextmanager
def slots_taken(cluster: Cluster, engine: str, for_s: float) -> Iterator[None]:
    """Has every prefill slot of an engine busy for so long, at the start of a block."""

    def free() -> int:
        return int(cluster.engine_state(engine)["engine"]["free_slots"])

    block = cluster.limits.block_tokens
    tokens = int(for_s * cluster.limits.prefill_tokens_per_s) // block * block
    name = f"busy-{time.monotonic_ns()}"
    busy = [prompt(cluster, f"{name}-{i}", tokens) for i in range(free())]
    with asking(cluster, engine, busy):
        wait_for(lambda: free() == 0, f"the slots of {engine} to be taken")
        yield


def data_links(cluster: Cluster, *stores: str) -> list[Link]:
    """The links that carry the bytes of these stores; of all when none is named."""
    chosen = stores or cluster.stores
    return [
        link for link in cluster.links if link.plane == "data" and link.owner in chosen
    ]


def lookup_link(cluster: Cluster, engine: str) -> Link:
    """The link over which one engine asks the master."""
    return next(
        link for link in cluster.links if link.plane == "rpc" and link.user == engine
    )


def judge_laws(
    cluster: Cluster, samples: Sequence[Sample], *, wait: bool = True
) -> list[Judgement]:
    """O1 to O4 over these samples: right bytes, bounded waits, whole prefixes, no loss.

    `wait` False leaves O2 out, for policies that promise no bound.
    """
    expected = {
        sample.request.request_id: cluster.expected_output(sample.request)
        for sample in samples
    }
    judged = [
        judge_contiguous_reuse(
            samples, expected, page_tokens=cluster.limits.page_tokens
        ),
        judge_no_failures(samples),
    ]
    if any(sample.answer is not None and reused(sample) for sample in samples):
        judged.append(judge_wrong_bytes(samples, expected))
    if wait:
        judged.append(judge_cache_wait(samples, cluster.limits))
    return judged


def reused(sample: Sample) -> int:
    """Tokens of a sample that were not recomputed."""
    answer = sample.answer
    if answer is None:
        return 0
    return answer.l1_tokens + answer.l2_tokens + answer.l3_tokens


def judge_reuse(sample: Sample, tokens: int, claim: str) -> Judgement:
    """Exactly this many tokens are reused: an exact counter."""
    found = reused(sample)
    outcome = sample.answer.prefetch_outcome if sample.answer else "no answer"
    return judge_equal("O3", claim, found, tokens, unit="tokens", reason=outcome)


def judge_equal(
    oracle: str,
    claim: str,
    found: float,
    wanted: float,
    *,
    unit: str = "",
    samples: int = 1,
    reason: str = "",
) -> Judgement:
    """An exact counter that must have one value."""
    return Judgement(
        oracle=oracle,
        claim=claim,
        verdict=Verdict.PASS if found == wanted else Verdict.FAIL,
        observed=f"{found:g} {unit}".strip(),
        threshold=f"exactly {wanted:g}",
        samples=samples,
        reason=reason,
        kind="counter",
        numbers={"value": float(found), "wanted": float(wanted)},
    )


def judge_waited(sample: Sample, at_least_s: float, claim: str) -> Judgement:
    """The wait was real: a deadline that never had to be met proves nothing."""
    waited = sample.answer.cache_wait_s if sample.answer else float("nan")
    return at_least("O2", claim, waited, at_least_s, samples=1, unit="s")


def _block_id(name: str, index: int) -> int:
    digest = hashlib.blake2b(f"{name}:{index}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def _cut(
    pages: Sequence[tuple[str, ...]], at: int
) -> tuple[Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]]:
    return pages[:at], pages[at:]

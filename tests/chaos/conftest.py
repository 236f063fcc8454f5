"""Hand-made requests, answers, samples and limits for the tests of load and judges."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from chaos.load.sample import Ending, Sample
from chaos.systems.base import Answer, Limits, Request

PAGE = 64


@dataclass(frozen=True)
class Fabricate:
    """Builders with sound defaults; every keyword replaces one field."""

    page_tokens: int = PAGE

    def request(self, name="r0", *, session="s0", at_s=0.0, tokens=1024, **fields):
        blocks = fields.pop("hash_ids", tuple(range(-(-tokens // 512))))
        return Request(
            request_id=name,
            session=session,
            at_s=at_s,
            input_length=tokens,
            output_length=10,
            hash_ids=blocks,
            **fields,
        )

    def answer(self, name="r0", *, tokens=1024, l3=512, ttft_s=0.1, **fields):
        answer = Answer(
            request_id=name,
            ok=True,
            error="",
            queue_s=0.0,
            cache_wait_s=0.01,
            deadline_s=0.2,
            prefill_modelled_s=ttft_s,
            ttft_modelled_s=ttft_s,
            input_tokens=tokens,
            l1_tokens=0,
            l2_tokens=0,
            l3_tokens=l3,
            recomputed_tokens=tokens - l3,
            output_hash=f"out-{name}",
            prefetch_outcome="complete",
            stores=("store-0",),
            touched_fault=False,
        )
        return replace(answer, **fields)

    def sample(
        self,
        name="r0",
        *,
        session="s0",
        at_s=0.0,
        lag_s=0.0,
        tokens=1024,
        ending=Ending.DONE,
        latency_s=None,
        **answer,
    ):
        given = self.answer(name, tokens=tokens, **answer)
        return Sample(
            request=self.request(name, session=session, at_s=at_s, tokens=tokens),
            engine="engine-0",
            intended_s=at_s,
            sent_s=at_s + lag_s,
            done_s=at_s + (given.ttft_modelled_s if latency_s is None else latency_s),
            answer=given if ending is Ending.DONE else None,
            ending=ending,
        )

    def limits(self, **fields):
        limits = Limits(
            deadline_base_s=0.2,
            deadline_per_ki_token_s=0.01,
            deadline_max_s=3.0,
            poll_s=0.02,
            client_ttl_s=1.0,
            ping_interval_s=0.1,
            lease_ttl_s=0.5,
            breaker_window_s=1.0,
            breaker_open_for_s=0.5,
            breaker_probes_to_close=3,
            prefill_tokens_per_s=10_000.0,
            block_tokens=512,
            page_tokens=PAGE,
        )
        return replace(limits, **fields)

    def expected(self, samples):
        """The no-cache oracle that agrees with every untouched answer."""
        names = [sample.request.request_id for sample in samples]
        return {name: f"out-{name}" for name in names}

    def arm(
        self,
        seed,
        *,
        requests=320,
        sessions=32,
        factor=1.0,
        noise=0.05,
        trace_seed=0,
        **fields,
    ):
        """One arm of a paired run: prompt sizes by trace, noise by session and arm."""
        trace, dice = random.Random(trace_seed), random.Random(seed)
        bias = [dice.gauss(0, noise) for _ in range(sessions)]
        samples = []
        for index in range(requests):
            session = index % sessions
            base_s = trace.lognormvariate(-2, 0.8)
            wobble = bias[session] + dice.gauss(0, noise)
            samples.append(
                self.sample(
                    f"r{index}",
                    session=f"s{session}",
                    at_s=index * 0.05,
                    ttft_s=base_s * factor * (1 + max(-0.9, wobble)),
                    **fields,
                )
            )
        return samples


@pytest.fixture(scope="session")
def fabricate():
    return Fabricate()

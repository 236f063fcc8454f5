from __future__ import annotations

from chaos.judge.verdict import Verdict
from chaos.load.sample import Sample
from chaos.steps.healthy import judge_hits, judge_reads, rounds
from chaos.systems.base import Answer, Limits, Request

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


def _request(name: str, session: str, blocks: tuple[int, ...]) -> Request:
    return Request(
        request_id=name,
        session=session,
        at_s=0.0,
        input_length=512 * len(blocks),
        output_length=1,
        hash_ids=blocks,
    )


def _sample(request: Request, *, l3_tokens: int, wait_s: float = 0.01) -> Sample:
    answer = Answer(
        request_id=request.request_id,
        ok=True,
        error="",
        queue_s=0.0,
        cache_wait_s=wait_s,
        deadline_s=0.3,
        prefill_modelled_s=0.0,
        ttft_modelled_s=wait_s,
        input_tokens=request.input_length,
        l1_tokens=0,
        l2_tokens=0,
        l3_tokens=l3_tokens,
        recomputed_tokens=request.input_length - l3_tokens,
        output_hash="",
        prefetch_outcome="complete",
        stores=(),
        touched_fault=False,
    )
    return Sample(
        request=request,
        engine="engine-0",
        intended_s=0.0,
        sent_s=0.0,
        done_s=wait_s,
        answer=answer,
    )


def test_a_round_has_one_turn_of_a_session():
    trace = [_request(f"r{i}", s, (i,)) for i, s in enumerate("abbac")]

    cut = [[turn.request_id for turn in turns] for turns in rounds(trace)]

    assert cut == [["r0", "r1"], ["r2", "r3", "r4"]]


def test_one_token_less_than_an_infinite_cache_fails():
    trace = [_request("r0", "a", (1, 2)), _request("r1", "a", (1, 2, 3))]

    exact = [_sample(trace[0], l3_tokens=0), _sample(trace[1], l3_tokens=1024)]
    short = [_sample(trace[0], l3_tokens=0), _sample(trace[1], l3_tokens=960)]

    assert judge_hits(exact, trace).verdict is Verdict.PASS
    assert judge_hits(short, trace).verdict is Verdict.FAIL


def test_reads_are_judged_as_they_are_and_told_beside_t():
    asked = [_request(f"r{i}", "a", (1, 2)) for i in range(100)]
    fast = [_sample(request, l3_tokens=1024, wait_s=0.021) for request in asked]
    slow = [_sample(request, l3_tokens=1024, wait_s=0.12) for request in asked]

    judged = judge_reads(fast, LIMITS, tokens=1024, time_scale=0.1)

    assert {one.verdict for one in judged} == {Verdict.PASS}
    assert "10.0 % at factor 0.1, 1.0 % at factor 1" in judged[0].reason
    late = judge_reads(slow, LIMITS, tokens=1024, time_scale=0.1)
    assert {one.verdict for one in late} == {Verdict.FAIL}


def test_local_hits_are_no_reads():
    asked = [_request(f"r{i}", "a", (1, 2)) for i in range(100)]
    local = [_sample(request, l3_tokens=0) for request in asked]

    judged = judge_reads(local, LIMITS, tokens=1024, time_scale=0.1)

    assert {one.verdict for one in judged} == {Verdict.INCONCLUSIVE}

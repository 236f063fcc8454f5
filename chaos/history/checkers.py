"""O1, O3, O4 from samples: what was answered, against what had to be answered.

Exact counters: they must not depend on the speed of the machine. The other oracles
live in `chaos.judge`; `rejudge` runs all of them over a stored history.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chaos.judge.limit import downgraded, none_of
from chaos.judge.verdict import Judgement, Verdict
from chaos.load.sample import Ending, answered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.load.sample import Sample
    from chaos.systems.base import Answer

MAX_CAUSES = 4


def judge_wrong_bytes(
    samples: Sequence[Sample],
    expected: Mapping[str, str],
    *,
    kv_reads: int = 0,
    kv_wrong: int = 0,
) -> Judgement:
    """O1: a read never returns wrong bytes: not stale, not torn, not another key's.

    `expected` has the output hash of a run without any cache by request id. Only
    requests that reused something can show wrong bytes; `kv_*` adds direct reads.
    """
    rows = [(s, a) for s, a in answered(tuple(samples)) if _reused(a) > 0]
    known = [(s, a) for s, a in rows if s.request.request_id in expected]
    wrong = [
        s.request.request_id
        for s, a in known
        if a.output_hash != expected[s.request.request_id]
    ]
    judgement = none_of(
        "O1",
        "no read returns wrong bytes",
        len(wrong) + kv_wrong,
        of=len(known) + kv_reads,
        what="wrong reads",
        reason=_named(wrong),
    )
    return _with_unknown(judgement, len(rows) - len(known))


def judge_contiguous_reuse(
    samples: Sequence[Sample], expected: Mapping[str, str], *, page_tokens: int
) -> Judgement:
    """O3: reuse is a contiguous prefix of whole pages and the output is the oracle's.

    Tokens add up, reuse is a multiple of the page and never the prompt of another.
    """
    rows = answered(tuple(samples))
    known = [(s, a) for s, a in rows if s.request.request_id in expected]
    broken = []
    for sample, answer in known:
        fault = _reuse_fault(sample, answer, page_tokens)
        if not fault and answer.output_hash != expected[sample.request.request_id]:
            fault = "output differs from the run without a cache"
        if fault:
            broken.append(f"{sample.request.request_id}: {fault}")
    judgement = none_of(
        "O3",
        "reuse is whole pages in order, output equals no cache",
        len(broken),
        of=len(known),
        what="requests differ",
        reason=_named(broken),
    )
    return _with_unknown(judgement, len(rows) - len(known))


def judge_no_failures(samples: Sequence[Sample]) -> Judgement:
    """O4: no request fails because of the cache; a hung one is a failed one.

    What the generator shed or cancelled never reached the system and is not counted.
    """
    judged = [sample for sample in samples if sample.judged]
    causes = Counter(_cause(sample) for sample in judged)
    causes.pop("", None)
    shown = [f"{count} x {cause}" for cause, count in causes.most_common(MAX_CAUSES)]
    return none_of(
        "O4",
        "no request fails because of the cache",
        causes.total(),
        of=len(judged),
        what="failed",
        reason="; ".join(shown),
    )


def reuse_counters(samples: Sequence[Sample]) -> dict[str, float]:
    """Sums that must be equal in two runs of one seed, whatever the machine."""
    rows = [answer for _, answer in answered(tuple(samples))]
    return {
        "requests": float(len(rows)),
        "input_tokens": float(sum(answer.input_tokens for answer in rows)),
        "l1_tokens": float(sum(answer.l1_tokens for answer in rows)),
        "l2_tokens": float(sum(answer.l2_tokens for answer in rows)),
        "l3_tokens": float(sum(answer.l3_tokens for answer in rows)),
        "recomputed_tokens": float(sum(answer.recomputed_tokens for answer in rows)),
    }


def _reuse_fault(sample: Sample, answer: Answer, page_tokens: int) -> str:
    reused = _reused(answer)
    tiers = (answer.l1_tokens, answer.l2_tokens, answer.l3_tokens)
    if min(*tiers, answer.recomputed_tokens) < 0:
        return "a negative count of tokens"
    if any(tokens % page_tokens for tokens in tiers):
        return f"reuse {tiers} is no multiple of the page {page_tokens}"
    if answer.input_tokens != sample.request.input_length:
        return f"{answer.input_tokens} tokens of {sample.request.input_length}"
    if reused + answer.recomputed_tokens != answer.input_tokens:
        return f"reused {reused} + recomputed {answer.recomputed_tokens} tokens"
    return ""


def _cause(sample: Sample) -> str:
    """Why a request failed, "" when it did not."""
    if sample.ending is Ending.HUNG:
        return "no answer within the timeout"
    if sample.answer is None:
        return "no answer"
    if not sample.answer.ok:
        return sample.answer.error or "failed without a cause"
    return ""


def _with_unknown(judgement: Judgement, unknown: int) -> Judgement:
    if unknown and judgement.verdict is Verdict.PASS:
        return downgraded(judgement, f"no oracle for {unknown} requests")
    return judgement


def _named(names: Sequence[str]) -> str:
    rest = len(names) - MAX_CAUSES
    more = [f"and {rest} more"] if rest > 0 else []
    return "; ".join([*names[:MAX_CAUSES], *more])


def _reused(answer: Answer) -> int:
    return answer.l1_tokens + answer.l2_tokens + answer.l3_tokens

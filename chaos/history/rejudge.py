"""Judges a stored history again, without a system: what `chaos analyze` does.

Samples are judged afresh (O1 to O5). Judges that work on facts (breaker changes, owner
maps, ledgers) are recorded with their arguments by `recorded`, and called again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from chaos.correctness.judges import rejudged
from chaos.faults.base import Evidence, Receipt
from chaos.history.checkers import (
    judge_contiguous_reuse,
    judge_no_failures,
    judge_wrong_bytes,
)
from chaos.history.history import is_truncated, limits_of, open_invokes, samples_of
from chaos.judge import blast, breaker, conservation, latency, limit, validity
from chaos.judge.limit import downgraded, inconclusive
from chaos.judge.statistics import seeded
from chaos.judge.validity import (
    Validity,
    gated,
    scheduling_allowance_s,
    smallest_limit_s,
    validity_of,
)
from chaos.judge.verdict import Judgement, Verdict
from chaos.load.sample import LoadRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.history.history import Event, History
    from chaos.load.sample import Sample

FAULT, LOCAL_ONLY = "fault", "local_only"

_JUDGES: dict[str, Callable[..., Judgement]] = {
    function.__name__: function
    for function in (
        breaker.judge_opens,
        breaker.judge_closes,
        breaker.judge_silent_while_open,
        breaker.judge_single_probe,
        breaker.judge_no_flapping,
        breaker.judge_stays_closed,
        breaker.judge_quarantine,
        breaker.judge_same_recovery,
        blast.judge_prediction,
        blast.judge_local_loss,
        blast.judge_random_loses_more,
        blast.judge_few_stores,
        blast.judge_removal_time,
        blast.judge_nobody_sent,
        conservation.judge_conservation,
        conservation.judge_baseline,
        latency.judge_eviction_stall,
        latency.judge_service_level,
        limit.at_most,
        limit.at_least,
        limit.none_of,
        validity.judge_generator,
        validity.judge_evidence,
    )
}
_TYPES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        breaker.Change,
        breaker.Span,
        blast.PageMap,
        blast.Loss,
        validity.Validity,
        Receipt,
        Evidence,
    )
}


def recorded(
    history: History, function: Callable[..., Judgement], *args: Any, **kwargs: Any
) -> Judgement:
    """Judges facts and records them, so that the verdict can be computed again."""
    name = function.__name__
    if name not in _JUDGES:
        msg = f"{name} is not known to chaos.history.rejudge: add it there"
        raise ValueError(msg)
    history.info("facts", name, args=_packed(args), kwargs=_packed(kwargs))
    return function(*args, **kwargs)


def rejudge(events: Sequence[Event], *, seed: int = 0) -> list[tuple[str, Judgement]]:
    """(test, judgement) of everything that the history can tell."""
    tests = dict.fromkeys(event.test for event in events)
    cut = is_truncated(events)
    judged: list[tuple[str, Judgement]] = []
    for test in tests:
        own = [event for event in events if event.test == test]
        judged += [(test, row) for row in _of_test(own, seed, cut=cut)]
    return judged


def _of_test(events: Sequence[Event], seed: int, *, cut: bool) -> list[Judgement]:
    """Everything of one test, after what is known about its generator and faults."""
    rows = [*_of_samples(events, seed), *_of_facts(events), *rejudged(events)]
    known = _validity(events)
    receipts = _receipts(events)
    rows = [gated(row, validity=known, receipts=receipts) for row in rows]
    return [_cut(row) for row in rows] if cut else rows


def _validity(events: Sequence[Event]) -> Validity | None:
    """How the generator did in every arm; None where there is nothing to compare."""
    limits = limits_of(events)
    arms = [samples_of(events, arm=arm)[0] for arm in _arms(events)]
    if limits is None or not arms:
        return None
    runs = [_run_of(samples) for samples in arms]
    return validity_of(runs, smallest_limit_s(limits))


def _run_of(samples: Sequence[Sample]) -> LoadRun:
    lags = tuple(sample.lag_s for sample in samples if sample.judged)
    return LoadRun(samples=tuple(samples), lag_s=lags)


def _receipts(events: Sequence[Event]) -> list[Receipt]:
    """The faults that ended, with the evidence of their effect."""
    ended = [
        event.value["receipt"]
        for event in events
        if event.operation == "fault" and event.value["phase"] == "end"
    ]
    return [
        Receipt(**(row | {"evidence": Evidence(**proof) if proof else None}))
        for row in ended
        for proof in (row["evidence"],)
    ]


def _arms(events: Sequence[Event]) -> list[str]:
    arms = (event.value["arm"] for event in events if event.operation == "prefill")
    return list(dict.fromkeys(arms))


def _of_samples(events: Sequence[Event], seed: int) -> list[Judgement]:
    limits = limits_of(events)
    judged: list[Judgement] = []
    for arm in _arms(events):
        samples, expected = samples_of(events, arm=arm)
        rows = [judge_wrong_bytes(samples, expected), judge_no_failures(samples)]
        if limits is not None:
            page = limits.page_tokens
            rows.append(judge_contiguous_reuse(samples, expected, page_tokens=page))
            spare_s = scheduling_allowance_s(_run_of(samples), limits)
            rows.append(latency.judge_cache_wait(samples, limits, allowance_s=spare_s))
        judged += [
            dataclasses.replace(row, claim=f"{row.claim} ({arm} arm)") for row in rows
        ]
    lost = len(open_invokes(events))
    if lost:
        reason = f"{lost} requests were sent and have no end in the history"
        judged.append(inconclusive("O4", "every request has an end", reason))
    return judged + _of_arms(events, seed)


def _of_arms(events: Sequence[Event], seed: int) -> list[Judgement]:
    """O5, where both arms and the limits are there."""
    fault, _ = samples_of(events, arm=FAULT)
    local, _ = samples_of(events, arm=LOCAL_ONLY)
    limits = limits_of(events)
    if not fault or not local or limits is None:
        return []
    spare_s = scheduling_allowance_s(_run_of([*fault, *local]), limits)
    judged = [latency.judge_cost_per_request(fault, local, limits, allowance_s=spare_s)]
    detected = [e.value["at_s"] for e in events if e.operation == "detected"]
    if detected:
        judged += latency.judge_cost_after_detection(
            fault, local, detected_at_s=detected[0], rng=seeded(seed)
        )
    return judged


def _of_facts(events: Sequence[Event]) -> list[Judgement]:
    judged = []
    for event in events:
        if event.operation == "facts":
            args = _unpacked(event.value["args"])
            kwargs = _unpacked(event.value["kwargs"])
            judged.append(_JUDGES[event.process](*args, **kwargs))
    return judged


def _cut(judgement: Judgement) -> Judgement:
    if judgement.verdict is Verdict.PASS:
        return downgraded(judgement, "the history is not whole")
    return judgement


def _packed(value: Any) -> Any:
    """Plain JSON values, dataclasses with the name of their type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: _packed(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
        return {"__type__": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {str(key): _packed(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_packed(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        return value.item()
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if isinstance(value, dict):
        row = {key: _unpacked(item) for key, item in value.items() if key != "__type__"}
        return _TYPES[value["__type__"]](**row) if "__type__" in value else row
    return value

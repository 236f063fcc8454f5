"""O7 and O8: what losing a store costs, from the owner map and the counters.

The owner map is taken before the fault: for every whole page of a prompt, the stores
that hold it. A request loses its reuse from the first page that only the victim held,
because reuse is a contiguous prefix. Shared system pages are counted apart: losing one
costs everybody, which is a case of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chaos.judge.limit import at_least, at_most, inconclusive, none_of, number
from chaos.judge.verdict import Judgement, Verdict
from chaos.load.sample import answered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.load.sample import Sample
    from chaos.systems.base import Answer

PREDICTION_POINTS = 0.02
SHARE_POINTS = 0.05
MIN_VICTIM_SHARE = 0.05
RANDOM_FACTOR = 3.0
REMOVAL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMap:
    """Owners of each whole page of one prompt, in order; () where nobody holds it.

    The first `shared_pages` belong to a prompt that several sessions share. A page of
    several holders needs them all (its components lie apart), unless `replicated`.
    """

    request_id: str
    owners: tuple[tuple[str, ...], ...]
    shared_pages: int = 0
    replicated: bool = False

    def reusable(self, without: str = "") -> int:
        """Pages of the contiguous prefix that survive without this store."""
        for index, holders in enumerate(self.owners):
            lost = without in holders and not (self.replicated and len(holders) > 1)
            if lost or not holders:
                return index
        return len(self.owners)

    @property
    def stores(self) -> frozenset[str]:
        """The stores that hold private pages."""
        return frozenset(
            holder for page in self.owners[self.shared_pages :] for holder in page
        )

    def shared_survives(self, victim: str) -> bool:
        """Whether the shared part of the prefix is still whole without the victim."""
        return self.reusable(victim) >= min(self.shared_pages, self.reusable())

    def touches(self, victim: str) -> bool:
        return any(victim in page for page in self.owners)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Pages reused before, and how many of them are lost."""

    pages: int
    lost: int
    requests: int

    @property
    def share(self) -> float:
        return self.lost / self.pages if self.pages else 0.0


def predicted_loss(
    maps: Iterable[PageMap], victim: str, *, private: bool = False
) -> Loss:
    """What the owner map says that losing `victim` costs.

    `private` leaves out shared pages, and the requests whose shared part is hit.
    """
    pages = lost = requests = 0
    for one in maps:
        if private and not one.shared_survives(victim):
            continue
        base = min(one.shared_pages, one.reusable()) if private else 0
        before, after = one.reusable(), one.reusable(victim)
        pages += before - base
        lost += before - after
        requests += before > base
    return Loss(pages=pages, lost=lost, requests=requests)


def measured_loss(
    healthy: Sequence[Sample],
    fault: Sequence[Sample],
    maps: Iterable[PageMap],
    *,
    page_tokens: int,
    victim: str = "",
    private: bool = False,
) -> Loss:
    """What the engines really reused less, request by request, same trace both times.

    A request is counted where both arms answered it and the map knows it.
    """
    before = {a.request_id: _reused(a) for _, a in answered(tuple(healthy))}
    after = {a.request_id: _reused(a) for _, a in answered(tuple(fault))}
    pages = lost = requests = 0
    for one in maps:
        name = one.request_id
        if name not in before or name not in after:
            continue
        if private and not one.shared_survives(victim):
            continue
        base = one.shared_pages if private else 0
        had = max(0, before[name] // page_tokens - base)
        has = max(0, after[name] // page_tokens - base)
        pages += had
        lost += max(0, had - has)
        requests += had > 0
    return Loss(pages=pages, lost=lost, requests=requests)


def judge_prediction(predicted: Loss, measured: Loss, *, needed: int = 30) -> Judgement:
    """O7 (a): measured loss = loss predicted by the owner map within 2 points."""
    claim = "lost reuse as the owner map predicts"
    if predicted.lost == 0:
        reason = "the map predicts no loss: the victim held nothing of this trace"
        return inconclusive("O7a", claim, reason, kind="counter")
    gap = abs(measured.share - predicted.share)
    return at_most(
        "O7a",
        claim,
        gap,
        PREDICTION_POINTS,
        samples=measured.requests,
        unit="share",
        label="differs by",
        needed=needed,
        kind="counter",
        reason=f"lost {number(measured.share, 'share')}, "
        f"predicted {number(predicted.share, 'share')}",
        numbers={"measured": measured.share, "predicted": predicted.share},
    )


def judge_local_loss(
    loss: Loss,
    *,
    owned_bytes: Mapping[str, int],
    victim: str,
    writers: Mapping[str, int],
    needed: int = 30,
) -> Judgement:
    """O7 (b): under local-first the loss is the victim's byte share + 5 points at most.

    `loss` is the private one, `writers` counts the engines beside each store; the law
    speaks only of clusters where every store has one and the victim owns 5 %.
    """
    claim = "local-first: lost reuse <= the victim's share + 5 points"
    share = byte_share(owned_bytes, victim)
    lonely = sorted(name for name in owned_bytes if writers.get(name, 0) == 0)
    if lonely:
        reason = f"no writer beside {', '.join(lonely)}"
        return inconclusive("O7b", claim, reason, kind="counter")
    if share < MIN_VICTIM_SHARE:
        reason = f"{victim} owns {number(share, 'share')}, 5 % needed"
        return inconclusive("O7b", claim, reason, kind="counter")
    return at_most(
        "O7b",
        claim,
        loss.share,
        share + SHARE_POINTS,
        samples=loss.requests,
        unit="share",
        label="lost",
        needed=needed,
        kind="counter",
        reason=f"{victim} owned {number(share, 'share')}",
        numbers={"victim_share": share},
    )


def judge_random_loses_more(local: Loss, random: Loss) -> Judgement:
    """O7 (c): random placement on the same trace loses 3 x more, else INCONCLUSIVE.

    It is the control: where it loses no more, the trace could not show the difference.
    """
    claim = "control: random placement loses 3 x local-first"
    factor = random.share / local.share if local.share else float("inf")
    judgement = at_least(
        "O7c",
        claim,
        random.share,
        RANDOM_FACTOR * local.share,
        samples=min(local.requests, random.requests),
        unit="share",
        label="random lost",
        kind="counter",
        reason=f"local-first lost {number(local.share, 'share')}",
        numbers={"factor": factor},
    )
    if judgement.verdict is Verdict.FAIL or random.lost == 0:
        words = f"the trace does not tell the placements apart ({judgement.reason})"
        return replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=words)
    return judgement


def judge_few_stores(maps: Iterable[PageMap], *, most: float) -> Judgement:
    """O7: local-first holds the private pages of a request on few stores (mean)."""
    counts = [len(one.stores) for one in maps if one.stores]
    mean = sum(counts) / len(counts) if counts else float("nan")
    return at_most(
        "O7",
        "the pages of a request lie on few stores",
        mean,
        most,
        samples=len(counts),
        unit="stores",
        label="mean",
        kind="counter",
    )


def judge_untouched_reuse(
    healthy: Sequence[Sample],
    fault: Sequence[Sample],
    maps: Iterable[PageMap],
    victim: str,
) -> Judgement:
    """O7: a request with no page on the victim reuses exactly what it did before."""
    before = {a.request_id: _reused(a) for _, a in answered(tuple(healthy))}
    after = {a.request_id: _reused(a) for _, a in answered(tuple(fault))}
    names = [one.request_id for one in maps if not one.touches(victim)]
    both = [name for name in names if name in before and name in after]
    worse = sum(after[name] < before[name] for name in both)
    return none_of(
        "O7",
        "nothing collateral: untouched requests keep their reuse",
        worse,
        of=len(both),
        what="lost reuse",
    )


def untouched(
    samples: Iterable[Sample], maps: Iterable[PageMap], victim: str
) -> list[Sample]:
    """The samples whose request has a map and no page on the victim."""
    names = {one.request_id for one in maps if not one.touches(victim)}
    return [sample for sample in samples if sample.request.request_id in names]


def byte_share(owned_bytes: Mapping[str, int], victim: str) -> float:
    """The victim's share of all bytes in the pool."""
    total = sum(owned_bytes.values())
    return owned_bytes.get(victim, 0) / total if total else 0.0


def judge_removal_time(taken_s: float, *, objects: int) -> Judgement:
    """O8: removing a store returns in milliseconds, whatever it holds."""
    return at_most(
        "O8",
        "removing a store returns in milliseconds",
        taken_s,
        REMOVAL_S,
        samples=1,
        unit="s",
        reason=f"{objects} objects on it",
    )


def judge_nobody_sent(
    lookups: Sequence[tuple[float, Sequence[str]]],
    *,
    removed: str,
    returned_at_s: float,
) -> Judgement:
    """O8: from the instant the removal returned, no lookup names the store.

    `lookups` are (start, stores named); those that started before are not judged.
    """
    after = [stores for at_s, stores in lookups if at_s >= returned_at_s]
    sent = sum(removed in stores for stores in after)
    return none_of(
        "O8",
        "nobody is sent to a removed store",
        sent,
        of=len(after),
        what=f"lookups named {removed}",
    )


def _reused(answer: Answer) -> int:
    return answer.l1_tokens + answer.l2_tokens + answer.l3_tokens

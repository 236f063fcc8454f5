from __future__ import annotations

import pytest

from chaos.judge.blast import (
    Loss,
    PageMap,
    byte_share,
    judge_few_stores,
    judge_local_loss,
    judge_nobody_sent,
    judge_prediction,
    judge_random_loses_more,
    judge_removal_time,
    judge_untouched_reuse,
    measured_loss,
    predicted_loss,
    untouched,
)
from chaos.judge.verdict import Verdict

PAGE = 64
STORES = [f"store-{i}" for i in range(8)]


def page_map(name, *owners, shared=0, replicated=False):
    holders = tuple((one,) if isinstance(one, str) else tuple(one) for one in owners)
    return PageMap(
        request_id=name, owners=holders, shared_pages=shared, replicated=replicated
    )


def local_first(requests=80, pages=16):
    """Each request wholly on the store beside its writer."""
    return [page_map(f"r{i}", *[STORES[i % 8]] * pages) for i in range(requests)]


def scattered(requests=80, pages=16):
    """Every page on the next store, as random placement does."""
    return [
        page_map(f"r{i}", *(STORES[(i + j) % 8] for j in range(pages)))
        for i in range(requests)
    ]


def arm(fabricate, maps, victim="", *, extra_loss=0):
    """Samples that reuse what the map still gives, less `extra_loss` pages each."""
    return [
        fabricate.sample(
            one.request_id,
            tokens=2048,
            l3=max(0, one.reusable(victim) - extra_loss) * PAGE,
        )
        for one in maps
    ]


OWNED = dict.fromkeys(STORES, 100)
WRITERS = dict.fromkeys(STORES, 1)


def test_reuse_ends_at_the_first_page_that_nobody_else_holds():
    owners = ("a", ("a", "b"), "b", "a", "b")
    one = page_map("r0", *owners, replicated=True)

    assert one.reusable() == 5
    assert one.reusable("a") == 0
    assert one.reusable("b") == 2
    assert page_map("r0", *owners).reusable("b") == 1
    assert one.reusable("c") == 5
    assert page_map("r0", "a", (), "a").reusable() == 1


def test_predicted_loss_counts_everything_behind_the_hole():
    loss = predicted_loss([page_map("r0", "a", "b", "a", "a")], "b")

    assert (loss.pages, loss.lost, loss.share) == (4, 3, 0.75)


def test_local_first_loses_the_victims_share_and_random_nearly_everything():
    local = predicted_loss(local_first(), "store-3")
    random = predicted_loss(scattered(), "store-3")

    assert local.share == byte_share(OWNED, "store-3") == 0.125
    assert random.share > 0.7


def test_a_loss_as_predicted_passes(fabricate):
    maps = local_first()
    healthy, fault = arm(fabricate, maps), arm(fabricate, maps, "store-3")

    measured = measured_loss(healthy, fault, maps, page_tokens=PAGE)
    judged = judge_prediction(predicted_loss(maps, "store-3"), measured)

    assert measured == predicted_loss(maps, "store-3")
    assert judged.verdict is Verdict.PASS
    assert judged.kind == "counter"


@pytest.mark.parametrize("extra", [1, 8])
def test_more_loss_than_the_map_says_fails(fabricate, extra):
    """Mutant: the kill of one store loses pages of others as well."""
    maps = local_first()
    fault = arm(fabricate, maps, "store-3", extra_loss=extra)

    measured = measured_loss(arm(fabricate, maps), fault, maps, page_tokens=PAGE)
    judged = judge_prediction(predicted_loss(maps, "store-3"), measured)

    assert judged.verdict is Verdict.FAIL


def test_less_loss_than_the_map_says_fails_too(fabricate):
    """Mutant: pages of a dead store are still answered."""
    maps = local_first()
    healthy = arm(fabricate, maps)

    measured = measured_loss(healthy, healthy, maps, page_tokens=PAGE)
    judged = judge_prediction(predicted_loss(maps, "store-3"), measured)

    assert judged.verdict is Verdict.FAIL


def test_a_victim_without_pages_proves_nothing(fabricate):
    maps = local_first()
    healthy = arm(fabricate, maps)
    measured = measured_loss(healthy, healthy, maps, page_tokens=PAGE)

    judged = judge_prediction(predicted_loss(maps, "store-9"), measured)

    assert judged.verdict is Verdict.INCONCLUSIVE


def judged_local(maps, **fields):
    fields = {
        "owned_bytes": OWNED,
        "victim": "store-3",
        "writers": WRITERS,
        **fields,
    }
    return judge_local_loss(predicted_loss(maps, "store-3", private=True), **fields)


def test_local_first_keeps_within_the_victims_share():
    assert judged_local(local_first()).verdict is Verdict.PASS


def test_random_placement_under_the_name_of_local_first_fails():
    """Mutant: placement random although local-first was asked for."""
    assert judged_local(scattered()).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"owned_bytes": OWNED | {"store-3": 10}}, "owns 1.4 %"),
        ({"writers": WRITERS | {"store-5": 0}}, "no writer beside store-5"),
    ],
)
def test_a_cluster_the_law_does_not_speak_of_is_inconclusive(fields, reason):
    judged = judged_local(local_first(), **fields)

    assert judged.verdict is Verdict.INCONCLUSIVE
    assert reason in judged.reason


def test_shared_pages_are_counted_apart():
    """The victim holds the system prompt of half the requests."""
    maps = [
        page_map(
            f"r{i}",
            *["store-3" if i % 2 else "store-0"] * 2,
            *[STORES[i % 8]] * 14,
            shared=2,
        )
        for i in range(80)
    ]

    everything = predicted_loss(maps, "store-3")
    private = predicted_loss(maps, "store-3", private=True)

    assert everything.share == 0.5
    assert private.requests == 40
    assert private.share == 0
    assert predicted_loss(maps, "store-4", private=True).share == 0.125


def test_measured_private_loss_uses_the_same_requests(fabricate):
    maps = [
        page_map(f"r{i}", "store-0", *[STORES[i % 8]] * 15, shared=1) for i in range(80)
    ]
    healthy, fault = arm(fabricate, maps), arm(fabricate, maps, "store-3")

    measured = measured_loss(
        healthy, fault, maps, page_tokens=PAGE, victim="store-3", private=True
    )

    assert measured == predicted_loss(maps, "store-3", private=True)
    assert measured.share == 0.125


def test_the_control_tells_or_is_inconclusive_but_never_fails():
    local = Loss(pages=800, lost=100, requests=80)
    more = Loss(pages=800, lost=320, requests=80)
    same = Loss(pages=800, lost=110, requests=80)

    assert judge_random_loses_more(local, more).verdict is Verdict.PASS
    assert judge_random_loses_more(local, same).verdict is Verdict.INCONCLUSIVE
    nothing = Loss(pages=800, lost=0, requests=80)
    assert judge_random_loses_more(nothing, nothing).verdict is Verdict.INCONCLUSIVE


def test_pages_of_a_request_lie_on_few_stores():
    assert judge_few_stores(local_first(), most=2).verdict is Verdict.PASS
    assert judge_few_stores(scattered(), most=2).verdict is Verdict.FAIL
    assert judge_few_stores([], most=2).verdict is Verdict.INCONCLUSIVE


def test_untouched_requests_keep_their_reuse(fabricate):
    maps = local_first()
    healthy, fault = arm(fabricate, maps), arm(fabricate, maps, "store-3")
    harmed = arm(fabricate, maps, "store-3", extra_loss=1)

    fine = judge_untouched_reuse(healthy, fault, maps, "store-3")
    bad = judge_untouched_reuse(healthy, harmed, maps, "store-3")

    assert (fine.verdict, fine.samples) == (Verdict.PASS, 70)
    assert bad.verdict is Verdict.FAIL
    assert len(untouched(fault, maps, "store-3")) == 70


def test_removal_takes_milliseconds():
    assert judge_removal_time(0.004, objects=200_000).verdict is Verdict.PASS
    assert judge_removal_time(0.006, objects=200_000).verdict is Verdict.FAIL


def test_nobody_is_sent_to_a_removed_store():
    before = [(1.0, ["a", "b"])]
    good, bad = [(2.1, ["b"])], [(2.1, ["b"]), (2.2, ["a"])]

    def judged(lookups):
        return judge_nobody_sent(lookups, removed="a", returned_at_s=2.0).verdict

    assert judged(before + good) is Verdict.PASS
    assert judged(before + bad) is Verdict.FAIL
    assert judged(before) is Verdict.INCONCLUSIVE

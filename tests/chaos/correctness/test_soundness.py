"""Nothing is found in histories of a correct cache, however its calls overlap.

A register that lives at single instants: each call has its effect at a moment between
its begin and its end, one whose answer is lost perhaps much later, or never. What a
mistake in the cache then looks like is found, now and then, in the same histories.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from chaos.correctness.checker import check
from chaos.correctness.findings import Kind
from chaos.correctness.laws import MOONCAKE, REFIMPL
from chaos.correctness.operation import Operation, Window
from chaos.systems.seen import Found, Seen

ABSENT, EXISTS, LATEST = -704, -705, 40.0
CALLS = 40


class Register:
    """One key. `lie` makes it wrong: "keeps" ignores removals, "forgets" writes."""

    def __init__(self, *, keeps_old=False, lie=""):
        self.value = None
        self.keeps_old = keeps_old
        self.lie = lie

    def put(self, value):
        if self.value is not None:
            return 0 if self.keeps_old else EXISTS
        self.value = None if self.lie == "forgets" and value % 3 == 0 else value
        return 0

    def remove(self):
        if self.value is None:
            return ABSENT
        self.value = self.value if self.lie == "keeps" else None
        return 0

    def lose(self):
        self.value = None


def history_of(seed, **register):
    """Operations and windows of one key, as an observer sees them."""
    dice, cache = random.Random(seed), Register(**register)
    windows = [window_of(dice) for _ in range(dice.randint(0, 2))]
    calls = [call_of(dice, number) for number in range(CALLS)]
    moments = [(call["at_s"], call) for call in calls]
    moments += [(dice.uniform(w.begin_s, w.end_s), None) for w in windows]
    for _, call in sorted(moments, key=lambda moment: moment[0]):
        if call is None:
            cache.lose()
        elif call["happens"]:
            answer(cache, call)
    return [operation_of(call) for call in calls], windows


def window_of(dice):
    begin_s = dice.uniform(0.0, LATEST)
    end_s = begin_s + dice.uniform(0.1, 3.0)
    return Window(kind="kill", target="store-0", begin_s=begin_s, end_s=end_s)


def call_of(dice, number):
    begin_s = dice.uniform(0.0, LATEST)
    end_s = begin_s + dice.choice((0.01, 0.5, 4.0))
    at_s = dice.uniform(begin_s, end_s)
    lost = dice.random() < 0.15
    if lost and dice.random() < 0.5:
        at_s += dice.uniform(0.0, 10.0)
    return {
        "number": number,
        "do": dice.choice(("put", "put", "get", "get", "exists", "remove")),
        "begin_s": begin_s,
        "end_s": end_s,
        "at_s": at_s,
        "lost": lost,
        "happens": not lost or dice.random() < 0.7,
        "codes": (),
        "seen": (),
    }


def answer(cache, call):
    do = call["do"]
    if do == "put":
        call["codes"] = (cache.put(call["number"]),)
    elif do == "remove":
        call["codes"] = (cache.remove(),)
    else:
        code = ABSENT if cache.value is None else 0
        call["codes"] = (code,)
        found = Found.NOTHING if code else Found.WHOLE
        call["seen"] = (Seen(code=code, found=found, variant=cache.value or 0),)


def operation_of(call):
    lost = call["lost"]
    return Operation(
        number=call["number"],
        step=call["number"],
        do=call["do"],
        client="c0",
        keys=("k0",),
        begin_s=call["begin_s"],
        end_s=call["end_s"],
        value=call["number"],
        codes=() if lost else call["codes"],
        seen=() if lost or call["do"] != "get" else call["seen"],
        owners=(("store-0",),),
    )


@pytest.mark.parametrize("laws", [REFIMPL, MOONCAKE], ids=["refuses", "keeps-old"])
def test_a_correct_cache_shows_nothing(laws):
    for seed in range(300):
        operations, windows = history_of(seed, keeps_old=laws.keeps_old)
        assert check(operations, windows, laws) == [], seed


@pytest.mark.parametrize(
    ("lie", "kind"),
    [("keeps", Kind.RESURRECTED), ("forgets", Kind.ACK_LOSS)],
)
def test_a_wrong_one_is_found_in_the_same_histories(lie, kind):
    found = set()
    for seed in range(50):
        operations, windows = history_of(seed, lie=lie)
        found |= {finding.kind for finding in check(operations, windows, REFIMPL)}
    assert kind in found


def test_a_tail_after_a_fault_only_ever_excuses_more():
    for seed in range(50):
        operations, windows = history_of(seed, lie="forgets")
        strict = check(operations, windows, REFIMPL)
        lenient = check(operations, windows, dataclasses.replace(REFIMPL, tail_s=5.0))
        assert set(map(str, lenient)) <= set(map(str, strict))

from __future__ import annotations

import threading

import pytest

from chaos.judge.verdict import Verdict
from chaos.steps.kv_laws import (
    KvCode,
    Race,
    judge_codes,
    judge_refused_before,
    lookups_beside_writes,
    race,
    read_back,
    seconds_until_removed,
    seconds_until_written,
    write_parts,
)


class FakeProbe:
    """A pool in a dictionary: the first writer of a key wins."""

    def __init__(self, *, refusals: int = 0) -> None:
        self.values: dict[str, int] = {}
        self.parts: list[int] = []
        self._refusals = refusals
        self._lock = threading.Lock()

    def write(self, names, *, size_bytes=0, timeout_s=2.0, variant=0, **_):
        with self._lock:
            self._refusals -= 1
            if self._refusals >= 0:
                return [-705] * len(names)
            codes = [-705 if name in self.values else 0 for name in names]
            for name in names:
                self.values.setdefault(name, variant)
            return codes

    def write_part(self, names, part, parts, *, size_bytes=0, timeout_s=2.0):
        with self._lock:
            self.parts.append(part)
        return [0] * len(names)

    def read(self, names, *, size_bytes=0, timeout_s=2.0, variant=0):
        known = [self.values[name] for name in names if name in self.values]
        wrong = sum(variant not in (None, value) for value in known)
        return self.exists(names), wrong

    def exists(self, names, *, timeout_s=2.0):
        with self._lock:
            return [0 if name in self.values else -704 for name in names]

    def remove(self, names, *, timeout_s=2.0):
        with self._lock:
            return [0 if self.values.pop(name, None) else -704 for name in names]


def test_a_code_that_is_not_allowed_fails_and_is_named():
    judged = judge_codes("D2", "unreadable", [-703, -703, 0], KvCode.NOT_READY)

    assert judged.verdict is Verdict.FAIL
    assert judged.reason == "1 x 0 ok"
    assert judged.kind == "counter"


def test_no_key_at_all_is_no_proof():
    assert judge_codes("D2", "read", [], KvCode.OK).verdict is Verdict.INCONCLUSIVE


def test_a_question_that_came_too_late_tells_nothing():
    late = judge_refused_before("D1", 0, asked_after_s=1.1, limit_s=1.0)
    early = judge_refused_before("D1", 0, asked_after_s=0.1, limit_s=1.0)

    assert late.verdict is Verdict.INCONCLUSIVE
    assert early.verdict is Verdict.FAIL


def test_a_race_has_the_codes_of_all_and_the_winner():
    probe = FakeProbe()

    found = race(probe, probe, "key", writers=8, size_bytes=64)

    assert sorted(found.codes) == [-705] * 7 + [0]
    assert [probe.values["key"]] == found.winners


def test_every_named_rank_writes_its_part_once():
    probe = FakeProbe()

    codes = write_parts([probe] * 4, ["a", "b"], [2, 0, 3], size_bytes=64)

    assert sorted(probe.parts) == [0, 2, 3]
    assert codes == [0] * 6


def test_a_writer_tries_until_all_is_there_or_the_time_is_over():
    assert seconds_until_written(FakeProbe(refusals=2), ["a"], 64, 5.0) < 5.0
    never = seconds_until_written(FakeProbe(refusals=1000), ["a"], 64, 0.05)
    assert never == float("inf")


def test_lookups_are_told_apart_by_whether_keys_were_evicted():
    counts = iter([0, 0, 0, 0, 5, 9])

    found = lookups_beside_writes(
        FakeProbe(),
        lambda: next(counts),
        hot=["hot"],
        batches=[["a"], ["b"], ["c"]],
        size_bytes=64,
        rounds=1,
        lookups=2,
    )

    assert (len(found.idle_s), len(found.evicting_s)) == (4, 2)
    assert found.evicted == 9


def test_a_key_that_is_gone_already_counts_as_removed():
    probe = FakeProbe()
    probe.write(["a"])

    assert seconds_until_removed(probe, ["a", "gone"], 5.0) < 5.0


def test_a_key_under_a_lease_for_ever_is_never_removed():
    probe = FakeProbe()
    probe.remove = lambda names, **_: [KvCode.HAS_LEASE] * len(names)

    assert seconds_until_removed(probe, ["a"], 0.05) == float("inf")


@pytest.mark.parametrize(
    ("codes", "wrong"),
    [([-705, 0, -705], 0), ([0, 0, -705], 0), ([0, -705, -705], 1), ([0, -705, 0], 1)],
)
def test_what_is_read_after_a_race_is_the_value_of_somebody_who_won(codes, wrong):
    probe = FakeProbe()
    probe.write(["k"], size_bytes=64, variant=1)

    assert read_back(probe, Race(name="k", codes=codes), size_bytes=64) == (0, wrong)


def test_where_nobody_won_nothing_is_there():
    race_ = Race(name="k", codes=[-705, -800])

    assert read_back(FakeProbe(), race_, size_bytes=64) == (-704, 0)

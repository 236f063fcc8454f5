from __future__ import annotations

from collections import Counter

import pytest
import yaml

from chaos.conformance.profile import Expect, Profile
from chaos.conformance.results import record
from chaos.conformance.soak import (
    expected_after,
    lines_of,
    profiles_after,
    soak,
    tally,
)
from chaos.history.history import History


@pytest.mark.parametrize(
    ("held", "failed", "expect"),
    [
        (0, 20, Expect.FAILS),
        (0, 19, Expect.UNKNOWN),
        (20, 0, Expect.HOLDS),
        (19, 0, Expect.UNKNOWN),
        (1, 40, Expect.SOMETIMES),
        (0, 0, Expect.UNKNOWN),
    ],
)
def test_certain_words_need_twenty_runs(held, failed, expect):
    assert expected_after(Counter(held=held, failed=failed)) is expect


def test_what_could_not_be_told_counts_for_nothing(measured):
    counts = tally([measured(held=None)] * 30 + [measured(held=False)])
    (seen,) = counts.values()

    assert seen == Counter(untold=30, failed=1)
    assert expected_after(seen) is Expect.UNKNOWN


def test_runs_add_up_to_a_profile_that_can_be_read(tmp_path, measured):
    def run(number, folder):
        if number == 3:
            return None
        folder.mkdir()
        with History(folder / "history.jsonl") as history:
            record(history, [measured(), measured(law="back-after-heal", held=True)])
        return folder

    counts = soak(21, tmp_path, run)
    (document,) = profiles_after(counts)
    made = Profile.model_validate(yaml.safe_load(yaml.safe_dump(document)))

    expects = {row.law: row.expect for row in made.expected}
    assert expects == {"stall-bounded": Expect.FAILS, "back-after-heal": Expect.HOLDS}
    assert [row.seen.failed for row in made.expected if row.law == "stall-bounded"] == [
        20
    ]
    assert any("failed 20" in line for line in lines_of(counts))

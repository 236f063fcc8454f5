from __future__ import annotations

import signal
import subprocess
from collections import Counter

import pytest
import yaml

import chaos.conformance.soak as soak_module
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
from chaos.scenario.interrupt import Interrupted


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

    counts, code = soak(21, tmp_path, run)
    assert code == 0
    (document,) = profiles_after(counts)
    made = Profile.model_validate(yaml.safe_load(yaml.safe_dump(document)))

    expects = {row.law: row.expect for row in made.expected}
    assert expects == {"stall-bounded": Expect.FAILS, "back-after-heal": Expect.HOLDS}
    assert [row.seen.failed for row in made.expected if row.law == "stall-bounded"] == [
        20
    ]
    assert any("failed 20" in line for line in lines_of(counts))


def test_what_was_measured_before_a_signal_counts(tmp_path, measured):
    def run(number, folder):
        if number == 2:
            raise Interrupted(signal.SIGTERM)
        folder.mkdir()
        with History(folder / "history.jsonl") as history:
            record(history, [measured(held=True)])
        return folder

    counts, code = soak(21, tmp_path, run)

    assert code == 128 + signal.SIGTERM
    assert list(counts.values()) == [Counter(held=2)]


def a_run(results, number):
    """Results as the harness leaves them: a directory, and a link to it."""
    made = results / f"run-at-{number}"
    made.mkdir(parents=True)
    (made / "history.jsonl").write_text("")
    (results / "latest").unlink(missing_ok=True)
    (results / "latest").symlink_to(made.name)


def test_what_an_earlier_soak_left_is_not_counted_again(tmp_path, monkeypatch):
    ended = subprocess.CompletedProcess([], 4)
    monkeypatch.setattr(soak_module, "run_child", lambda *_, **__: ended)
    run = soak_module.run_suite("default", [])
    a_run(tmp_path, 1)

    assert run(0, tmp_path) is None
    monkeypatch.setattr(
        soak_module, "run_child", lambda *_, **__: a_run(tmp_path, 2) or ended
    )
    assert run(0, tmp_path) == tmp_path / "latest"


def test_a_run_that_does_not_end_is_none(tmp_path, monkeypatch, capsys):
    def hangs(argv, *, timeout_s, **_):
        raise subprocess.TimeoutExpired(argv, timeout_s)

    monkeypatch.setattr(soak_module, "run_child", hangs)

    assert soak_module.run_suite("default", [])(0, tmp_path) is None
    assert "not done after" in capsys.readouterr().out

from __future__ import annotations

from chaos.conformance.engine import measure_engine


def test_a_protected_engine_holds_every_law(pool, stage, by_law):
    rows = by_law(measure_engine(stage()))

    assert {name: row.held for name, row in rows.items()} == {
        "stall-bounded": True,
        "healthy-keys-used": True,
        "no-failure": True,
        "back-after-heal": True,
    }
    assert rows["healthy-keys-used"].numbers["tokens_due"] > 0


def test_a_wait_beyond_the_deadline_and_a_poll_is_a_stall(pool, stage, by_law):
    pool.wait_s = 0.4
    row = by_law(measure_engine(stage()))["stall-bounded"]

    assert row.held is False
    assert row.numbers["stall_s"] == 0.4


def test_a_few_answers_beside_none_do_not_say_that_it_holds(pool, stage, by_law):
    pool.fails = True
    row = by_law(measure_engine(stage(window_s=0.2)))["stall-bounded"]

    assert row.samples >= 5
    assert row.held is None


def test_pages_of_healthy_stores_that_are_not_used_are_lost(pool, stage, by_law):
    pool.l3 = False
    row = by_law(measure_engine(stage(window_s=0.2)))["healthy-keys-used"]

    assert row.held is False
    assert "0 of" in row.observed


def test_a_request_that_fails_or_is_wrong_is_told_apart(pool, stage, by_law):
    pool.fails = True
    failed = by_law(measure_engine(stage(window_s=0.2)))["no-failure"]
    pool.fails, pool.output = False, "other"
    wrong = by_law(measure_engine(stage(window_s=0.2)))["no-failure"]

    assert failed.held is False
    assert failed.numbers["failed"] > 0
    assert wrong.held is False
    assert wrong.numbers["wrong"] > 0


def test_a_pool_that_stays_broken_is_not_back(pool, stage, by_law, monkeypatch):
    monkeypatch.setattr("chaos.conformance.engine.BACK_WITHIN_S", 0.2)
    pool.never_back = True
    row = by_law(measure_engine(stage(window_s=0.2)))["back-after-heal"]

    assert row.held is False


def test_a_fault_of_the_master_asks_nothing_of_healthy_pages(stage, by_law):
    rows = by_law(measure_engine(stage(of_master=True, window_s=0.3)))

    assert "healthy-keys-used" not in rows
    assert rows["no-failure"].held is True

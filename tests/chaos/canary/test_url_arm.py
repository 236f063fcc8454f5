from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.canary.live import Asked, check, make_arms, measure
from chaos.canary.sides import Shape, arm_of, side_of
from chaos.errors import UsageError


class NoLedger:
    """Endpoints start nothing, so nothing is written down."""


def asked_of(tmp_path, baseline, canary, **fields):
    sides = (side_of("baseline", baseline), side_of("canary", canary))
    shape = Shape(seed=3, model=fields.pop("model", "tiny"))
    settings = {"requests": 24, "per_block": 8, "rate_per_s": 80.0, "sessions": 8}
    return Asked(sides=sides, shape=shape, out=tmp_path, **{**settings, **fields})


def measured(asked):
    arms = make_arms(asked, NoLedger())
    try:
        early = measure(asked, arms, NoLedger(), lambda _line: None)
    finally:
        for arm in arms.values():
            arm.close()
    return early, [directory(asked.directory(label)) for label in arms]


def directory(path: Path):
    text = (path / "requests.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return json.loads((path / "meta.json").read_text(encoding="utf-8")), rows


def test_two_urls_get_the_same_trace_and_are_measured(openai_servers, tmp_path):
    slow, fast = openai_servers(), openai_servers()
    slow.lines = slow.stream(gap_s=0.01)
    asked = asked_of(tmp_path, fast.url, slow.url)

    early, ((about, rows), (_, others)) = measured(asked)

    assert early is None
    assert about["complete"] is True
    assert about["counters"] == {"hangs": 0, "residual_faults": 0}
    assert [r["request"] for r in rows] == [r["request"] for r in others]
    assert all(row["hit_tokens"] == 768 for row in rows)
    assert all(row["prompt_tokens"] == 1000 for row in rows)
    assert min(row["tpot_s"] for row in others) > 0.005
    # What neither server can tell is not claimed.
    assert all(row["cache_wait_s"] is None and row.get("rpcs") is None for row in rows)
    prompts = [[b["prompt"] for b in s.bodies[1:]] for s in (slow, fast)]
    assert sorted(prompts[0]) == sorted(prompts[1])


def test_a_group_serves_sessions_at_home(openai_servers, tmp_path):
    made = [openai_servers() for _ in range(4)]
    first, second = (",".join(s.url for s in pair) for pair in (made[:2], made[2:]))
    asked = asked_of(tmp_path, first, second, roam=0.0)

    _, ((_, rows), _) = measured(asked)

    homes = {(row["session"], row["host"]) for row in rows}
    assert len(homes) == 8
    assert {host for _, host in homes} == {s.url for s in made[:2]}


def test_groups_of_different_size_are_refused(openai_servers, tmp_path):
    one, two, three = (openai_servers() for _ in range(3))
    asked = asked_of(tmp_path, one.url, f"{two.url},{three.url}")

    with pytest.raises(UsageError, match="same number of members"):
        measured(asked)


def test_a_server_that_fails_is_rows_with_causes(openai_servers, tmp_path):
    good, bad = openai_servers(), openai_servers()
    asked = asked_of(tmp_path, good.url, bad.url)
    arms = make_arms(asked, NoLedger())
    for arm in arms.values():
        arm.start()
    bad.status = 500
    arms["canary"].start = lambda: None
    measure(asked, arms, NoLedger(), lambda _line: None)

    about, rows = directory(asked.directory("canary"))
    assert about["complete"] is True
    assert {(row["ok"], row["cause"]) for row in rows} == {(False, "HTTP 500")}
    assert all(row["hit_tokens"] is None for row in rows)


def test_a_server_that_does_not_serve_is_told_before_anything_is_measured(
    openai_servers, tmp_path
):
    good, bad = openai_servers(), openai_servers()
    bad.status = 500
    asked = asked_of(tmp_path, good.url, bad.url)

    with pytest.raises(UsageError, match="does not serve: HTTP 500"):
        measured(asked)

    assert not (tmp_path / "canary").exists()


def test_the_model_is_asked_for_when_none_is_named(openai_server):
    side = side_of("canary", openai_server.url)
    arm = arm_of(side, Shape(), ledger=None, run_dir=Path(), command="")

    assert arm.build == f"tiny at {openai_server.url}"


def test_chaos_is_refused_where_we_start_nothing(tmp_path):
    asked = asked_of(tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:8", drills=True)

    with pytest.raises(UsageError, match="an endpoint is none"):
        check(asked)

from __future__ import annotations

import json
import signal
import threading

import pytest

from chaos.canary import live
from chaos.canary.live import Asked, check, policy_of, run_asked, trace_of
from chaos.canary.policy import Policy, RelativeRule, load_policy
from chaos.canary.run_policy import policy_for
from chaos.canary.sides import Shape, side_of
from chaos.errors import UsageError
from chaos.scenario.interrupt import Interrupted


def asked_of(tmp_path, baseline="refimpl", canary="refimpl", **fields):
    sides = (side_of("baseline", baseline), side_of("canary", canary))
    settings = {"requests": 160, "per_block": 20, "rate_per_s": 200.0, "sessions": 16}
    shape = Shape(seed=3, model="tiny")
    return Asked(sides=sides, shape=shape, out=tmp_path, **{**settings, **fields})


@pytest.fixture
def lenient(monkeypatch):
    """A policy that a hundred requests to a server in this process can decide."""
    policy = Policy(
        name="test",
        invariants=("hangs",),
        relative=(
            RelativeRule(metric="ttft_s", quantile=0.5, max_ratio=3.0, min_samples=50),
            RelativeRule(metric="error_rate", max_delta=0.2, min_samples=50),
        ),
        validity={"max_lag_ratio": None},
        host_spread=0.0,
    )
    monkeypatch.setattr(live, "policy_of", lambda _asked: policy)


def meta(tmp_path, label):
    return json.loads((tmp_path / label / "meta.json").read_text(encoding="utf-8"))


def is_stopped(result) -> bool:
    """FAIL; only a client that lagged on a busy machine may leave it open."""
    if result.verdict.value == "FAIL":
        return True
    lagged = [j for j in result.judgements if j.name == "lag"]
    return any(j.verdict.value == "INCONCLUSIVE" for j in lagged)


def test_equal_endpoints_are_measured_whole_and_not_stopped(
    openai_servers, tmp_path, lenient
):
    one, other = openai_servers(), openai_servers()
    one.delay_s = other.delay_s = 0.02

    result = run_asked(
        asked_of(tmp_path, one.url, other.url, requests=100), say=lambda _line: None
    )

    # PASS on a machine that is not busy, and never FAIL.
    assert result.verdict.value != "FAIL", result.judgements
    counted = [each for each in result.judgements if each.family == "invariant"]
    assert [each.verdict.value for each in counted] == ["PASS"]
    assert meta(tmp_path, "canary")["complete"] is True


def test_a_slow_endpoint_is_stopped_before_the_planned_end(
    openai_servers, tmp_path, lenient
):
    one, slow = openai_servers(), openai_servers()
    one.delay_s, slow.delay_s = 0.01, 0.1
    said: list[str] = []

    asked = asked_of(tmp_path, one.url, slow.url, requests=240, per_block=60)
    result = run_asked(asked, say=said.append)

    assert result.verdict.value == "FAIL"
    assert result.aborted_early
    assert meta(tmp_path, "canary")["complete"] is False
    assert any("before the planned end" in line for line in said)


def test_too_few_rows_show_no_harm_before_the_end(openai_servers, tmp_path, lenient):
    one, slow = openai_servers(), openai_servers()
    one.delay_s, slow.delay_s = 0.01, 0.1

    asked = asked_of(tmp_path, one.url, slow.url, requests=100)
    result = run_asked(asked, say=lambda _line: None)

    assert not result.aborted_early
    assert is_stopped(result), result.judgements


def test_nobody_looks_early_when_that_is_not_wanted(openai_servers, tmp_path, lenient):
    one, slow = openai_servers(), openai_servers()
    one.delay_s, slow.delay_s = 0.01, 0.1

    asked = asked_of(tmp_path, one.url, slow.url, requests=120, early_abort=False)
    result = run_asked(asked, say=lambda _line: None)

    assert is_stopped(result), result.judgements
    assert not result.aborted_early
    assert meta(tmp_path, "canary")["complete"] is True


def test_an_endpoint_that_dies_half_way_never_passes(openai_servers, tmp_path, lenient):
    one, dying = openai_servers(), openai_servers()
    one.delay_s = dying.delay_s = 0.01

    def say(line):
        if "block 2" in line:
            dying.stop()

    result = run_asked(asked_of(tmp_path, one.url, dying.url), say=say)

    assert is_stopped(result), result.judgements


def test_sigterm_ends_a_run_orderly(openai_servers, tmp_path, lenient):
    one, other = openai_servers(), openai_servers()
    main = threading.main_thread().ident

    def say(line):
        if "block 1" in line:
            signal.pthread_kill(main, signal.SIGTERM)

    with pytest.raises(Interrupted) as ended:
        run_asked(asked_of(tmp_path, one.url, other.url), say=say)

    assert ended.value.exit_code == 128 + signal.SIGTERM
    for label in ("baseline", "canary"):
        found = meta(tmp_path, label)
        assert found["complete"] is False
        assert "SIGTERM" in found["incomplete_because"]


def test_one_seed_is_one_trace(tmp_path):
    one, same = asked_of(tmp_path), asked_of(tmp_path)
    other = Asked(**{**vars_of(one), "shape": Shape(seed=4)})

    assert trace_of(one) == trace_of(same)
    assert trace_of(one) != trace_of(other)
    assert len(trace_of(one)) == 160


def vars_of(asked):
    return {name: getattr(asked, name) for name in Asked.__dataclass_fields__}


def test_a_trace_file_is_replayed_as_far_as_asked(tmp_path):
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    rows = [json.dumps({**row, "timestamp": at}) for at in (0, 500, 900)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")

    asked = asked_of(tmp_path, trace=path, requests=2, per_block=1)

    assert [request.at_s for request in trace_of(asked)] == [0.0, 0.5]


def test_a_trace_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="--trace"):
        trace_of(asked_of(tmp_path, trace=tmp_path / "nothing"))


def test_another_seed_is_another_text_for_every_server(tmp_path):
    one = trace_of(asked_of(tmp_path))
    other = trace_of(Asked(**{**vars_of(asked_of(tmp_path)), "shape": Shape(seed=4)}))

    ids = [{block for r in trace for block in r.hash_ids} for trace in (one, other)]
    assert not ids[0] & ids[1]


def test_arms_do_not_share_a_server(tmp_path):
    with pytest.raises(UsageError, match="is in both arms"):
        check(asked_of(tmp_path, "http://a:1,http://b:1", "http://b:1,http://c:1"))


def test_fewer_requests_than_a_block_are_refused(tmp_path):
    with pytest.raises(UsageError, match="less than one block"):
        check(asked_of(tmp_path, requests=10))


def test_a_measurement_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "canary").mkdir()
    (tmp_path / "canary" / "requests.jsonl").touch()

    with pytest.raises(UsageError, match="holds a measurement already"):
        check(asked_of(tmp_path))


def test_the_policy_asks_for_what_the_run_can_show(tmp_path):
    quiet = policy_of(asked_of(tmp_path))
    drilled = policy_of(asked_of(tmp_path, drills=True))
    played = policy_of(asked_of(tmp_path, scenarios=(tmp_path / "x.yaml",)))
    urls = policy_of(asked_of(tmp_path, "http://a:1", "http://b:1"))

    assert "wrong_bytes" in quiet.invariants
    assert "late_reads" not in quiet.invariants
    assert "late_reads" in drilled.invariants
    assert "unsteady" in played.invariants
    assert {rule.metric for rule in played.relative} >= {"fault_ttft_s", "rpcs"}
    assert urls.invariants == ("hangs", "residual_faults")


def test_the_policy_file_and_the_word_of_the_operator_win(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(
        "schema: canary.policy/1\nname: mine\ninvariants: [hangs]\n", encoding="utf-8"
    )

    found = policy_of(asked_of(tmp_path, policy=path, on_inconclusive="extend"))

    assert (found.name, found.on_inconclusive) == ("mine", "extend")


@pytest.mark.parametrize("kind", ["refimpl", "mooncake", "urls"])
def test_the_policy_of_a_live_run_is_a_file_that_says_the_same(tmp_path, kind):
    policy = policy_for({kind}, played=True, drilled=True)
    off = policy.model_copy(
        update={"validity": policy.validity.model_copy(update={"max_lag_ratio": None})}
    )

    for each in (policy, off):
        live.write_policy(tmp_path / "policy.yaml", each)
        assert load_policy(tmp_path / "policy.yaml") == each

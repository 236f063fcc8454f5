"""Policies as files: the shipped ones, defaults, and mistakes with their lines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from chaos.canary.errors import PolicyError
from chaos.canary.policy import default_policy, load_policy, parse_policy

SUITES = Path(__file__).parents[3] / "suites" / "canary"
HEAD = "name: x\ninvariants: [hangs]\n"


def told(text):
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.yaml")
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_default_file_says_what_the_default_is() -> None:
    assert load_policy(SUITES / "default.yaml") == default_policy()


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_policies_can_be_read(path) -> None:
    assert load_policy(path).name == path.stem


def test_rates_know_what_is_worse_and_ratios_are_judged_as_logarithms() -> None:
    policy = parse_policy(
        HEAD + "relative:\n"
        "  - {metric: hit_rate, max_delta: 1%}\n"
        "  - {metric: error_rate, max_delta: 0.1%}\n"
        "  - {metric: ttft_s, quantile: 0.995, max_ratio: 1.5}\n"
    )
    hits, errors, tail = policy.relative

    assert (hits.statistic, hits.worse, hits.limit) == ("rate", "down", 0.01)
    assert (errors.worse, errors.name) == ("up", "error_rate")
    assert (tail.name, tail.limit) == ("ttft_s p99.5", math.log(1.5))


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "p.yaml:1", "empty"),
        ("name: x\n", "p.yaml:1", "asks for nothing"),
        ("invariants: [hangs]\n", "p.yaml:1: name", "is missing"),
        (HEAD + "alhpa: 0.01\n", "p.yaml:3: alhpa", "did you mean alpha?"),
        (HEAD + "alpha: 0.5\n", "p.yaml:3: alpha", "less than or equal to 0.1"),
        (HEAD + "min_effect: .inf\n", "p.yaml:3: min_effect", "number"),
        (HEAD + "noise_floor: -0.5\n", "p.yaml:1", "standard deviation"),
        (HEAD + "on_inconclusive: pass\n", "p.yaml:3: on_inconclusive", "'block'"),
        (HEAD + "schema: canary.policy/9\n", "p.yaml:3: schema", "canary.policy/1"),
        (
            HEAD + "slos:\n  - {metric: ttft_s, quantile: 0.99, at_most: soon}\n",
            "p.yaml:4: slos[0].at_most: 'soon'",
            "is no duration",
        ),
        (
            HEAD + "relative:\n  - {metric: ttft_s, quantile: 0.5, max_delta: 1%}\n",
            "p.yaml:4: relative[0]",
            "needs max_ratio",
        ),
        (
            HEAD + "relative:\n  - {metric: ttft_s, max_ratio: 1.1}\n",
            "p.yaml:4: relative[0]",
            "needs a quantile",
        ),
        (
            HEAD + "relative:\n  - {metric: hit_rate, max_ratio: 1.1}\n",
            "p.yaml:4: relative[0]",
            "needs max_delta",
        ),
        (
            HEAD + "relative:\n  - {metric: ttft_s, quantile: 1.5, max_ratio: 2}\n",
            "p.yaml:4: relative[0].quantile: 1.5",
            "less than 1",
        ),
        (
            HEAD + "relative:\n" + "  - {metric: error_rate, max_delta: 1%}\n" * 2,
            "p.yaml:1",
            "judged twice",
        ),
        (
            HEAD + "validity: {max_lagg_ratio: 1}\n",
            "p.yaml:3: validity.max_lagg_ratio",
            "did you mean max_lag_ratio?",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_and_its_remedy(text, place, words) -> None:
    message = told(text)

    assert message.startswith(place)
    assert words in message
    assert "\n" not in message


def test_a_missing_file_is_one_line(tmp_path) -> None:
    with pytest.raises(PolicyError, match=r"No such file.*name a policy file"):
        load_policy(tmp_path / "none.yaml")


def test_a_file_of_bytes_is_one_line(tmp_path) -> None:
    (tmp_path / "p.yaml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(PolicyError, match="UTF-8"):
        load_policy(tmp_path / "p.yaml")


@pytest.mark.parametrize(
    "rule",
    [
        "{metric: hit_rate, max_delta: 1%, worse: up}",
        "{metric: error_rate, max_delta: 1%, worse: down}",
        "{metric: ttft_s, quantile: 0.5, max_ratio: 1.05, worse: down}",
        "{metric: my_wait_s, statistic: mean, max_ratio: 1.05, worse: down}",
    ],
)
def test_a_rule_that_is_turned_round_is_refused(rule) -> None:
    text = f"schema: canary.policy/1\nname: x\nrelative:\n  - {rule}\n"

    with pytest.raises(PolicyError, match="leave `worse` out"):
        parse_policy(text)


def test_only_of_other_metrics_it_is_said_what_is_worse() -> None:
    rule = "{metric: throughput, statistic: mean, max_ratio: 1.05, worse: down}"
    text = f"schema: canary.policy/1\nname: x\nrelative:\n  - {rule}\n"

    assert parse_policy(text).relative[0].worse == "down"

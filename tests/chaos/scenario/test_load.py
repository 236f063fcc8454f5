"""A mistake in a file is told with its line, its field, its value and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.errors import UsageError
from chaos.scenario.errors import ScenarioError
from chaos.scenario.load import MAX_BYTES, load_scenario, parse_scenario, read_yaml

ROOT = Path(__file__).parents[3]
GOOD = """\
name: a store dies
timeline:
  - fault: kill
    target: store-1
    at: 10s
    for: 10s
abort:
  - error_rate: 5%
"""


def problems(text):
    with pytest.raises(ScenarioError) as refused:
        parse_scenario(text, "s.yaml")
    assert refused.value.exit_code == 2
    return list(refused.value.lines)


def test_a_good_file_is_read_with_sound_defaults() -> None:
    scenario = parse_scenario(GOOD)

    assert scenario.seed == 1
    assert scenario.limits.max_nodes_down == 1
    assert scenario.judge == ("O1", "O2", "O3", "O4", "O11", "recovery")
    assert scenario.timeline[0].for_ == 10.0


@pytest.mark.parametrize("path", sorted((ROOT / "suites/scenarios").glob("*.yaml")))
def test_the_files_of_the_suites_can_be_read(path) -> None:
    assert load_scenario(path).name


def test_an_unknown_field_is_told_with_the_one_that_was_meant() -> None:
    assert problems(GOOD.replace("timeline:", "seeed: 3\ntimeline:")) == [
        "s.yaml:2: seeed: 3 is no field here; did you mean seed?"
    ]


def test_a_missing_abort_is_told_with_the_remedy() -> None:
    (line,) = problems(GOOD.replace("abort:\n  - error_rate: 5%\n", ""))

    assert line.startswith("s.yaml:1: abort: is missing; list conditions")
    assert "`abort: none` with an abort_reason" in line


def test_no_abort_must_be_said_with_a_reason() -> None:
    none = GOOD.replace("abort:\n  - error_rate: 5%", "abort: none")

    (line,) = problems(none)
    assert line.startswith("s.yaml:7: abort: 'none' none needs a reason")
    scenario = parse_scenario(none + "abort_reason: it is a laptop\n")
    assert scenario.abort == ()


@pytest.mark.parametrize("empty", ["abort: []", "abort:", "abort: {}", "abort: null"])
def test_an_empty_abort_is_not_none(empty) -> None:
    (line,) = problems(GOOD.replace("abort:\n  - error_rate: 5%", empty))

    assert line.startswith("s.yaml:7: abort:")
    assert "needs a list of conditions" in line


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("at: 10s", "at: 10x", "s.yaml:5: timeline[0].at: '10x' is no duration"),
        ("    at: 10s\n", "", "s.yaml:3: timeline[0].at: is missing; say when"),
        ("kill", "kil", "s.yaml:3: timeline[0].fault: 'kil' is no fault; did you mean"),
        ("store-1", "store-9", "s.yaml:4: timeline[0].target: 'store-9' is not there;"),
        (
            "store-1",
            "{all: store}",
            "s.yaml:4: timeline[0].target: {'all': 'store'} is",
        ),
        ("    for: 10s\n", "", "s.yaml:3: timeline[0]: has no `for`; say how long"),
        ("5%", "5", "s.yaml:8: abort[0].error_rate: 5 is no share such as 5%"),
        ("error_rate", "eror_rate", "s.yaml:8: abort[0].eror_rate: '5%' is no field"),
        ("    for: 10s", "    for: 10s\n    x: 1", "s.yaml:7: timeline[0].x: 1 is no"),
        ("name: a store dies", "name: ''", "s.yaml:1: name: '' string should have at"),
    ],
)
def test_every_mistake_names_line_field_value_and_remedy(old, new, line) -> None:
    (told,) = problems(GOOD.replace(old, new, 1))

    assert told.startswith(line)


def test_all_mistakes_are_told_in_the_order_of_their_lines() -> None:
    bad = (
        GOOD.replace("10s\n    for", "x\n    for")
        .replace("5%", "x")
        .replace("name", "nam")
    )

    lines = problems(bad)

    assert [int(line.split(":")[1]) for line in lines] == sorted([1, 1, 5, 8])


def test_a_nested_mistake_is_told_where_it_stands() -> None:
    text = GOOD.replace(
        "  - fault: kill\n    target: store-1\n",
        "  - together:\n"
        "      - {fault: kill, target: store-1}\n"
        "      - {fault: latency, target: store-2, latency_ms: slow}\n",
    )

    (line,) = problems(text)

    assert line.startswith(
        "s.yaml:5: timeline[0].together[1].latency_ms: 'slow' is no int"
    )


def test_a_key_that_stands_twice_is_an_error() -> None:
    assert problems(GOOD + "name: another\n") == [
        "s.yaml:9: name: stands twice; keep one of them"
    ]


def test_aliases_are_refused_before_they_can_expand() -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"

    (line,) = problems(bomb)

    assert "is an alias; write it out" in line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("7", 7),
        ("-7", -7),
        ("0.5", 0.5),
        ("1e3", "1e3"),
        ("~", None),
        ("0x10", "0x10"),
    ],
)
def test_plain_values_have_no_traps(text, value) -> None:
    assert read_yaml(f"a: {text}\n", "f")[0] == {"a": value}


@pytest.mark.parametrize(
    "text", ["a: [1", "a: b: c", "\t- x", "a: !!python/object:os.system x", "%", "&a"]
)
def test_what_is_no_yaml_of_ours_is_one_line(text) -> None:
    (line,) = problems(text)

    assert line.startswith("s.yaml:")
    assert "\n" not in line


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "7", "--- \n...\n"])
def test_a_file_that_is_no_scenario_is_told(text) -> None:
    assert problems(text)


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_scenario(tmp_path / "none.yaml")


def test_a_file_that_is_too_long_is_not_read(tmp_path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("#" * (MAX_BYTES + 1))

    with pytest.raises(ScenarioError, match="is longer than 256 KiB"):
        load_scenario(path)


def test_a_file_that_is_no_text_is_a_usage_error(tmp_path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(UsageError, match="UTF-8"):
        load_scenario(path)


def test_values_from_a_file_are_never_more_than_words() -> None:
    (line,) = problems(GOOD.replace("store-1", '"store-1; rm -rf /"'))

    assert "'store-1; rm -rf /' is not there" in line

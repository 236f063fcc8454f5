from __future__ import annotations

import pytest

from chaos.canary.ladder.schema import LadderError, load_ladder, parse_ladder
from chaos.errors import UsageError

GOOD = """\
schema: canary.ladder/1
name: release
stages:
  - name: preflight
    gate: [preflight, --inventory, staging.yaml]
    budget: 10m
    rollback: none
  - name: canary-5%
    approve: the soak report was read
    apply: [kubectl, set, weight, 5]
    gate: [canary, judge, --baseline, b, --canary, c]
    budget: 30m
    rollback: [kubectl, set, weight, 0]
"""


def test_a_ladder_is_read_with_its_times_and_commands() -> None:
    ladder = parse_ladder(GOOD)

    assert [stage.name for stage in ladder.stages] == ["preflight", "canary-5%"]
    assert ladder.stages[0].budget == 600
    assert ladder.stages[0].undo is None
    assert ladder.stages[1].apply == ("kubectl", "set", "weight", "5")
    assert ladder.stages[1].undo == ("kubectl", "set", "weight", "0")
    assert ladder.stages[1].on_inconclusive == "hold"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("canary.ladder/1", "canary.ladder/9", "l.yaml:1: schema: 'canary.ladder/9'"),
        ("    budget: 10m\n", "", "l.yaml:4: stages[0].budget: is missing"),
        ("budget: 10m", "budget: soon", "l.yaml:6: stages[0].budget: 'soon' is no dur"),
        ("budget: 10m", "budget: 0", "is under 0.1 s"),
        ("    rollback: none\n", "", "rollback: is missing; say which command takes"),
        ("gate: [preflight", "gates: [preflight", "stages[0].gates:"),
        ("[preflight, --inventory, staging.yaml]", "preflight --all", "gate:"),
        ("[preflight, --inventory, staging.yaml]", "[]", "gate:"),
        ("[preflight, --inventory, staging.yaml]", "['', a]", "no program"),
        ("[preflight, --inventory, staging.yaml]", "[a, true]", "gate"),
        ("canary-5%", "preflight", "two stages called preflight"),
        ("[kubectl, set, weight, 0]", "none", "has an apply and no rollback"),
        ("name: release", "name: a b", "name: 'a b'"),
        ("name: release", "name: release\nname: other", "stands twice"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_field(
    old: str, new: str, told: str
) -> None:
    assert old in GOOD

    with pytest.raises(LadderError) as caught:
        parse_ladder(GOOD.replace(old, new, 1), "l.yaml")

    assert any(told in line for line in caught.value.lines), caught.value.lines
    assert all(line.startswith("l.yaml:") for line in caught.value.lines)


@pytest.mark.parametrize("text", ["", "[]", "a: [", "- x\n- y", "stages: []", "null"])
def test_what_is_no_ladder_is_refused(text: str) -> None:
    with pytest.raises(LadderError):
        parse_ladder(text)


def test_too_many_stages_are_refused() -> None:
    stage = "  - {{name: s{}, gate: [a], budget: 1s, rollback: none}}\n"
    head = "schema: canary.ladder/1\nname: n\nstages:\n"
    parse_ladder(head + "".join(stage.format(n) for n in range(32)))

    with pytest.raises(LadderError):
        parse_ladder(head + "".join(stage.format(n) for n in range(33)))


def test_a_file_that_cannot_be_read_is_one_line(tmp_path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    long = tmp_path / "long"
    long.write_text("#" * (257 << 10))

    for path in (tmp_path / "none", tmp_path, binary, long):
        with pytest.raises(UsageError) as caught:
            load_ladder(path)
        assert str(path) in str(caught.value)

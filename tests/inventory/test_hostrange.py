from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.hostrange import MAX_EXPANDED, expand


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("node", ["node"]),
        ("node[01:03]", ["node01", "node02", "node03"]),
        ("n[8:11]", ["n8", "n9", "n10", "n11"]),
        ("n[0:6:3].x", ["n0.x", "n3.x", "n6.x"]),
        ("db-[a:c]", ["db-a", "db-b", "db-c"]),
        ("[A:B]-[1:2]", ["A-1", "A-2", "B-1", "B-2"]),
        ("n[:2]", ["n0", "n1", "n2"]),
        ("n[5:5]", ["n5"]),
    ],
)
def test_both_ends_belong_to_a_range(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


@pytest.mark.parametrize(
    "pattern",
    ["n[", "n]", "n[]", "n[1]", "n[3:1]", "n[a:3]", "n[a:Z]", "n[01:100]", "n[1:2:0]",
     "n[1:2:x]", "n[1:]", "n[aa:bb]", "n[b:a]", "n[1:2:3:4]", "n[-1:2]",
     "n[\u0660:\u0663]"],
)  # fmt: skip
def test_what_is_no_range_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"range|bracket|ends|step"):
        expand(pattern)


@pytest.mark.parametrize("pattern", ["n[0:99999999]", "[0:999][0:999]", "[1:9]" * 9])
def test_a_range_is_bounded_before_it_is_built(pattern: str) -> None:
    with pytest.raises(ValueError, match=str(MAX_EXPANDED)):
        expand(pattern)


def test_a_range_may_be_as_large_as_the_bound() -> None:
    assert len(expand(f"n[1:{MAX_EXPANDED}]")) == MAX_EXPANDED


@given(st.text(alphabet="n[]:019az-", max_size=16))
def test_any_pattern_gives_different_names_or_an_error(pattern: str) -> None:
    try:
        names = expand(pattern)
    except ValueError:
        names = []

    assert len(set(names)) == len(names)

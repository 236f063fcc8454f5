from __future__ import annotations

import pytest

from inventory.errors import InventoryError
from inventory.selection import select

HOSTS = ["node01", "node02", "node10", "master"]
GROUPS = {"stores": ["node01", "node02"], "rack1": ["node02", "node10"], "empty": []}


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        ("stores", ["node01", "node02"]),
        ("node10", ["node10"]),
        ("node*", ["node01", "node02", "node10"]),
        ("stores, master", ["master", "node01", "node02"]),
        ("stores,!rack1", ["node01"]),
        ("stores,&rack1", ["node02"]),
        ("!stores", ["master", "node10"]),
        ("all", sorted(HOSTS)),
        ("rack?,!node02", ["node10"]),
        ("empty,master", ["master"]),
    ],
)
def test_patterns_choose_as_they_do_in_ansible(
    patterns: str, chosen: list[str]
) -> None:
    assert sorted(select(patterns, HOSTS, GROUPS)) == chosen


@pytest.mark.parametrize("patterns", ["storse", "", " , ", "!all", "empty", "&x"])
def test_choosing_nobody_is_an_error_never_an_empty_success(patterns: str) -> None:
    with pytest.raises(InventoryError, match="--limit") as caught:
        select(patterns, HOSTS, GROUPS)

    assert "rack1, stores" in str(caught.value)

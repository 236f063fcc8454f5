from __future__ import annotations

import pytest

from refimpl.core.hashing import component_keys
from refimpl.hicache import HiCacheSettings
from refimpl.hicache.layout import SIDECAR, layout_of


def test_components_cover_the_page_without_overlap():
    layout = layout_of(
        HiCacheSettings(
            page_bytes=1056, components=("k", "v"), sidecar_bytes=32, ranks=4
        )
    )
    spans = [(c.name, c.offset, c.size) for c in layout.components]

    assert spans == [("k", 0, 512), ("v", 512, 512), (SIDECAR, 1024, 32)]
    assert [len(pool) for pool in layout.pools] == [2, 1]


def test_the_unnamed_component_has_the_page_key_itself():
    (component,) = layout_of(HiCacheSettings()).components

    assert component.keys(b"k" * 64) == b"k" * 64


def test_named_components_have_keys_of_their_own():
    layout = layout_of(HiCacheSettings(components=("a", "b")))
    keys = bytes(range(64))
    a, b = (c.keys(keys) for c in layout.components)

    assert len({keys, a, b}) == 3
    assert a == component_keys(keys, "a")


@pytest.mark.parametrize(
    "changes",
    [
        {"components": ()},
        {"components": ("a", "a")},
        {"components": (SIDECAR,)},
        {"page_bytes": 100, "components": ("a", "b", "c")},
        {"page_bytes": 96, "sidecar_bytes": 96},
        {"page_bytes": 100, "sidecar_bytes": 34, "ranks": 3},
    ],
)
def test_a_page_that_cannot_be_cut_is_refused(changes):
    with pytest.raises(ValueError, match=r"components|cut|multiple"):
        layout_of(HiCacheSettings(**changes))

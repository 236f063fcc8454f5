from __future__ import annotations

import pytest

from chaos.canary.arms import is_hang


@pytest.mark.parametrize(
    ("wait_s", "hangs"), [(0.0, False), (0.25, False), (0.6, False), (0.8, True)]
)
def test_a_wait_is_a_hang_only_well_beyond_its_promise(wait_s, hangs):
    assert is_hang(wait_s, promise_s=0.2, poll_s=0.02) is hangs

from __future__ import annotations

import pytest

from chaos.scenario.quantities import duration_s, share, size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20.0), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0), (3, 3.0), (0, 0.0)],
)
def test_durations_are_read_as_they_are_written(text, seconds) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "bad", ["20", "s", "-1s", -1, "1d", "25h", True, None, [], float("nan"), "1:30"]
)
def test_what_is_no_duration_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration_s(bad)


def test_shares_are_percent_or_a_part_of_one() -> None:
    assert share("5%") == 0.05
    assert share(0.05) == 0.05
    assert share("100 %") == 1.0


@pytest.mark.parametrize("bad", ["5", 5, "101%", -0.1, True, "x%"])
def test_what_is_no_share_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="no share"):
        share(bad)


def test_sizes_are_whole_bytes() -> None:
    assert size_bytes("64MiB") == 64 << 20
    assert size_bytes("1.5KiB") == 1536
    assert size_bytes(7) == 7


@pytest.mark.parametrize("bad", ["64MB", 0, 0.5, "0.3B", True, "x"])
def test_what_is_no_size_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="no size"):
        size_bytes(bad)

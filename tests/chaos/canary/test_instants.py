from __future__ import annotations

import pytest

from chaos.canary.instants import instant
from chaos.errors import UsageError

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("-90m", NOW - 5400),
        ("-1.5h", NOW - 5400),
        ("-2d", NOW - 172_800),
        ("1700000000", 1_700_000_000.0),
        ("1700000000.25", 1_700_000_000.25),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T22:13:20", 1_700_000_000.0),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000.0),
        (" now ", NOW),
    ],
)
def test_instants_as_operators_write_them(text, expected) -> None:
    assert instant(text, "--from", now=NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "-5w", "nan", "inf", "-inf", "1e30", "2023-13-01", "5m"]
)
def test_what_is_no_instant_is_refused(text) -> None:
    with pytest.raises(UsageError, match="is no instant"):
        instant(text, "--from", now=NOW)


def test_the_future_is_refused() -> None:
    with pytest.raises(UsageError, match="60 s in the future"):
        instant(str(NOW + 60), "--to", now=NOW)

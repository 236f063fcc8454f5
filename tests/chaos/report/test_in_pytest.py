"""What a run of pytest leaves beside its results."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

BODY = """
from chaos.judge.limit import at_most

def test_a_law(judge):
    judge(at_most("O4", "no request fails", {value}, 1.0, samples=9))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("value", "verdict"), [(0.5, "PASS"), (2.0, "FAIL")])
def test_a_run_writes_its_reports_and_says_where(pytester, monkeypatch, value, verdict):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(pytester.path))
    pytester.makeini("[pytest]\ntimeout_method = signal\n")
    pytester.makepyfile(BODY.format(value=value))

    lean = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    result = pytester.runpytest_subprocess(*lean, "--seed", "1")

    (page,) = pytester.path.glob("results/*/*-1/report.html")
    assert f"report in {page.relative_to(pytester.path)}" in result.stdout.str()
    text = page.read_text()
    assert f"<title>{verdict}: " in text
    assert "--seed 1 --time-scale 0.1" in text
    for name in ("report.md", "metrics.prom"):
        assert (page.parent / name).stat().st_size

from __future__ import annotations

import pytest

from chaos.report.histogram import Series, read_hlog


def test_values_come_back_from_the_log(tmp_path):
    series = Series()
    for i in range(1000):
        series.add(at_s=i / 100, value_s=(i + 1) / 1000)
    series.write(tmp_path / "ttft.hlog", comment="ttft")

    merged = read_hlog(tmp_path / "ttft.hlog")

    assert merged.get_total_count() == 1000
    assert merged.get_value_at_percentile(50) == pytest.approx(500_000, rel=0.01)
    assert merged.get_max_value() == pytest.approx(1_000_000, rel=0.01)
    assert series.dropped == 0


def test_one_interval_a_second(tmp_path):
    series = Series()
    for at_s in (0.1, 0.9, 1.5, 7.0):
        series.add(at_s, 0.01)
    series.write(tmp_path / "x.hlog")

    rows = [
        row for row in (tmp_path / "x.hlog").read_text().splitlines() if "HIST" in row
    ]
    assert len(rows) == 3
    assert read_hlog(tmp_path / "x.hlog").get_total_count() == 4


def test_what_the_library_would_drop_silently_is_counted(tmp_path):
    series = Series()
    for value_s in (601.0, -1.0, float("inf"), float("nan"), 0.0, 600.0):
        series.add(0.0, value_s)
    series.write(tmp_path / "x.hlog")

    assert (series.recorded, series.dropped) == (2, 4)
    assert "dropped 4" in (tmp_path / "x.hlog").read_text()
    assert read_hlog(tmp_path / "x.hlog").get_total_count() == 2

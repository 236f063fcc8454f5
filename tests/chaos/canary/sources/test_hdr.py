from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from chaos.canary.sources import read_directory
from chaos.errors import UsageError
from chaos.report.histogram import Series


@pytest.fixture
def logged(measured):
    """A directory with logs in place of rows: `logged(ttft_us=[...], failed=2)`."""

    def write(failed=0, arm="canary", requests=None, **logs):
        rows = max(len(values) for values in logs.values()) + (failed or 0)
        counters = {} if failed is None else {"failed_requests": failed}
        folder = measured(arm, rows=0, counters=counters)
        (folder / "requests.jsonl").unlink()
        meta = json.loads((folder / "meta.json").read_text())
        meta["requests"] = rows if requests is None else requests
        (folder / "meta.json").write_text(json.dumps(meta))
        for name, values in logs.items():
            series = Series()
            for number, value in enumerate(values):
                series.add(number // 10, value)
            series.write(folder / f"{name}.hlog")
        return folder

    return write


VALUES = [0.1 + 0.001 * n for n in range(100)]


def test_values_come_back_within_a_tenth_of_a_percent(logged) -> None:
    samples = read_directory(logged(ttft_us=VALUES), "canary")
    found = np.sort(samples.metrics["ttft_s"])

    assert samples.problems == ()
    assert samples.request is None
    assert np.allclose(found, VALUES, rtol=1.1e-3)
    assert (found >= np.array(VALUES) * (1 - 1e-6)).all()
    assert list(samples.start_s[:11]) == pytest.approx([0.0] * 10 + [1.0], abs=1e-5)


def test_requests_that_failed_are_rows_without_a_value(logged) -> None:
    samples = read_directory(logged(ttft_us=VALUES, failed=3), "canary")

    assert len(samples) == 103
    assert int((~samples.ok).sum()) == 3
    assert np.isnan(samples.metrics["ttft_s"][~samples.ok]).all()


def test_logs_that_do_not_say_how_many_failed_forbid_a_pass(logged) -> None:
    samples = read_directory(logged(ttft_us=VALUES, failed=None), "canary")

    assert any("failed_requests" in problem for problem in samples.problems)


def test_logs_of_different_lengths_are_padded_with_nothing(logged) -> None:
    samples = read_directory(logged(ttft_us=VALUES, e2e_us=VALUES[:60]), "canary")

    assert int(np.isnan(samples.metrics["e2e_s"]).sum()) == 40


def test_the_lag_of_the_load_has_its_own_column(logged) -> None:
    samples = read_directory(
        logged(ttft_us=VALUES, lag_us=[0.0005] * len(VALUES)), "canary"
    )

    assert set(samples.metrics) == {"ttft_s"}
    assert np.allclose(samples.lag_s, 0.0005, rtol=2e-3)


def test_fewer_values_than_requests_are_a_problem(logged) -> None:
    samples = read_directory(logged(ttft_us=VALUES, requests=120), "canary")

    assert any("of 120 requests" in problem for problem in samples.problems)


def test_values_that_did_not_fit_are_a_problem(logged) -> None:
    folder = logged(ttft_us=[*VALUES, 900.0], requests=100)

    assert any(
        "out of its range" in p for p in read_directory(folder, "canary").problems
    )


def test_a_log_cut_anywhere_is_a_problem(logged) -> None:
    folder = logged(ttft_us=VALUES)
    path = folder / "ttft_us.hlog"
    whole = path.read_bytes()
    for end in range(0, len(whole), 13):
        path.write_bytes(whole[:end])
        assert read_directory(folder, "canary").problems, end


def test_a_log_with_a_changed_byte_is_a_problem_or_unchanged(logged) -> None:
    folder = logged(ttft_us=VALUES)
    path = folder / "ttft_us.hlog"
    whole = path.read_bytes()
    begin = whole.index(b"HIST")
    good = read_directory(folder, "canary").metrics["ttft_s"]
    for place in range(begin, len(whole) - 1, 11):
        changed = bytearray(whole)
        changed[place] = ord("A") if whole[place] != ord("A") else ord("B")
        path.write_bytes(bytes(changed))
        samples = read_directory(folder, "canary")
        same = np.array_equal(samples.metrics["ttft_s"], good)
        assert samples.problems or same, place


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 100, b"1.0,1.0,1.0,HISTFAAA\n", b"#[Histogram log format\nx\n"],
)
def test_what_is_no_log_is_a_problem(logged, content) -> None:
    folder = logged(ttft_us=VALUES)
    (folder / "ttft_us.hlog").write_bytes(content)
    samples = read_directory(folder, "canary")

    assert len(samples) == 0
    assert samples.problems


def test_packed_logs_are_refused_with_the_remedy(logged) -> None:
    folder = logged(ttft_us=VALUES)
    packed = folder / "ttft_us.hlog.gz"
    packed.write_bytes(gzip.compress((folder / "ttft_us.hlog").read_bytes()))
    (folder / "ttft_us.hlog").unlink()

    with pytest.raises(UsageError, match="gunzip"):
        read_directory(folder, "canary")


def test_a_packed_file_under_the_name_of_a_log_is_a_problem(logged) -> None:
    folder = logged(ttft_us=VALUES)
    path = folder / "ttft_us.hlog"
    path.write_bytes(gzip.compress(path.read_bytes()))

    assert read_directory(folder, "canary").problems


def test_a_log_whose_name_has_no_unit_is_refused(logged) -> None:
    folder = logged(ttft_us=VALUES)
    (folder / "ttft_us.hlog").rename(folder / "ttft.hlog")

    with pytest.raises(UsageError, match="microseconds"):
        read_directory(folder, "canary")

from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from chaos.cli import app
from chaos.conformance.measured import Measured
from chaos.conformance.results import measured_in, record
from chaos.errors import UsageError
from chaos.history.history import History


@pytest.fixture
def results(tmp_path):
    def build(*rows):
        with History(tmp_path / "history.jsonl") as history:
            history.info("limits", poll_s=0.02)
            record(history, rows)
        return tmp_path

    return build


@pytest.fixture
def profiles(tmp_path, row):
    def build(**changes):
        folder = tmp_path / "profiles"
        folder.mkdir()
        document = {
            "system": "mooncake",
            "version": "1.2.3",
            "expected": [row(**changes)],
        }
        (folder / "m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        return folder

    return build


def report(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_what_was_recorded_is_read_back(results, measured):
    rows = [measured(), measured(held=None, reason="too few")]

    assert measured_in(results(*rows)) == rows


def test_a_row_that_lacks_something_is_refused(measured):
    row = measured().to_row()
    del row["held"]
    with pytest.raises(ValueError, match="held"):
        Measured.from_row(row)


def test_a_folder_without_a_history_is_no_run(tmp_path):
    with pytest.raises(UsageError, match="not the directory of a run"):
        measured_in(tmp_path)


def test_a_known_failure_is_reported_and_no_error(results, measured, profiles):
    done = report("--conformance", results(measured()), "--profiles", profiles())

    assert done.exit_code == 0
    assert "known failure" in done.stdout


@pytest.mark.parametrize(
    ("held", "code"),
    [(True, 1), (None, 3)],
)
def test_a_finding_is_1_and_what_could_not_be_told_is_3(
    results, measured, profiles, held, code
):
    path = results(measured(held=held))
    done = report("--conformance", path, "--profiles", profiles(), "--json")

    assert done.exit_code == code
    assert json.loads(done.stdout)[0]["held"] is held


def test_a_version_without_a_profile_is_inconclusive(results, measured, profiles):
    path = results(measured(version="9.9.9", held=True))
    done = report("--conformance", path, "--profiles", profiles())

    assert done.exit_code == 3
    assert "scripts/soak mooncake" in done.stdout


def test_nothing_measured_is_inconclusive(results, profiles):
    done = report("--conformance", results(), "--profiles", profiles())

    assert done.exit_code == 3


def test_a_report_of_nothing_is_asked_wrongly(results):
    done = report(results())

    assert isinstance(done.exception, UsageError)

"""`canary judge|report|floor` as an operator calls them, hostile inputs included."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from xml.etree import ElementTree as Xml

import pytest

from chaos.canary.cli import main
from chaos.report.histogram import Series
from chaos.safety.identity import wait_until

POLICY = """\
schema: canary.policy/1
name: small
invariants: [wrong_bytes, hangs, residual_faults]
relative:
  - {metric: ttft_s, quantile: 0.5, max_ratio: 1.3}
  - {metric: hit_rate, max_delta: 2%}
  - {metric: error_rate, max_delta: 5%}
"""


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def canary(capsys, monkeypatch):
    """Runs the command here; answers (exit code, standard output, standard error)."""

    def run(*arguments):
        words = [str(word) for word in arguments]
        monkeypatch.setattr(sys, "argv", ["canary", *words])
        code = main(words)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def judge(canary, measured, policy):
    """Judges a sound baseline against what `spoil` made of a sound canary."""

    def run(spoil=lambda folder: None, *options, **made):
        baseline = measured("baseline", seed=1)
        folder = measured("canary", **{"seed": 2, **made})
        spoil(folder)
        return canary(
            *("judge", "--baseline", baseline, "--canary", folder),
            *("--policy", policy, *options),
        )

    return run


def test_an_unchanged_build_passes(judge) -> None:
    code, out, err = judge()

    assert (code, err) == (0, "")
    assert "verdict: PASS (policy small: 0 FAIL, 0 INCONCLUSIVE" in out
    assert "again: canary judge --baseline" in out


def test_a_slower_build_fails(judge) -> None:
    code, out, _ = judge(slow=1.6)

    assert code == 1
    assert "FAIL ttft_s p50" in out
    assert "verdict: FAIL" in out


@pytest.mark.parametrize(
    ("counters", "code"),
    [
        ({"wrong_bytes": 1, "hangs": 0, "residual_faults": 0}, 1),
        ({"wrong_bytes": 0, "hangs": 0, "residual_faults": 2}, 5),
        ({"wrong_bytes": 0, "residual_faults": 0}, 3),
        ({}, 3),
    ],
)
def test_an_invariant_that_is_broken_or_was_not_counted(judge, counters, code) -> None:
    assert judge(counters=counters)[0] == code


def test_a_pass_is_written_in_every_shape(judge, tmp_path) -> None:
    code, out, _ = judge(lambda folder: None, "--out", tmp_path / "v", "--json")
    folder = tmp_path / "v"

    assert code == 0
    assert json.loads(out) == json.loads((folder / "verdict.json").read_text())
    assert Xml.parse(folder / "junit.xml").getroot().tag == "testsuites"
    assert (folder / "metrics.prom").read_text().endswith("# EOF\n")
    assert (folder / "summary.md").read_text().startswith("## canary: ")
    assert (folder / "annotations.txt").read_text().startswith("::notice ")
    assert sorted(path.name for path in folder.iterdir()) == [
        *("annotations.txt", "junit.xml", "metrics.prom", "plots"),
        *("report.html", "report.txt", "summary.md", "verdict.json"),
    ]


def test_an_old_verdict_does_not_outlive_a_new_one_that_cannot_be_written(
    judge, tmp_path
) -> None:
    folder = tmp_path / "v"
    (folder / "summary.md").mkdir(parents=True)
    (folder / "verdict.json").write_text('{"verdict": "PASS"}')
    code, _, err = judge(lambda folder: None, "--out", folder)

    assert code == 2
    assert "cannot be written" in err
    assert not (folder / "verdict.json").exists()
    assert not list(folder.glob(".*"))


# -- hostile inputs: never PASS, never a traceback ---------------------------------


def edit(name, change):
    """Changes the JSON of a row (by number) or of meta.json."""

    def spoil(folder):
        if name == "meta":
            path = folder / "meta.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
            return
        path = folder / "requests.jsonl"
        lines = path.read_text().splitlines()
        numbers = range(len(lines)) if name == "all" else [name]
        for number in numbers:
            lines[number] = json.dumps({**json.loads(lines[number]), **change})
        path.write_text("".join(f"{line}\n" for line in lines))

    return spoil


def keep(part, *, meta=None):
    """Only the first part of the bytes of the rows; `meta` says what it likes."""

    def spoil(folder):
        path = folder / "requests.jsonl"
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * part)])
        if meta:
            edit("meta", meta)(folder)

    return spoil


def half(folder):
    """The arm died half-way: whole rows, and a recorder that never said `complete`."""
    path = folder / "requests.jsonl"
    lines = path.read_text().splitlines()[:200]
    path.write_text("".join(f"{line}\n" for line in lines))
    edit("meta", {"complete": False, "requests": 200})(folder)


def half_but_complete(folder):
    """The same, by a recorder that says that all is well."""
    half(folder)
    edit("meta", {"complete": True})(folder)


def twice(folder):
    path = folder / "requests.jsonl"
    path.write_text(path.read_text() * 2)
    edit("meta", {"requests": 800})(folder)


def junk(content, name="requests.jsonl"):
    return lambda folder: (folder / name).write_bytes(content)


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def copy_of_baseline(folder):
    """Somebody copied the baseline and changed its name."""
    rows = folder.parent / "baseline" / "requests.jsonl"
    (folder / "requests.jsonl").write_bytes(rows.read_bytes())


def hlog(content):
    def spoil(folder):
        (folder / "requests.jsonl").unlink()
        (folder / "ttft_us.hlog").write_bytes(content)

    return spoil


def exchange(name, old, new):
    def spoil(folder):
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return spoil


HOSTILE = {
    # what the operator named is no measurement: one line, exit 2
    "no meta": (remove("meta.json"), 2),
    "no rows": (remove("requests.jsonl"), 2),
    "meta cut": (junk(b'{"schema": "canary.sam', "meta.json"), 2),
    "meta empty": (junk(b"", "meta.json"), 2),
    "a counter twice": (
        exchange("meta.json", '"wrong_bytes": 0', '"wrong_bytes": 7, "wrong_bytes": 0'),
        2,
    ),
    "meta is a list": (junk(b"[]", "meta.json"), 2),
    "meta is deep": (junk(b"[" * 100_000, "meta.json"), 2),
    "another schema": (edit("meta", {"schema": "canary.samples/9"}), 2),
    "arms swapped": (edit("meta", {"arm": "baseline"}), 2),
    "packed log": (
        lambda f: [
            remove("requests.jsonl")(f),
            junk(b"\x1f\x8b", "ttft_us.hlog.gz")(f),
        ],
        2,
    ),
    # a measurement that is not whole or not sound: INCONCLUSIVE
    "empty arm": (lambda f: [keep(0)(f), edit("meta", {"requests": 0})(f)], 3),
    "empty arm, complete": (keep(0), 3),
    "log cut in a row": (keep(0.7), 3),
    "log cut, count mended": (keep(0.7, meta={"requests": 280}), 3),
    "log cut by a byte": (keep(0.999999), 3),
    "arm died half-way": (half, 3),
    "arm died, said complete": (half_but_complete, 3),
    "not complete": (edit("meta", {"complete": False}), 3),
    "complete unknown": (edit("meta", {"complete": None}), 3),
    "every ttft NaN": (edit("all", {"ttft_s": math.nan}), 3),
    "every ttft null": (edit("all", {"ttft_s": None}), 3),
    "one NaN": (edit(7, {"ttft_s": math.nan}), 3),
    "one infinity": (edit(7, {"ttft_s": math.inf}), 3),
    "one negative": (edit(7, {"ttft_s": -1.0}), 3),
    "no tokens": (edit("all", {"prompt_tokens": None, "hit_tokens": None}), 3),
    "no classes": (edit("all", {"class": None}), 3),
    "no lag": (edit("all", {"lag_s": None}), 3),
    "client lagged": (edit("all", {"lag_s": 1.0}), 3),
    "ok is a word": (edit(7, {"ok": "yes"}), 3),
    "number twice": (edit(7, {"request": 8}), 3),
    "rows twice": (twice, 3),
    "ok twice": (
        exchange("requests.jsonl", '"ok": true', '"ok": false, "ok": true'),
        3,
    ),
    "no numbers in some": (edit(7, {"request": None}), 3),
    "other trace": (edit("all", {"prompt_tokens": 1}), 3),
    "other mix": (edit("all", {"class": "1k"}), 3),
    "clock set back": (edit("meta", {"started_at": 1.8e9}), 3),
    "clock too short": (edit("meta", {"ended_at": 1_700_000_001.0}), 3),
    "clock unknown": (edit("meta", {"ended_at": None}), 3),
    "clocks skewed": (edit("meta", {"clock_skew_s": 30.0}), 3),
    "starts before the load": (edit(7, {"start_s": -3.0}), 3),
    "other time scale": (edit("meta", {"time_scale": 1.0}), 3),
    "read twice": (copy_of_baseline, 3),
    "binary rows": (junk(bytes(range(256)) * 50), 3),
    "rows are lists": (junk(b"[1]\n" * 400), 3),
    "packed rows": (junk(b"\x1f\x8b\x08" + b"\x00" * 500), 3),
    "corrupt hlog": (hlog(b"#[Histogram log format version 1.2]\n1,1,1,HISTFAAA\n"), 3),
    "packed hlog": (hlog(b"\x1f\x8b\x08" + b"\x00" * 500), 3),
    "empty hlog": (hlog(b""), 3),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_measurement_that_is_not_sound_never_passes(judge, name) -> None:
    spoil, expected = HOSTILE[name]
    code, out, err = judge(spoil)

    assert code == expected, (out, err)
    assert "Traceback" not in out + err
    assert "verdict: PASS" not in out
    if expected == 2:
        assert out == ""
        assert err.startswith("canary: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--baseline", "B"],
        ["--baseline", "B", "--canary", "missing"],
        ["--baseline", "B", "--canary", "B"],
        ["--baseline", "B", "--canary", "policy.yaml"],
        ["--baseline", "B", "--canary", "C", "--policy", "missing.yaml"],
        ["--baseline", "B", "--canary", "C", "--policy", "."],
        ["--baseline", "B", "--canary", "C", "--on-inconclusive", "pass"],
        ["--baseline", "B", "--canary", "C", "--format", "pdf"],
        ["--baseline", "B", "--canary", "C", "--noise-floor", "policy.yaml"],
        ["--baseline", "B", "--canary", "C", "--out", "policy.yaml"],
        ["--baseline", "B", "--canary", "C", "--prometheus", "http://127.0.0.1:1"],
        ["--prometheus", "ftp://x", "--from", "-1h", "--to", "now"],
        ["--prometheus", "http://127.0.0.1:1"],
        ["--baseline", "B", "--canary", "C", "--no-such-option"],
    ],
)
def test_a_wrong_question_is_one_line_and_exit_2(
    canary, measured, policy, tmp_path, monkeypatch, arguments
) -> None:
    monkeypatch.chdir(tmp_path)
    named = {
        "B": measured("baseline", rows=20),
        "C": measured("canary", rows=20),
    }
    code, _, err = canary("judge", *(named.get(word, word) for word in arguments))

    assert code == 2
    assert "Traceback" not in err
    told = [line for line in err.splitlines() if line.startswith("canary: ")]
    assert len(told) == 1 or "No such option" in err


def test_the_same_directory_under_two_names_is_refused(canary, measured) -> None:
    baseline = measured("baseline", rows=20)
    (baseline.parent / "link").symlink_to(baseline)
    code, _, err = canary(
        "judge", "--baseline", baseline, "--canary", baseline.parent / "link"
    )

    assert code == 2
    assert "an arm is not judged by itself" in err


def logs_of(folder, *, failed):
    """Turns rows into the histogram log of one metric."""
    series = Series()
    rows = (folder / "requests.jsonl").read_text().splitlines()
    for row in map(json.loads, rows):
        series.add(row["start_s"], row["ttft_s"])
    series.write(folder / "ttft_us.hlog")
    (folder / "requests.jsonl").unlink()
    edit("meta", {"requests": len(rows) + (failed or 0)})(folder)
    counters = {"wrong_bytes": 0, "hangs": 0, "residual_faults": 0}
    if failed is not None:
        counters["failed_requests"] = failed
    edit("meta", {"counters": counters})(folder)


@pytest.mark.parametrize(
    ("slow", "failed", "code"),
    [(1.0, 0, 0), (1.6, 0, 1), (1.0, 80, 1), (1.0, None, 3)],
)
def test_histogram_logs_are_judged_unpaired_with_their_failures(
    canary, measured, policy, slow, failed, code
) -> None:
    off = "validity: {max_lag_ratio: null, max_mix_distance: null}\n"
    policy.write_text(POLICY.replace("hit_rate, ", "hit_rate, required: false, ") + off)
    baseline = measured("baseline", seed=1, rows=1000)
    folder = measured("canary", seed=2, rows=1000, slow=slow)
    logs_of(baseline, failed=0)
    logs_of(folder, failed=failed)
    found, out, _ = canary(
        *("judge", "--baseline", baseline, "--canary", folder, "--policy", policy)
    )

    assert found == code, out
    assert "pairs" not in out


def test_warn_lets_an_open_verdict_through_and_says_so(judge) -> None:
    code, out, err = judge(half, "--on-inconclusive", "warn")

    assert code == 0
    assert "verdict: INCONCLUSIVE" in out
    assert "WARNING" in out
    assert "WARNING: INCONCLUSIVE counts as passed" in err


def test_warn_lets_no_failure_through(judge) -> None:
    assert judge(lambda f: None, "--on-inconclusive", "warn", slow=1.6)[0] == 1


def test_extend_says_how_many_samples_are_missing(judge, policy) -> None:
    policy.write_text(POLICY.replace("max_delta: 5%", "max_delta: 0.6%"))
    code, out, _ = judge(lambda folder: None, "--on-inconclusive", "extend")

    assert code == 3
    assert "more samples an arm would decide it" in out


@pytest.mark.parametrize("form", ["table", "junit", "markdown", "github"])
def test_a_secret_in_a_measurement_is_in_no_shape(judge, form) -> None:
    secret = "ghp_" + "A1b2" * 9
    code, out, err = judge(
        edit("meta", {"complete": False, "incomplete_because": f"token {secret}"}),
        *("--format", form),
    )

    assert code == 3
    assert secret not in out + err


def test_our_own_mistake_is_4_and_never_1(judge, monkeypatch) -> None:
    def broken(*arguments, **options):
        raise RuntimeError("surprise")

    monkeypatch.setattr("chaos.canary.judging.judge", broken)
    code, out, err = judge()

    assert (code, out, err) == (4, "", "canary: RuntimeError: surprise\n")


def test_a_password_in_the_command_is_in_no_shape(
    canary, measured, policy, tmp_path
) -> None:
    """The command that repeats the verdict stands in every shape of it."""
    baseline = measured("baseline", rows=20)
    folder = measured("canary", rows=20, seed=2)
    odd = tmp_path / "v"
    canary(
        *("judge", "--baseline", baseline, "--canary", folder, "--policy", policy),
        *("--out", odd, "--queries", "http://eve:s3cretword@host/x"),
    )
    shapes = [path for path in odd.rglob("*") if path.suffix not in ("", ".png")]
    told = "".join(path.read_text() for path in shapes)

    assert "canary judge" in told
    assert "s3cretword" not in told


# -- report and floor --------------------------------------------------------------


def test_a_verdict_is_shown_again_as_it_was(canary, judge, tmp_path) -> None:
    judge(lambda folder: None, "--out", tmp_path / "v")
    verdict = tmp_path / "v" / "verdict.json"
    code, out, _ = canary("report", verdict, "--format", "junit")

    assert code == 0
    assert Xml.fromstring(out).get("name") == "canary"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": "canary.verdict/1"}'])
def test_what_is_no_verdict_is_refused(canary, tmp_path, content) -> None:
    path = tmp_path / "verdict.json"
    path.write_text(content)
    code, out, err = canary("report", path, "--format", "table")

    assert (code, out) == (2, "")
    assert err.startswith(f"canary: {path}")


def test_a_floor_is_learned_from_runs_of_equal_arms(
    canary, measured, policy, tmp_path
) -> None:
    verdicts = []
    for number in range(5):
        arms = [
            measured(arm, folder=f"{arm}{number}", seed=seed)
            for arm, seed in (("baseline", number), ("canary", 100 + number))
        ]
        out = tmp_path / f"v{number}"
        canary(
            *("judge", "--baseline", arms[0], "--canary", arms[1]),
            *("--policy", policy, "--out", out),
        )
        verdicts.append(out / "verdict.json")
    few, _, err = canary("floor", *verdicts[:4], "--out", tmp_path / "few.json")
    code, _, _ = canary("floor", *verdicts, "--out", tmp_path / "floor.json")

    assert few == 2
    assert "needs 5 A/A runs" in err
    assert code == 0
    assert json.loads((tmp_path / "floor.json").read_text())["runs"] == 5


# -- ends that nobody planned ------------------------------------------------------


def start(*arguments, **options):
    command = [sys.executable, "-m", "chaos.canary.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def has_reader(pipe) -> bool:
    """Whether somebody waits in this pipe; nothing is written to it."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_ends_quietly_and_leaves_nothing(
    measured, tmp_path, number
) -> None:
    """Interrupted while it reads: a pipe in place of the policy makes it wait."""
    os.mkfifo(tmp_path / "policy.yaml")
    process = start(
        *("judge", "--baseline", measured("baseline", rows=20)),
        *("--canary", measured("canary", rows=20)),
        *("--policy", tmp_path / "policy.yaml", "--out", tmp_path / "v"),
    )
    assert wait_until(lambda: has_reader(tmp_path / "policy.yaml"), timeout_s=60)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert (out, err) == ("", "")
    assert not (tmp_path / "v").exists()


@pytest.mark.slow
def test_a_reader_that_goes_away_changes_no_verdict(measured, policy) -> None:
    read, write = os.pipe()
    os.close(read)
    baseline, canary = measured("baseline"), measured("canary", seed=2)
    command = ["judge", "--baseline", baseline, "--canary", canary, "--policy", policy]
    done = subprocess.run(
        [sys.executable, "-m", "chaos.canary.cli", *map(str, command)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("wrong", [("--noise-floor", "nowhere"), ("--format", "x")])
def test_a_question_without_an_answer_leaves_no_earlier_one(
    canary, measured, policy, tmp_path, wrong
) -> None:
    """A verdict that is found is the answer to the last question."""
    out = tmp_path / "v"
    arms = [measured(arm, seed=at) for at, arm in enumerate(("baseline", "canary"))]
    asked = ["judge", "--baseline", arms[0], "--canary", arms[1], "--policy", policy]
    assert canary(*asked, "--out", out)[0] == 0
    assert (out / "verdict.json").is_file()

    assert canary(*asked, *wrong, "--out", out)[0] == 2
    assert not (out / "verdict.json").exists()
    assert not (out / "junit.xml").exists()

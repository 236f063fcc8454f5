"""No secret is in any file that a run leaves, wherever it got in."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.faults.base import Evidence, Receipt
from chaos.history.history import Event, EventType, History, read_history
from chaos.judge.verdict import Judgement, Verdict
from chaos.report import redaction
from chaos.report.redaction import (
    HIDDEN,
    clean,
    clean_line,
    clean_text,
    know,
    know_environment,
    may_hold,
)
from chaos.report.run import RunReport, document_at
from chaos.report.sweep import sweep
from chaos.safety.ledger import FaultState, Ledger
from inventory import redact as inventory_redact

ROOT = Path(__file__).parents[3]
KNOWN = 'k"nown\\to-this-process/é'
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANB\n-----END PRIVATE KEY-----"
PLANTED = {
    "a token by its name": ("REFIMPL_TOKEN=planted-token-one", "planted-token-one"),
    "a header": ("Authorization: Bearer planted-token-two", "planted-token-two"),
    "a password": ("password: planted-password", "planted-password"),
    "an option": ("ssh --password planted-option", "planted-option"),
    "an address": ("redis://me:planted-in-url@host/0", "planted-in-url"),
    "a private key": (PEM, "MIIEvQIBADANB"),
    "an access key": ("AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
    "a maker's token": ("hf_" + "a1" * 17, "hf_" + "a1" * 17),
    "one we know": (f"it said {KNOWN} to me", KNOWN),
}


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch):
    monkeypatch.setattr(redaction, "_KNOWN", redaction._Known())


@pytest.fixture
def texts():
    """Every planted secret, in the sentence that betrays it."""
    know(KNOWN)
    return [text for text, _ in PLANTED.values()]


def _leaks(text: str) -> list[str]:
    forms = {form: name for name, (_, s) in PLANTED.items() for form in (s,)}
    forms |= dict.fromkeys(redaction._forms(KNOWN), "one we know")
    return sorted({name for form, name in forms.items() if form in text})


def _leaks_of(folder: Path) -> dict[str, list[str]]:
    """Planted secrets by file, of names and of contents."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        leaks = _leaks(path.read_text(encoding="utf-8")) + _leaks(path.name)
        if leaks:
            found[str(path.relative_to(folder))] = leaks
    return found


def test_the_instrument_sees_what_is_planted(tmp_path):
    text = "\n".join(text for text, _ in PLANTED.values())
    (tmp_path / "log").write_text(text)

    assert _leaks_of(tmp_path) == {"log": sorted(PLANTED)}


def _receipt(text: str, number: int) -> Receipt:
    evidence = Evidence(measure=text, effect=1.0, detail=text)
    parameters: dict[str, object] = {"spec": text, "argv": ["x", text], "password": "p"}
    return Receipt(
        fault_id=f"f{number}",
        kind=text,
        target=text,
        parameters=parameters,
        evidence=evidence,
        residual=text,
    )


def _others_write(folder: Path, texts: list[str]) -> None:
    """What roles and pytest leave in a results directory, of which we know nothing."""
    roles = folder / "roles" / "1-1"
    roles.mkdir(parents=True)
    for number, text in enumerate(texts):
        (roles / f"store-{number}.err").write_text(f"before\n{text}\nafter\n")
    suite = ET.Element("testsuite", name="x")
    for text in texts:
        case = ET.SubElement(suite, "testcase", name=text)
        ET.SubElement(case, "failure", message=text).text = f"E   {text}</failure>"
    ET.ElementTree(suite).write(folder / "junit.xml")


def test_no_file_of_a_results_directory_holds_a_secret(tmp_path, texts):
    report = RunReport.open(
        tmp_path,
        "suite",
        7,
        argv=["chaos", *texts, "--proxy-token", "planted-option"],
        options=["--password", "planted-option", *texts],
        command=["pytest", *texts],
        capabilities={"one": texts[0], "REFIMPL_TOKEN": "planted-token-one"},
        started=None,
    )
    for number, text in enumerate(texts):
        node = f"suites/test_x.py::test_y[{number}]"
        report.add_test(node)
        judgement = Judgement(
            oracle="O1",
            claim=text,
            verdict=Verdict.FAIL,
            observed=text,
            threshold=text,
            samples=1,
            reason=text,
        )
        report.add_judgement(node, judgement)
        report.add_error(node, text)
        report.add_receipt(_receipt(text, number), node)
        report.add_residual(text)
        report.add_note(text)
        report.record(f"series-{number}", 0.1, 0.2)
        report.history.info("fault", text, detail=text, rows=[{"deep": [text]}])
    assert _leaks_of(report.path) == {}  # also while it runs, or when it is killed
    _others_write(report.path, texts)
    report.close(aborted=texts[0])

    assert len([p for p in report.path.rglob("*") if p.is_file()]) > 8
    assert _leaks_of(report.path) == {}
    assert HIDDEN in (report.path / "verdict.json").read_text()
    suite = ET.parse(report.path / "junit.xml").getroot()
    assert len(suite.findall("testcase/failure")) == len(texts)
    log = (report.path / "roles" / "1-1" / "store-0.err").read_text()
    assert log == f"before\nREFIMPL_TOKEN={HIDDEN}\nafter\n"
    assert document_at(report.path).outcomes


def test_a_history_stays_readable_and_its_numbers_stay(tmp_path, texts):
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        for text in texts:
            event = Event(
                at_s=1.0,
                type=EventType.INFO,
                operation="put",
                value={"token": 1234567890123, "text": text, "token_name": text},
            )
            history.append(event)
    events = list(read_history(path))

    assert len(events) == len(texts)
    assert {event.value["token"] for event in events} == {1234567890123}
    assert _leaks_of(tmp_path) == {}


def test_a_ledger_holds_no_secret_of_a_command(tmp_path, texts):
    ledger = Ledger(tmp_path / "ledger.jsonl", command=" ".join(texts))
    for text in texts:
        ledger.fault("f", FaultState.ARMED, kind="kill", target="store", detail=text)
    text = (tmp_path / "ledger.jsonl").read_text()
    ledger.close()

    assert len(text.splitlines()) == len(texts) + 1
    assert [json.loads(line) for line in text.splitlines()]
    assert _leaks(text) == []


def test_the_command_line_says_no_secret(tmp_path):
    command = [sys.executable, "-m", "chaos.cli", "analyze"]
    done = subprocess.run(
        [*command, str(tmp_path / "password=planted-password")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )

    assert done.returncode != 0
    assert _leaks(done.stdout + done.stderr) == []
    assert HIDDEN in done.stderr


def test_a_secret_of_the_environment_is_known_word_for_word():
    know_environment(
        {
            "MY_TOKEN": "walk-the-plank",
            "DB_PASSWORD": "x" * 7,
            "PATH": "/usr/bin:/bin",
            "TOKENS": "not-a-secret",
        }
    )

    assert clean_text("they walk-the-plank at /usr/bin:/bin") == (
        f"they {HIDDEN} at /usr/bin:/bin"
    )
    assert clean_text("not-a-secret " + "x" * 7) == "not-a-secret " + "x" * 7


def test_the_longer_of_two_known_secrets_goes_whole():
    know("planted-one", "planted-one-and-more")

    assert clean_text("planted-one-and-more") == HIDDEN


def test_a_command_line_as_a_list_hides_what_follows_its_option():
    argv = ["x", "--api-key", "abc", "--port", "80", "--token=xyz", "--password", "p"]
    hidden = clean(argv)

    assert hidden == [
        *("x", "--api-key", HIDDEN, "--port", "80", f"--token={HIDDEN}"),
        *("--password", HIDDEN),
    ]


def test_a_document_without_secrets_is_the_same_object_of_values():
    document = {"a": [1, 2.5, None, True, "page_tokens: 64"], "b": {"input_tokens": 3}}

    assert clean(document) == document
    line = json.dumps(document)
    assert clean_line(line) is line


def test_a_deep_document_ends():
    document: dict = {}
    inner = document
    for _ in range(100):
        inner["x"] = {}
        inner = inner["x"]
    inner["x"] = "planted-token-one"

    assert HIDDEN in json.dumps(clean(document))


@pytest.mark.parametrize("name", PLANTED)
def test_the_quick_look_misses_nothing_that_looks_like_a_secret(name):
    text = PLANTED[name][0]
    is_hidden = inventory_redact.redact(text) != text

    assert may_hold(text) or not is_hidden


@given(
    name=st.sampled_from(
        [
            *("password", "passwd", "pwd", "passphrase", "secret", "token", "api_key"),
            *(
                "api-key",
                "apikey",
                "access_key",
                "accesskey",
                "private_key",
                "ssh_pass",
            ),
            *("privatekey", "secret-key", "account_key", "signing_key", "credential"),
            *("credentials", "become-pass", "sudopass", "db_pass", "authorization"),
            *("cookie", "set-cookie", "proxy-authorization", "redis_pass"),
        ]
    ),
    upper=st.booleans(),
    form=st.sampled_from(
        ("{}={}", '"{}": "{}"', "{} : {}", "--{} {}", "X_{}={}", '\\"{}\\":\\"{}\\"')
    ),
    value=st.from_regex(r"[A-Za-z0-9]{8,20}", fullmatch=True),
)
def test_what_redact_hides_the_quick_look_lets_through_to_it(name, upper, form, value):
    text = form.format(name.upper() if upper else name, value)
    hidden = inventory_redact.redact(text)

    assert clean_text(text) == hidden


def test_logs_without_secrets_are_left_as_they_are(tmp_path):
    log = tmp_path / "roles" / "store-0.err"
    log.parent.mkdir()
    log.write_bytes(b"all is well\r\n\xff\xfe bytes\n")
    before = log.stat()

    assert sweep(tmp_path) == []
    assert log.stat().st_ino == before.st_ino


def test_a_link_in_a_results_directory_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("password=planted-password")
    (tmp_path / "run" / "roles").mkdir(parents=True)
    (tmp_path / "run" / "roles" / "x.err").symlink_to(outside)

    assert sweep(tmp_path / "run") == []
    assert outside.read_text() == "password=planted-password"


def test_a_log_too_large_to_look_through_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("chaos.report.sweep.MOST_BYTES", 10)
    log = tmp_path / "roles" / "store-0.err"
    log.parent.mkdir()
    log.write_text("x" * 11)

    assert sweep(tmp_path) == ["a secret was taken out of roles/store-0.err"]
    assert "left out" in log.read_text()


def test_an_xml_that_is_none_is_named(tmp_path):
    (tmp_path / "junit.xml").write_text("<testsuite")

    (said,) = sweep(tmp_path)
    assert said.startswith("junit.xml was not looked through for secrets: ")

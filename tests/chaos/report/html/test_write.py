from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import pytest

from chaos.report.html import write_run_report
from chaos.report.redaction import know

VOID = {"meta", "link", "br", "img", "hr", "input"}
NASTY_TAGS = {"script", "iframe", "img", "object", "embed", "form", "base"}


class Outline(HTMLParser):
    """Tags, attributes and texts; complains about what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.wrong = [], [], [], []
        self.ids = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.wrong.append((tag, self.open[-3:]))


def read(path):
    """The page that the run itself wrote."""
    return (path / "report.html").read_text()


def page(path):
    return write_run_report(path).read_text()


def test_the_first_screen_tells_what_when_and_how_to_repeat(failing):
    text = read(failing)
    first = text.partition('<nav aria-label="Parts')[0].partition("<main")[2]

    for words in (
        "When store-3 was killed, this did not hold: A lost store costs what it held,"
        " and nothing else: lost 79.4 %, limit 18.1 %.",
        "store-3 was killed, 12:30:10.00 UTC for 2.50 s; proof: process gone: 1",
        "planted defect of the system under test: placement_random",
        "local-first: lost reuse &lt;= the victim&#39;s share + 5 points; limit 18.1 %",
        "12:30:10.24 UTC, 0.240 s after store-3 was killed: request r1 reused 0 of 2048"
        " tokens, 1024 when healthy",
        "--seed 7 --time-scale 0.1 --defect placement_random",
    ):
        assert words in first, words


def test_the_page_is_whole_has_no_script_and_names_no_other_place(failing):
    outline = Outline(read(failing))

    assert (outline.open, outline.wrong) == ([], [])
    assert not NASTY_TAGS & set(outline.tags)
    assert len(outline.ids) == len(set(outline.ids))
    links = [v for _, name, v in outline.attributes if name in ("href", "src")]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not [name for _, name, _ in outline.attributes if name.startswith("on")]


def test_links_inside_the_page_lead_somewhere(failing):
    outline = Outline(read(failing))

    wanted = {
        v[1:] for _, name, v in outline.attributes if name == "href" and v[0] == "#"
    }
    assert wanted <= set(outline.ids)
    named = re.findall(r"url\(#([^)]+)\)", read(failing))
    assert set(named) <= {*outline.ids, *Outline(read(failing)).ids}


def test_tables_have_captions_and_scopes_and_drawings_have_words(failing):
    outline = Outline(read(failing))

    assert outline.tags.count("table") == outline.tags.count("caption") > 0
    scopes = [name for tag, name, _ in outline.attributes if tag == "th"]
    assert scopes.count("scope") == outline.tags.count("th")
    labels = [v for tag, name, v in outline.attributes if name == "aria-label"]
    assert any(
        "fault: 48 requests, TTFT (modelled) median" in label for label in labels
    )
    assert outline.tags.count("figure") == 2


def test_every_plot_is_also_a_file_in_both_forms(failing):
    path = failing

    found = sorted(one.name for one in (path / "plots").iterdir())
    assert [name.rpartition("-")[2] for name in found] == [
        *("quantiles.png", "quantiles.svg", "time.png", "time.svg"),
    ]
    for name in found:
        data = (path / "plots" / name).read_bytes()
        assert data.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


def test_the_same_run_gives_the_same_page(failing, tmp_path):
    again = write_run_report(failing, out_dir=tmp_path).read_text()

    assert again == read(failing)


def test_an_inconclusive_run_tells_its_reason_before_anything_else(runs):
    text = page(runs.inconclusive())

    assert "It cannot be told whether “loss” holds: the victim held nothing." in text
    assert text.index("could not tell: the victim") < text.index("<dt>Broken")
    assert "no effect: 0 bytes" in text


def test_a_passing_run_says_so_and_hides_its_tests(runs):
    text = page(runs.passing())

    assert (
        "What was judged holds: 1 judgement in 1 test, while 1 fault came and went."
        in text
    )
    assert '<details class="test v-PASS" id="test-0">' in text


def test_a_killed_run_has_a_page_from_its_parts(runs):
    path = runs.failing()
    (path / "verdict.json").unlink()

    text = page(path)

    assert "The run was stopped early: the run was killed" in text
    assert "store-3 was killed" in text


def test_a_run_without_history_has_a_page_that_says_so(runs):
    path = runs.failing()
    (path / "history.jsonl").unlink()

    text = page(path)

    assert "Not everything is shown: there is no history" in text
    assert "lost 79.4 %" in text


def test_a_damaged_history_is_counted_and_the_rest_is_drawn(runs):
    path = runs.failing()
    with (path / "history.jsonl").open("a") as history:
        history.write('not json\n{"f": "prefill"}\n[1]\n' + "[" * 9000 + "\n")

    text = page(path)

    assert "4 lines of the history could not be read" in text
    assert "<figure>" in text


def test_only_the_worst_tests_are_drawn_when_a_run_ends(runs):
    path = runs.failing()

    text = write_run_report(path, most_plotted=0).read_text()

    assert "Not drawn: a run draws its worst tests only" in text
    assert "<figure>" not in text


def test_a_plot_that_fails_costs_only_itself(runs, monkeypatch):
    path = runs.failing()
    broken = "chaos.report.html.write.draw_test"
    monkeypatch.setattr(broken, lambda *_: 1 / 0)

    text = page(path)

    assert "It could not be drawn: ZeroDivisionError" in text
    assert "lost 79.4 %" in text


def test_without_matplotlib_there_is_a_page_without_plots(drawn_runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    text = read(drawn_runs.failing())

    assert "It could not be drawn" in text
    assert "lost 79.4 %" in text


def test_secrets_are_left_out_of_page_and_plots(runs):
    know("correct-horse-battery")
    path = runs.failing(argv=["pytest", "--token", "hunter2hunter2"])
    report = path / "parts" / "main.jsonl"
    report.write_text(report.read_text().replace("pid 4711", "correct-horse-battery"))
    (path / "verdict.json").unlink()

    text = page(path)

    assert "correct-horse-battery" not in text
    assert "hunter2hunter2" not in text


def test_hostile_names_in_a_drawing_are_text_and_nothing_else(drawn_runs, nasty):
    report = drawn_runs.open()
    report.history.test = "t"
    for words in nasty:
        report.history.complete(drawn_runs.fabricate.sample("r"), words)
        row = {"at": 1.0, "from": "closed", "to": "open", "reason": words}
        report.history.info("breaker", words, transitions=[row])
    report.add_test("t")
    report.close()

    text = read(report.path)

    outline = Outline(text)
    assert (outline.open, outline.wrong) == ([], [])
    assert not NASTY_TAGS & set(outline.tags)
    assert "$\\frac{1}{0}$ $unclosed" in text
    assert len(list((report.path / "plots").iterdir())) == 4


@pytest.mark.parametrize("number", range(8))
def test_hostile_names_are_text_and_nothing_else(runs, nasty, number):
    text = read(runs.hostile(nasty[number]))
    outline = Outline(text)

    assert (outline.open, outline.wrong) == ([], [])
    assert not NASTY_TAGS & set(outline.tags)
    assert not [name for _, name, _ in outline.attributes if name.startswith("on")]
    assert "49" not in re.findall(r"\{\{ ?(\d+)", text)
    text.encode("utf-8")

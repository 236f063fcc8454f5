from __future__ import annotations

from chaos.judge.limit import at_most, inconclusive
from chaos.report.document import Document, Outcome
from chaos.report.markdown import render_markdown
from chaos.report.moments import Moments
from chaos.report.story import story_of
from chaos.report.traces import Traces

BAD = at_most("O7b", "loss | share", 0.5, 0.1, samples=48, unit="share", label="lost")


def render(*judgements, nodeid="t::test_it", **given):
    outcome = Outcome(nodeid=nodeid, judgements=judgements, reproduce="pytest t")
    document = Document(suite="s", seed=1, time_scale=0.1, outcomes=(outcome,))
    story = story_of(document, Traces(), Moments())
    return render_markdown(document, story, [("Over time", "plots/a.png")], **given)


def test_the_story_comes_first_then_its_plots_then_everything():
    text = render(BAD)

    order = ["**FAIL**", "- **Expected**", "```\npytest t\n```", "![Over time](plots/a"]
    places = [text.index(words) for words in (*order, "# s: FAIL")]
    assert places == sorted(places)


def test_a_doubt_is_told_first():
    text = render(inconclusive("O2", "wait", "too few"))

    assert text.index("**Happened**: could not tell") < text.index("**Broken**")


def test_it_stays_in_its_budget():
    rows = [BAD] * 2000

    text = render(*rows, budget_bytes=20_000)

    assert len(text.encode()) <= 20_000
    assert "_Cut:" in text


def test_no_html_begins_in_it():
    nasty = "<script>x</script> ![a](http://192.0.2.1/)"

    text = render(at_most(nasty, nasty, 2, 1, samples=1, reason=nasty))

    assert "\n<script" not in text
    assert " <script" not in text

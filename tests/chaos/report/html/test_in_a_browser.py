"""What only a browser can tell: console, network, width, colours, keyboard.

Pictures of every page are kept where MOONQUAKE_SCREENSHOTS says.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from chaos.canary.result import GateJudgement, GateResult
from chaos.canary.samples import Columns
from chaos.judge.verdict import Verdict
from chaos.report.html import write_gate_report

pytestmark = pytest.mark.slow

SCREENS = {"phone": (360, 740), "tablet": (800, 1000), "desktop": (1280, 800)}
ROOT = "document.documentElement"
OVERFLOW = f"{ROOT}.scrollWidth - {ROOT}.clientWidth"
BACKGROUND = f"getComputedStyle({ROOT}).backgroundColor"
INK = "getComputedStyle(document.body).color"
FOCUSED = """(() => {
  const e = document.activeElement, box = e.getBoundingClientRect();
  const outline = getComputedStyle(e).outlineStyle;
  const name = e.getAttribute("href") || e.textContent.trim().slice(0, 24);
  return [e.tagName.toLowerCase(), name, outline, box.width > 0];
})()"""
OPEN_ALL = "document.querySelectorAll('details').forEach(e => e.open = true)"
TEXT_SIZE = """(() => {
  const t = document.querySelector("figure svg text");
  return parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a;
})()"""


@pytest.fixture(scope="module")
def pages(failing, tmp_path_factory):
    gate = tmp_path_factory.mktemp("gate") / "report.html"
    arms = [_samples(arm, factor) for arm, factor in (("baseline", 1), ("canary", 1.3))]
    write_gate_report(_verdict(), *arms, gate)
    return SimpleNamespace(run=failing / "report.html", gate=gate)


def _samples(arm, factor):
    dice = np.random.default_rng(5)
    n = 400
    return Columns(
        arm=arm,
        ok=np.ones(n, dtype=bool),
        start_s=np.arange(n) * 0.1,
        metrics={
            "ttft_s": factor * dice.lognormal(-1, 0.3, n),
            "cache_wait_s": dice.lognormal(-4, 0.3, n),
        },
        hit_tokens=np.full(n, 700.0),
        prompt_tokens=np.full(n, 1000.0),
        complete=True,
    ).samples()


def _verdict():
    one = {
        "family": "relative",
        "limit": "<= 1.1x",
        "baseline": 0.37,
        "canary": 0.48,
        "n_baseline": 400,
        "n_canary": 400,
    }
    rules = (
        GateJudgement(
            name="TTFT p99",
            metric="ttft_s",
            verdict=Verdict.FAIL,
            reason="+30 %, at least +24 % (p 1e-09)",
            **{**one, "estimate": 1.3, "low": 1.24, "high": 1.36, "adjusted_p": 1e-9},
        ),
        GateJudgement(
            name="cache wait p99",
            metric="cache_wait_s",
            verdict=Verdict.INCONCLUSIVE,
            reason="could be -9 % .. +12 %; 800 more samples an arm should decide",
            **{**one, "estimate": 1.01, "low": 0.91, "high": 1.12, "needs": 800},
        ),
    )
    arms = {
        name: {"system": "refimpl", "build": build}
        for name, build in (("baseline", "1.4.0"), ("canary", "1.5.0-rc1"))
    }
    found = GateResult(
        verdict=Verdict.FAIL, judgements=rules, policy_name="default", seed=7, arms=arms
    )
    return found.to_document()


def lightness(colour):
    """Of "rgb(1, 2, 3)", 0 to 255."""
    return sum(map(int, colour[4:-1].split(","))) / 3


@pytest.mark.parametrize("name", ["run", "gate"])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("media", ["light", "dark"])
def test_a_page_is_quiet_asks_nobody_and_fits_its_screen(
    pages, browser, screenshots, name, screen, media
):
    page, (width, height) = getattr(pages, name), SCREENS[screen]
    features = [{"name": "prefers-color-scheme", "value": media}]
    browser.open(
        page, width=width, height=height, media=features, mobile=screen == "phone"
    )
    browser.screenshot(screenshots / f"{name}-{screen}-{media}.png")
    browser.screenshot(screenshots / f"{name}-{screen}-{media}-whole.png", whole=True)

    asked = [url for url in browser.requests if not url.startswith("data:")]
    closed = browser.run(OVERFLOW)
    browser.run(OPEN_ALL)

    assert browser.complaints == []
    assert asked == [page.as_uri()]
    assert (closed, browser.run(OVERFLOW)) == (0, 0)
    paper, ink = lightness(browser.run(BACKGROUND)), lightness(browser.run(INK))
    assert (paper < 60 and ink > 200) if media == "dark" else (paper > 200 and ink < 60)


@pytest.mark.parametrize("screen", ["phone", "desktop"])
def test_the_story_is_within_one_screen(pages, browser, screen):
    width, height = SCREENS[screen]
    browser.open(pages.run, width=width, height=height, mobile=screen == "phone")
    terms = "[...document.querySelectorAll('main > section:first-child dt')]"
    script = f"{terms}.map(e => [e.textContent, e.nextElementSibling"
    places = dict(browser.run(f"{script}.getBoundingClientRect().bottom])"))

    for term in ("Broken", "Expected", "Happened", "Since", "Repeat"):
        assert 0 < places[term] <= height, term


def test_words_in_plots_can_be_read_on_a_phone(pages, browser):
    browser.open(pages.run, width=360, height=740, mobile=True)

    assert browser.run(TEXT_SIZE) >= 8


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(pages, browser):
    browser.open(pages.run)
    seen = []
    for _ in range(40):
        browser.press_tab()
        seen.append(tuple(browser.run(FOCUSED)))
        if seen[-1][0] == "body":
            break

    reached = [(tag, name) for tag, name, _, _ in seen]
    order = [("a", "#main"), ("a", "#plots"), ("a", "#oracles"), ("a", "#tests")]
    places = [reached.index(one) for one in order]
    assert places == sorted(places)
    assert places[0] == 0
    assert "pre" in [tag for tag, _ in reached]
    assert sum(tag == "summary" for tag, _ in reached) >= 3
    shown = [one for one in seen if one[0] != "body"]
    assert all(outline != "none" and visible for _, _, outline, visible in shown)


def test_skipping_leads_to_the_verdict(pages, browser):
    browser.open(pages.run)
    browser.press_tab()

    browser.run("document.activeElement.click()")

    browser.wait("document.activeElement.id === 'main'")


def test_everything_has_a_name_for_whoever_does_not_see_it(pages, browser):
    browser.open(pages.run)
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]

    def named(role):
        return [
            node.get("name", {}).get("value", "")
            for node in nodes
            if node.get("role", {}).get("value") == role and not node["ignored"]
        ]

    assert [name for name in named("image") if "TTFT (modelled) median" in name]
    assert {"Verdict", "Oracles", "Tests", "Faults", "Environment"} <= set(
        named("region")
    )
    assert all(named("table"))
    assert len(named("main")) == len(named("navigation")) == 1
    assert {"oracle", "verdict", "worst"} <= set(named("columnheader"))


def test_tables_stay_tables_where_they_are_stacked(pages, browser):
    browser.open(pages.run, width=360, height=740, mobile=True)
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]

    roles = {node.get("role", {}).get("value") for node in nodes if not node["ignored"]}
    assert {"table", "row", "rowheader", "cell"} <= roles


def test_hostile_names_do_nothing_and_break_no_layout(drawn_runs, browser, nasty):
    for words in nasty:
        page = drawn_runs.hostile(words) / "report.html"
        browser.open(page, width=360, height=740, mobile=True)
        browser.run(OPEN_ALL)

        assert browser.complaints == []
        assert [u for u in browser.requests if u[:5] != "data:"] == [page.as_uri()]
        assert browser.run("document.title").startswith("FAIL: ")
        assert browser.run(OVERFLOW) == 0
        assert browser.run("document.querySelectorAll('script, iframe').length") == 0


def test_a_plot_alone_follows_the_mode_too(pages, browser, screenshots):
    (plot, *_) = sorted(pages.run.parent.glob("plots/*-time.svg"))
    papers = []
    for media in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": media}]
        browser.open(plot, width=500, height=700, media=features)
        browser.screenshot(screenshots / f"plot-{media}.png")
        papers.append(lightness(browser.run(BACKGROUND)))
        assert browser.complaints == []

    assert papers[0] > 200
    assert papers[1] < 60

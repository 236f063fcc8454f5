"""What only a browser can tell: console, network, width, colours, keyboard."""

from __future__ import annotations

import pytest

PHONE, DESKTOP = 360, 1280
ROOT = "document.documentElement"
OVERFLOW = f"{ROOT}.scrollWidth - {ROOT}.clientWidth"
FOCUSED = """(() => {
  const e = document.activeElement;
  return [e.tagName, e.getAttribute("href") || e.textContent.trim().slice(0, 30)];
})()"""
BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"


@pytest.fixture
def page(failing):
    return failing / "report.html"


def bottom_of(browser, selector):
    return browser.run(
        f"document.querySelector({selector!r}).getBoundingClientRect().bottom"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width", "height"), [("phone", PHONE, 740), ("desktop", DESKTOP, 800)]
)
@pytest.mark.parametrize("media", ["light", "dark"])
def test_the_page_is_quiet_alone_and_not_wider_than_the_screen(
    page, browser, screenshots, name, width, height, media
):
    features = [{"name": "prefers-color-scheme", "value": media}]
    browser.open(page, width=width, height=height, media=features, mobile=width < 500)

    overflow = browser.run(OVERFLOW)
    browser.screenshot(screenshots / f"run-{name}-{media}.png")
    browser.screenshot(screenshots / f"run-{name}-{media}-whole.png", whole=True)

    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [
        page.as_uri()
    ]
    assert overflow <= 0
    red, green, blue = map(int, browser.run(BACKGROUND)[4:-1].split(","))
    assert (max(red, green, blue) < 60) == (media == "dark")

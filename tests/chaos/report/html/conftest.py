"""A headless Chromium over its debugging pipe, and runs made by hand to look at."""

from __future__ import annotations

import base64
import json
import math
import os
import random
import select
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chaos.faults.base import Evidence, Receipt
from chaos.judge.limit import at_least, at_most, inconclusive, none_of
from chaos.report.html.drawing import Plot
from chaos.report.run import RunReport

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
ANSWER_S = 60.0
DARK = [{"name": "prefers-color-scheme", "value": "dark"}]
LIGHT = [{"name": "prefers-color-scheme", "value": "light"}]
BEGAN_S = 1_000.0
HARMLESS = "<script>document.title='owned'</script>"
NASTY = (
    HARMLESS,
    "<img src=x onerror=\"document.title='owned'\">",
    "</title></style></svg><script>document.title='owned'</script>",
    "\"><iframe src='http://192.0.2.1/'></iframe>",
    "{{ 7*7 }} {% raw %} ${7*7}",
    "$\\frac{1}{0}$ $unclosed",
    "\x1b[2J\x00\u202e\ud800 ]]> --> &lt;",
    "a" * 3000,
)


class Browser:
    """Speaks the DevTools protocol over two pipes; no library, no port."""

    def __init__(self, process, to, out):
        self._process, self._to, self._out = process, to, out
        self._number = 0
        self._buffer = b""
        self.events = []
        self.session = None

    def call(self, method, _session=True, **params):
        """One command; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if _session and self.session:
            message["sessionId"] = self.session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end_s = time.monotonic() + ANSWER_S
        while True:
            found = self._read(end_s)
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def _read(self, end_s):
        while b"\0" not in self._buffer:
            left_s = end_s - time.monotonic()
            assert left_s > 0, "the browser does not answer"
            if select.select([self._out], [], [], left_s)[0]:
                part = os.read(self._out, 1 << 20)
                assert part, "the browser ended"
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open(self, path, *, width=1280, height=800, media=LIGHT, mobile=False):
        """A page in a fresh tab, loaded; `self.events` begins anew."""
        self.events = []
        target = self.call("Target.createTarget", False, url="about:blank")
        attached = self.call(
            "Target.attachToTarget", False, targetId=target["targetId"], flatten=True
        )
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        self.call("Emulation.setEmulatedMedia", features=media)
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete'")
        return self

    def wait(self, condition):
        end_s = time.monotonic() + ANSWER_S
        while not self.run(condition):
            assert time.monotonic() < end_s, condition

    def run(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press_tab(self):
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key="Tab",
                code="Tab",
                windowsVirtualKeyCode=9,
            )

    def screenshot(self, path, *, whole=False):
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    @property
    def complaints(self):
        """What the console said, and every exception."""
        names = (
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
        )
        return [one for one in self.events if one.get("method") in names]

    @property
    def requests(self):
        """Addresses that the page asked for."""
        return [
            one["params"]["request"]["url"]
            for one in self.events
            if one.get("method") == "Network.requestWillBeSent"
        ]


@contextmanager
def chromium(folder):
    """One browser with a profile of its own; ends with the block."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium here: apt install chromium")
    theirs_in, to = os.pipe()
    out, theirs_out = os.pipe()
    words = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
        f"--user-data-dir={folder}",
    ]

    def as_three_and_four():
        low, high = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(low, 3)
        os.dup2(high, 4)

    process = subprocess.Popen(
        [program, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=as_three_and_four,
        close_fds=False,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(theirs_in)
    os.close(theirs_out)
    browser = Browser(process, to, out)
    try:
        yield browser
        browser.call("Browser.close", False)
        process.wait(ANSWER_S)
    finally:
        os.close(to)
        os.close(out)
        if process.poll() is None:
            process.kill()
            process.wait(ANSWER_S)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def screenshots(tmp_path):
    """Where pictures go: MOONQUAKE_SCREENSHOTS, or away with the test."""
    folder = Path(os.environ.get("MOONQUAKE_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass
class Runs:
    """Makes results directories as a run would, without running anything."""

    root: Path
    fabricate: object
    test: str = (
        "suites/chaos/test_blast_radius.py::test_a_killed_store_costs_what_it_held"
    )
    engines: tuple[str, ...] = ("engine-0", "engine-1")
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    def open(self, **given):
        fields = {
            "time_scale": 0.1,
            "system": "refimpl",
            "target": "local",
            "argv": ["pytest", "suites/chaos"],
            "options": ["--time-scale", "0.1", "--defect", "placement_random"],
            "capabilities": {"kill": True},
            "started": datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC),
            "cwd": self.root,
        }
        suite = given.pop("suite", "blast_radius")
        report = RunReport.open(self.root, suite, 7, **{**fields, **given})
        meta = json.loads((report.path / "run.json").read_text())
        meta["monotonic_s"] = BEGAN_S - 2.0
        (report.path / "run.json").write_text(json.dumps(meta))
        report.meta = meta
        return report

    def samples(self, begin_s, *, lost=lambda index: False, count=48, **answer):
        found = []
        for index in range(count):
            l3 = 0 if lost(index) else 1024
            ttft_s = (2048 - l3) / 5000 * (1 + 0.05 * self.dice.random())
            found.append(
                self.fabricate.sample(
                    f"r{index}",
                    at_s=begin_s + index * 0.04,
                    tokens=2048,
                    **{"l3": l3, "ttft_s": ttft_s, **answer},
                )
            )
        return found

    def arm(self, report, name, samples):
        for sample in samples:
            request = sample.request
            report.history.invoke(request, sample.engine, sample.sent_s, name)
            report.history.complete(sample, name, f"out-{request.request_id}")

    def receipt(self, **given):
        fields = {
            "fault_id": "kill-1",
            "kind": "kill",
            "target": "store-3",
            "parameters": {"plan": ["SIGKILL to store-3 (pid 4711)", "start store-3"]},
            "injected_at_s": BEGAN_S + 3.0,
            "reverted_at_s": BEGAN_S + 5.5,
            "evidence": Evidence(measure="process gone", effect=1.0, detail="pid 4711"),
        }
        return Receipt(**{**fields, **given})

    def breakers(self, report, changes):
        for engine in self.engines:
            rows = [
                {"at": at, "from": old, "to": new, "reason": why}
                for at, old, new, why in changes
            ]
            report.history.info("breaker", engine, transitions=rows)

    def failing(self, **given):
        """A store is killed, and far more is lost than it held."""
        report = self.open(**given)
        report.history.test = self.test
        report.history.limits(self.fabricate.limits())
        self.arm(report, "healthy", self.samples(BEGAN_S))
        lost = self.samples(BEGAN_S + 3.2, lost=lambda index: index % 5 != 0)
        self.arm(report, "fault", lost)
        self.breakers(
            report,
            [
                (BEGAN_S + 3.6, "CLOSED", "OPEN", "5 read deadlines"),
                (BEGAN_S + 4.4, "OPEN", "HALF_OPEN", "time"),
                (BEGAN_S + 4.6, "HALF_OPEN", "CLOSED", "3 probes"),
            ],
        )
        receipt = self.receipt()
        report.history.fault("end", receipt)
        report.add_receipt(receipt, self.test)
        for judgement in failing_judgements():
            report.add_judgement(self.test, judgement)
        good = self.test.replace("costs_what", "keeps_what")
        report.add_judgement(good, none_of("O1", "bytes", 0, of=9, what="wrong"))
        report.close()
        return report.path

    def inconclusive(self):
        report = self.open()
        report.history.test = self.test
        report.add_receipt(
            self.receipt(evidence=Evidence(measure="bytes", effect=0.0)), self.test
        )
        report.add_judgement(
            self.test, inconclusive("O7b", "loss", "the victim held nothing")
        )
        report.close()
        return report.path

    def passing(self, **given):
        report = self.open(options=["--time-scale", "0.1"], **given)
        report.history.test = self.test
        report.history.limits(self.fabricate.limits())
        self.arm(report, "healthy", self.samples(BEGAN_S))
        report.add_receipt(self.receipt(), self.test)
        report.add_judgement(self.test, at_most("O2", "wait", 0.1, 0.3, samples=9))
        report.close()
        return report.path

    def hostile(self, nasty):
        """Everything that a system, an operator or a test can name, named badly."""
        report = self.open(
            suite="hostile", system=nasty, target=nasty, options=["--defect", nasty]
        )
        report.history.test = nasty
        sample = replace(
            self.fabricate.sample(nasty, at_s=BEGAN_S, error=nasty, ok=False),
            engine=nasty,
        )
        good = self.fabricate.sample(nasty, at_s=BEGAN_S + 1)
        report.history.complete(sample, nasty, nasty)
        report.history.complete(good, nasty, nasty)
        row = {"at": BEGAN_S, "from": nasty, "to": "OPEN", "reason": nasty}
        report.history.info("breaker", nasty, transitions=[row])
        report.add_receipt(
            self.receipt(
                kind=nasty,
                target=nasty,
                parameters={nasty: nasty, "plan": [nasty]},
                evidence=Evidence(measure=nasty, effect=1.0, detail=nasty),
                residual=nasty,
            ),
            nasty,
        )
        report.add_judgement(
            nasty,
            at_most(nasty, nasty, 1.0, 0.5, samples=3, label=nasty, reason=nasty),
        )
        report.add_error(nasty + "2", nasty)
        report.add_note(nasty)
        report.add_residual(nasty)
        report.close()
        return report.path


def failing_judgements():
    return [
        at_most(
            "O7b",
            "local-first: lost reuse <= the victim's share + 5 points",
            0.794,
            0.181,
            samples=48,
            unit="share",
            label="lost",
            kind="counter",
            reason="store-3 owned 13.1 %",
        ),
        at_most(
            "O7",
            "the pages of a request lie on few stores",
            5.2,
            1.5,
            samples=48,
            unit="stores",
            label="mean",
            kind="counter",
        ),
        inconclusive("O7c", "control: random placement loses 3 x local-first", "why"),
        none_of("O4", "no request fails", 0, of=48, what="failed"),
        at_least("evidence", "every fault had effect", 1, 1, samples=1),
        at_most("O2", "wait <= T + poll", 0.02, math.inf, samples=48, unit="s"),
    ]


@pytest.fixture
def drawn_runs(tmp_path, fabricate):
    """Runs whose plots are really drawn, which takes most of a second each."""
    return Runs(tmp_path / "results", fabricate)


@pytest.fixture
def runs(drawn_runs, monkeypatch):
    """Runs whose plots are drawn as a line, for tests of everything else."""
    monkeypatch.setattr("chaos.report.html.write.draw_test", sketch)
    return drawn_runs


def sketch(name, trace, _faults):
    """One plot that costs nothing, of a test that has something to show."""
    if not trace.shown:
        return []
    svg = "<svg><path d='M0 0'></path></svg>"
    words = "a sketch"
    plot = Plot(
        name=f"{name}-time", title="t", words=words, inline=svg, svg=svg, png=b""
    )
    return [plot]


@pytest.fixture(scope="session")
def failing(tmp_path_factory, fabricate):
    """The results of a failing run, really drawn, once for all who only read."""
    return Runs(tmp_path_factory.mktemp("failing"), fabricate).failing()


@pytest.fixture
def nasty():
    return NASTY

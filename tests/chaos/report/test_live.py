from __future__ import annotations

import io

import pytest

from chaos.load.sample import Ending
from chaos.report.live import PLAIN_EVERY_S, LiveLine


@pytest.fixture
def now():
    return [100.0]


def live(now, *, tty, width=100):
    return LiveLine(io.StringIO(), tty=tty, clock=lambda: now[0], width=width)


def written(line):
    return line._stream.getvalue()


def test_the_line_says_what_is_broken_how_long_ttft_and_hit_rate(now, fabricate):
    line = live(now, tty=True)
    line.test("test_paused_store")
    line.fault("pause(store-3)", lasts_s=5.0)
    now[0] += 1.25
    for ttft_s in (0.1, 0.2, 0.9):
        line.sample(fabricate.sample(ttft_s=ttft_s))

    assert line.text() == (
        "test_paused_store | pause(store-3) for 1.2 s of 5.0 s | "
        "TTFT p50 0.200 s (modelled) | hit rate 50 %"
    )


def test_without_a_fault_it_says_healthy(now):
    line = live(now, tty=True)
    line.fault("kill(store-1)")
    line.healed("kill(store-1)")

    assert line.text() == "healthy"


def test_failures_are_counted_and_shed_requests_are_not(now, fabricate):
    line = live(now, tty=True)
    line.sample(fabricate.sample(ok=False))
    line.sample(fabricate.sample(ending=Ending.HUNG))
    line.sample(fabricate.sample(ending=Ending.SHED))

    assert line.text() == "healthy | 2 failed"


def test_a_terminal_has_one_line_rewritten_within_its_width(now, fabricate):
    line = live(now, tty=True, width=20)
    for _ in range(3):
        now[0] += 1
        line.sample(fabricate.sample())
    line.clear()

    assert "\n" not in written(line)
    frames = written(line).split("\r\x1b[2K")[1:]
    assert len(frames) == 4
    assert all(len(frame) < 20 for frame in frames)
    assert frames[-1] == ""


def test_elsewhere_a_plain_line_now_and_then(now, fabricate):
    line = live(now, tty=False)
    for _ in range(25):
        now[0] += 1
        line.sample(fabricate.sample())
    line.clear()

    rows = written(line).splitlines()
    assert len(rows) == 1 + int(24 // PLAIN_EVERY_S)
    assert "\x1b" not in written(line)


def test_a_new_test_forgets_the_old_numbers(now, fabricate):
    line = live(now, tty=False)
    line.sample(fabricate.sample(ok=False))
    line.fault("kill(a)")
    line.test("next")

    assert line.text() == "next | healthy"

"""Clocks, from the catalogue's fixture."""

from __future__ import annotations

import pytest

LINE = "chronyc -c tracking"
GOOD = (
    "C0000201,192.0.2.1,3,1790000000.123456789,0.000012345,-0.000001,0.00002,-12.3,"
    "0.001,0.05,0.0004,0.0002,64.2,Normal\n"
)
FAR = GOOD.replace("0.000012345", "10.449391606")
LOST = "7F7F0101,,0,0.000000000,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised\n"
SILENT = (1, "506 Cannot talk to daemon\n", "")
SHOWN = "Timezone=UTC\nNTP={}\nNTPSynchronized={}\n"


def offset(bench, entry, **cmds):
    shown = {"timedatectl show": cmds["shown"]} if "shown" in cmds else {}
    seen = bench.judge(bench.doc(cmds={LINE: entry, **shown}))
    finding = seen.one("time-offset")
    return finding.status.value, finding.severity.value


def test_f54_a_clock_within_microseconds_passes(bench):
    assert offset(bench, GOOD)[0] == "PASS"


def test_f54_r77_ten_seconds_fail(bench):
    assert offset(bench, FAR) == ("FAIL", "error")


def test_f54_an_unsynchronised_clock_fails(bench):
    assert offset(bench, LOST) == ("FAIL", "error")


def test_f54_a_daemon_that_does_not_answer_is_unknown(bench):
    assert offset(bench, SILENT)[0] == "UNKNOWN"


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ("0.1", "PASS"),
        ("-0.100001", "WARN"),
        ("0.5", "WARN"),
        ("-1.0", "WARN"),
        ("-1.000001", "FAIL"),
        ("nan", "UNKNOWN"),
    ],
)
def test_the_limits_are_a_tenth_and_one_second_either_way(bench, seconds, verdict):
    assert offset(bench, GOOD.replace("0.000012345", seconds))[0] == verdict


def test_the_kernel_tells_of_a_clock_that_no_chronyd_keeps(bench):
    lost = SHOWN.format("no", "no")

    assert offset(bench, SILENT, shown=lost) == ("FAIL", "error")
    assert offset(bench, SILENT, shown=SHOWN.format("yes", "yes"))[0] == "UNKNOWN"


@pytest.mark.parametrize("text", [GOOD, LOST])
def test_an_answer_that_is_cut_off_never_passes(bench, text):
    for at in range(len(text.rstrip())):
        assert offset(bench, text[:at])[0] == "UNKNOWN", at


def daemon(bench, entry, shown=None):
    cmds = {LINE: entry, **({"timedatectl show": shown} if shown else {})}
    return bench.judge(bench.doc(cmds=cmds)).status("time-sync-daemon")


def test_nobody_keeping_the_clock_fails_and_explains_the_offset(bench):
    cmds = {LINE: SILENT, "timedatectl show": SHOWN.format("no", "no")}

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("time-sync-daemon") == "FAIL"
    assert seen.one("time-offset").blocked_by == ("time-sync-daemon",)


def test_a_daemon_is_one_that_answers_or_that_the_kernel_shows(bench):
    assert daemon(bench, GOOD) == "PASS"
    assert daemon(bench, SILENT, SHOWN.format("yes", "no")) == "PASS"
    assert daemon(bench, (127, "", "not found"), SHOWN.format("no", "yes")) == "PASS"
    assert daemon(bench, (127, "", "not found"), SHOWN.format("no", "no")) == "FAIL"
    assert daemon(bench, SILENT) == "UNKNOWN"


def spread(bench, *times, trip=0.2):
    nodes = [
        bench.doc(
            f"node-{at}",
            cmds={LINE: GOOD},
            collector={"bracket": [1000.0, 1000.0 + trip]},
            wall={"t": t},
        )
        for at, t in enumerate(times)
    ]
    return bench.judge(*nodes).by_node("time-spread")


def test_one_clock_that_is_ahead_of_the_others_is_named(bench):
    found = spread(bench, 1000.1, 1000.0, 1005.0, 1000.2)

    assert found == {
        "node-0": "PASS",
        "node-1": "PASS",
        "node-2": "FAIL",
        "node-3": "PASS",
    }


def test_of_two_clocks_that_differ_none_is_right(bench):
    assert set(spread(bench, 1000.0, 1005.0).values()) == {"FAIL"}


def test_a_slow_connection_tells_nothing(bench):
    assert set(spread(bench, 1000.0, 1000.0, 1000.0, trip=9.0).values()) == {"UNKNOWN"}


def test_a_node_alone_has_nothing_to_compare(bench):
    assert spread(bench, 1000.0) == {"node-0": "SKIP"}


def test_clock_sources_that_cost_microseconds_warn(bench):
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

    def verdict(name):
        return bench.judge(bench.doc(files={path: f"{name}\n"})).status(
            "time-clocksource"
        )

    assert (verdict("hpet"), verdict("acpi_pm")) == ("WARN", "WARN")

"""What NVMe disks say of themselves."""

from __future__ import annotations

import json

import pytest

CHECK = "disk-smart"
SMART = "nvme smart-log /dev/nvme0 -o json"
GOOD = {"critical_warning": 0, "percent_used": 3, "media_errors": 0}


def judged(bench, told, **files):
    text = json.dumps(told) if isinstance(told, dict) else told
    node = bench.doc(
        cmds={} if text is None else {SMART: text},
        files={"/sys/class/nvme": ("nvme0",), **files},
    )
    return bench.judge(node, only=CHECK).one(CHECK)


@pytest.mark.parametrize(
    ("told", "status", "observed"),
    [
        (GOOD, "PASS", "3 % of its life used"),
        (GOOD | {"percent_used": 89}, "PASS", "89 % of its life used"),
        (GOOD | {"percent_used": 90}, "WARN", "90 % of its life used"),
        (GOOD | {"percent_used": 255}, "WARN", "255 % of its life used"),
        (GOOD | {"media_errors": 2}, "WARN", "2 media errors"),
        (GOOD | {"media_errors": "1844674407370955161"}, "WARN", "media errors"),
        (GOOD | {"critical_warning": 4}, "FAIL", "reliability degraded"),
        (GOOD | {"critical_warning": 9}, "FAIL", "little spare left, read-only"),
        (GOOD | {"critical_warning": 128}, "FAIL", "critical_warning 0x80"),
        (GOOD | {"critical_warning": {"value": 2}}, "FAIL", "temperature"),
    ],
)
def test_a_disk_is_judged_by_what_it_says(bench, told, status, observed):
    found = judged(bench, told)

    assert found.status == status
    assert observed in found.observed


def test_text_calls_the_wear_otherwise(bench):
    told = {"critical_warning": 0, "percentage_used": 95, "media_errors": 0}

    assert judged(bench, told).status == "WARN"


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_a_log_that_lacks_a_number_is_unknown(bench, missing):
    told = {name: value for name, value in GOOD.items() if name != missing}

    assert judged(bench, told).status == "UNKNOWN"


@pytest.mark.parametrize(
    "told",
    [
        None,
        "",
        "[]",
        json.dumps(GOOD)[:-1],
        (127, "", "not found"),
        (1, "", "open: Permission denied\n"),
        GOOD | {"media_errors": "many"},
        GOOD | {"critical_warning": True},
    ],
)
def test_a_log_that_was_not_read_is_unknown(bench, told):
    assert judged(bench, told).status == "UNKNOWN"


@pytest.mark.parametrize("entries", [{"errno": "ENOENT"}, (), ("nvme-fabrics",)])
def test_a_node_without_such_disks_is_skipped(bench, entries):
    found = judged(bench, None, **{"/sys/class/nvme": entries})

    assert found.status == "SKIP"


def test_a_disk_over_the_network_is_no_disk_of_this_node(bench):
    found = judged(bench, None, **{"/sys/class/nvme/nvme0/transport": "rdma\n"})

    assert found.status == "SKIP"


def test_a_node_where_nobody_looked_is_unknown(bench):
    assert bench.judge(bench.doc(), only=CHECK).status(CHECK) == "UNKNOWN"

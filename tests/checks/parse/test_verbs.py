"""`ibv_devinfo`: devices, ports, sizes."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.garbled import Garbled
from checks.parse.verbs import mtu_of, parse_devinfo, pyverbs_number, verbs, word

TEXT = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tmax_mr_size:\t\t\t0x1000000000
\tmax_qp:\t\t\t\t131072
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tGID[  3]:\t\t::ffff:198.51.100.6, RoCE v2

hca_id:\tmlx5_1
\ttransport:\t\t\tiWARP (1)
\t\tport:\t1
\t\t\tactive_mtu:\t\t1024 (3)
\t\tport:\t2
\t\t\tactive_mtu:\t\t2048 (4)
"""


def test_fields_belong_to_their_device_and_port():
    found = parse_devinfo(TEXT)

    assert found["mlx5_0"].number("max_mr_size") == 64 << 30
    assert found["mlx5_0"].number("max_qp") == 131072
    assert found["mlx5_1"].fields["transport"] == "iWARP (1)"
    assert found["mlx5_1"].port(2).fields["active_mtu"] == "2048 (4)"
    assert [index for index, _, _ in found["mlx5_0"].port(1).gids] == [3]


def test_what_is_not_told_is_unread():
    found = parse_devinfo(TEXT)

    with pytest.raises(Unread):
        found["mlx5_1"].number("max_mr_size")
    with pytest.raises(Unread):
        found["mlx5_0"].port(2)


def test_a_text_without_devices_is_refused():
    with pytest.raises(Garbled):
        parse_devinfo("No IB devices found\n")


def test_the_list_of_names_is_no_source():
    entry = {"rc": 0, "stdout": "1 HCA found:\n\tmlx5_0\n", "stderr": ""}

    with pytest.raises(Unread):
        verbs(Facts({"cmds": {"ibv_devinfo -l": entry}}))


def test_sizes_and_words():
    assert mtu_of("4096 (5)") == 4096
    assert word("PORT_ACTIVE (4)") == "ACTIVE"
    for text in ("4096", "4000 (5)", ""):
        with pytest.raises(Garbled):
            mtu_of(text)


def test_numbers_of_pyverbs_are_numbers():
    facts = Facts({"verbs": {"mlx5_0": {"max_mr_size": 1 << 40, "active_mtu": "x"}}})

    assert pyverbs_number(facts, "mlx5_0", "max_mr_size") == 1 << 40
    for key in ("active_mtu", "none"):
        with pytest.raises(Unread):
            pyverbs_number(facts, "mlx5_0", key)
    with pytest.raises(Unread):
        pyverbs_number(Facts({"verbs": {"error": "no"}}), "mlx5_0", "max_mr_size")

"""GID tables from three sources, and what each cannot tell."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.garbled import Garbled
from checks.parse.gid_table import V1, V2, gid_table, parse_show_gids

HEAD = "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\t----\t-----\t---\n"
LOCAL = "mlx5_0\t1\t0\tfe80:0000:0000:0000:0ac0:ebff:feda:1cfb\t\t\tv1\tens1\n"
IPV4 = (
    "mlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff:c633:6406\t198.51.100.6  \tv2\tens1\n"
)
BASE = "/sys/class/infiniband/mlx5_0/ports/1"


def files(**entries):
    """Facts with entries below the port; `_` is the level of a path."""
    found = {f"{BASE}/{path.replace('__', '/')}": e for path, e in entries.items()}
    return Facts({"files": found})


def text(value):
    return {"text": value}


def test_rows_without_an_ipv4_column_are_read_like_the_others():
    found = parse_show_gids(HEAD + LOCAL + IPV4 + "n_gids_found=2\n")

    local, ipv4 = found["mlx5_0", 1]
    assert (local.index, local.kind, local.netdev) == (0, V1, "ens1")
    assert (ipv4.index, ipv4.kind, ipv4.ip) == (3, V2, "198.51.100.6")


@pytest.mark.parametrize("at", range(len(HEAD), len(HEAD + LOCAL + IPV4) + 14))
def test_a_listing_that_is_cut_is_refused(at):
    with pytest.raises(Garbled):
        parse_show_gids((HEAD + LOCAL + IPV4 + "n_gids_found=2\n")[:at])


def test_a_listing_that_counts_otherwise_is_refused():
    with pytest.raises(Garbled):
        parse_show_gids(HEAD + LOCAL + "n_gids_found=2\n")


def test_no_gids_at_all_is_a_whole_listing():
    assert parse_show_gids(HEAD + "n_gids_found=0\n") == {}


def test_einval_marks_an_empty_slot_and_a_netdev_that_is_none():
    facts = files(
        gids__0=text("fe80:0000:0000:0000:0ac0:ebff:feda:1cfb\n"),
        gid_attrs__types__0=text("RoCE v2\n"),
        gid_attrs__ndevs__0={"errno": "EINVAL"},
        gid_attrs__types__1={"errno": "EINVAL"},
    )

    table = gid_table(facts, "mlx5_0", 1)

    assert table.at(0).netdev == ""
    assert table.at(1) is None
    assert table.empty == {1}


@pytest.mark.parametrize("errno", ["EACCES", "EPERM"])
@pytest.mark.parametrize("leaf", ["gids__0", "gid_attrs__ndevs__0"])
def test_what_is_denied_refuses_the_table(errno, leaf):
    entries = {
        "gids__0": text("fe80:0000:0000:0000:0ac0:ebff:feda:1cfb\n"),
        "gid_attrs__types__0": text("RoCE v2\n"),
        "gid_attrs__ndevs__0": text("ens1\n"),
        leaf: {"errno": errno},
    }

    with pytest.raises(Unread):
        gid_table(files(**entries), "mlx5_0", 1)


def test_a_type_that_is_cut_refuses_the_table():
    facts = files(
        gids__0=text("fe80:0000:0000:0000:0ac0:ebff:feda:1cfb\n"),
        gid_attrs__types__0=text("RoCE v"),
    )

    with pytest.raises(Unread, match="no type of a GID"):
        gid_table(facts, "mlx5_0", 1)


def test_ibv_devinfo_without_v_lists_no_gids_and_tells_nothing_of_them():
    out = "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tlink_layer:\t\tEthernet\n"
    entry = {"rc": 0, "stdout": out, "stderr": ""}

    with pytest.raises(Unread):
        gid_table(Facts({"cmds": {"ibv_devinfo": entry}}), "mlx5_0", 1)


def test_ibv_devinfo_v_of_a_port_without_gids_tells_that_it_has_none():
    out = "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tgid_tbl_len:\t\t256\n"
    entry = {"rc": 0, "stdout": out, "stderr": ""}

    facts = Facts({"cmds": {"ibv_devinfo -v": entry}})
    assert gid_table(facts, "mlx5_0", 1).gids == ()

"""Which ports are judged, in the order of section 0.5 of the catalogue."""

from __future__ import annotations

import json

import pytest

from checks.facts import Facts, Unread
from checks.selector import select


def port(device, phys="5: LinkUp", netdev="", **more):
    base = f"/sys/class/infiniband/{device}"
    found = {
        f"{base}/ports/1/phys_state": phys,
        f"{base}/ports/1/gid_attrs/ndevs/0": netdev or f"n-{device}",
    }
    if more.get("vf"):
        found[f"{base}/device/physfn"] = {"link": "../0000:1a:00.0"}
    return found


FOUR = {k: v for n in range(4) for k, v in port(f"mlx5_{n}").items()}
DEFAULT = json.dumps([{"dst": "default", "gateway": "192.0.2.254", "dev": "n-mlx5_3"}])


def chosen(bench, files=FOUR, nics=(), profile=(), cmds=None, **env):
    files = {**files, **(bench.env(**env) if env else {})}
    found = select(Facts(bench.doc(files=files, cmds=cmds)), nics, profile)
    return [p.device for p in found.chosen], found


def test_the_command_line_wins_over_everything(bench):
    names, found = chosen(
        bench, nics=["mlx5_1"], profile=["mlx5_2"], MC_MS_FILTERS="mlx5_3"
    )

    assert (names, found.origin) == (["mlx5_1"], "--nics")


def test_the_profile_wins_over_the_environment(bench):
    names, found = chosen(bench, profile=["mlx5_2"], MC_MS_FILTERS="mlx5_3")

    assert (names, found.origin) == (["mlx5_2"], "profile")


def test_mooncakes_filter_wins_over_nccl(bench):
    names, _ = chosen(bench, MC_MS_FILTERS="mlx5_0, mlx5_1", NCCL_IB_HCA="mlx5_3")

    assert names == ["mlx5_0", "mlx5_1"]


def test_the_flag_of_the_engine_names_devices_too(bench):
    line = "python\0-m\0sglang.launch_server\0--disaggregation-ib-device\0mlx5_2\0"

    names, found = chosen(bench, files={**FOUR, "/proc/7/cmdline": line})

    assert (names, found.origin) == (["mlx5_2"], "--disaggregation-ib-device")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mlx5_1,mlx5_2", ["mlx5_1", "mlx5_2"]),
        ("mlx5", ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]),
        ("=mlx5", []),
        ("=mlx5_3", ["mlx5_3"]),
        ("^mlx5_0", ["mlx5_1", "mlx5_2", "mlx5_3"]),
        ("^=mlx5_0,mlx5_1", ["mlx5_2", "mlx5_3"]),
        ("mlx5_1:1", ["mlx5_1"]),
        ("mlx5_1:2", []),
    ],
)
def test_nccl_ib_hca_is_read_as_nccl_reads_it(bench, text, expected):
    assert chosen(bench, NCCL_IB_HCA=text)[0] == expected


def test_a_netdev_or_a_pci_address_names_a_port_as_well(bench):
    files = {
        **FOUR,
        "/sys/class/infiniband/mlx5_2/device": {"link": "../../../0000:3b:00.0"},
    }

    names, found = chosen(bench, files=files, nics=["n-mlx5_0", "0000:3b:00.0", "eth9"])

    assert (names, found.missing) == (["mlx5_0", "mlx5_2"], ("eth9",))


def test_without_names_ports_that_are_off_and_vfs_are_left_out_with_the_reason(bench):
    files = {**FOUR, **port("mlx5_8", "3: Disabled"), **port("mlx5_9", vf=True)}

    names, found = chosen(bench, files=files)

    assert names == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert found.excluded == {
        "mlx5_8": "switched off (Disabled)",
        "mlx5_9": "a virtual function",
    }


def test_the_nic_of_the_default_route_is_left_out_beside_others(bench):
    names, found = chosen(bench, cmds={"ip -j route": DEFAULT})

    assert names == ["mlx5_0", "mlx5_1", "mlx5_2"]
    assert found.excluded == {"mlx5_3": "the NIC of the default route"}


def test_the_only_nic_is_judged_although_it_carries_the_default_route(bench):
    names, _ = chosen(bench, files=port("mlx5_3"), cmds={"ip -j route": DEFAULT})

    assert names == ["mlx5_3"]


def test_a_polling_port_is_judged(bench):
    assert chosen(bench, files=port("mlx5_0", "2: Polling"))[0] == ["mlx5_0"]


def test_ports_that_cannot_be_told_are_refused(bench):
    with pytest.raises(Unread):
        chosen(bench, files={})

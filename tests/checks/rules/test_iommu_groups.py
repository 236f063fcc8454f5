"""Groups of the IOMMU: shared with a stranger while VFIO is in use, or not."""

from __future__ import annotations

import pytest

CHECK = "iommu-groups-shared"
PCI = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
NIC, DISK, BRIDGE = "0000:1a:00.0", "0000:1b:00.0", "0000:17:00.0"
IB = "/sys/class/infiniband/mlx5_0"


def judged(bench, members, passed=(DISK,), **more):
    """A NIC whose group has these members, and what VFIO has."""
    kinds = {NIC: "0x020000\n", DISK: "0x010802\n", BRIDGE: "0x060400\n"}
    files = {
        f"{IB}/device": {"link": f"../../../{NIC}"},
        f"{IB}/ports/1/state": "4: ACTIVE\n",
        f"{IB}/ports/1/phys_state": "5: LinkUp\n",
        DRIVERS: ("mlx5_core", "nvme", "vfio-pci"),
        f"{DRIVERS}/vfio-pci": ("bind", "new_id", *passed),
        f"{PCI}/{NIC}/iommu_group/devices": members,
        **{f"{PCI}/{bdf}/class": kind for bdf, kind in kinds.items()},
        **more,
    }
    kept = {path: entry for path, entry in files.items() if entry is not None}
    return bench.judge(bench.doc(files=kept), only=CHECK).one(CHECK)


def test_a_stranger_in_the_group_warns_while_something_is_passed_through(bench):
    found = judged(bench, (NIC, DISK))

    assert (found.status, found.severity) == ("WARN", "warning")
    assert found.observed == f"shares its group with {DISK}; VFIO has {DISK}"


@pytest.mark.parametrize(
    ("members", "passed"),
    [
        ((NIC,), (DISK,)),
        ((NIC, "0000:1a:00.1"), ("0000:1a:00.1",)),
        ((NIC, BRIDGE), (DISK,)),
        ((NIC, DISK), ()),
    ],
    ids=["alone", "its other port", "a bridge", "no passthrough"],
)
def test_relatives_bridges_and_hosts_without_vfio_pass(bench, members, passed):
    assert judged(bench, members, passed).status == "PASS"


def test_no_driver_of_vfio_is_no_use_of_it(bench):
    found = judged(
        bench,
        (NIC, DISK),
        **{DRIVERS: ("mlx5_core",), f"{DRIVERS}/vfio-pci": None},
    )

    assert found.status == "PASS"


def test_a_variant_driver_of_vfio_counts(bench):
    found = judged(
        bench,
        (NIC, DISK),
        passed=(),
        **{
            DRIVERS: ("mlx5_vfio_pci",),
            f"{DRIVERS}/mlx5_vfio_pci": ("0000:3b:00.2",),
        },
    )

    assert found.status == "WARN"


def test_virtual_functions_of_the_nic_are_no_strangers(bench):
    member = "0000:1a:08.2"

    found = judged(
        bench,
        (NIC, member),
        **{f"{PCI}/{member}/physfn": {"link": f"../{NIC}"}},
    )

    assert found.status == "PASS"


def test_without_an_iommu_there_is_no_group_to_share(bench):
    assert judged(bench, {"errno": "ENOENT"}).status == "PASS"


@pytest.mark.parametrize(
    "more",
    [
        {f"{PCI}/{NIC}/iommu_group/devices": None},
        {DRIVERS: None, f"{DRIVERS}/vfio-pci": None},
        {DRIVERS: (), f"{DRIVERS}/vfio-pci": None},
        {DRIVERS: {"errno": "EACCES"}, f"{DRIVERS}/vfio-pci": None},
        {f"{DRIVERS}/vfio-pci": None},
        {f"{PCI}/{DISK}/class": None},
        {f"{PCI}/{NIC}/iommu_group/devices": (DISK,)},
    ],
    ids=[
        "no group read",
        "no drivers read",
        "no driver at all",
        "denied",
        "vfio not read",
        "no class",
        "not in its own group",
    ],
)
def test_what_was_not_read_is_unknown(bench, more):
    found = judged(bench, (NIC, DISK), **more)

    assert found.status == "UNKNOWN"

"""Virtual functions in use, and whether their representors are ports of a bridge."""

from __future__ import annotations

import json

import pytest

CHECK = "ovs-rep-present"
NET, PCI = "/sys/class/net", "/sys/bus/pci/devices"
PF, FIRST, SECOND = "0000:1a:00.0", "0000:1a:00.2", "0000:1a:00.3"
SWITCH = "a088c20003bf6b0c\n"
INTERFACES = "ovs-vsctl --timeout=5 --format=json list Interface"
DRIVER = {"link": "../../bus/pci/drivers/mlx5_core"}


def files(*, used=(True, True), reps=("pf0vf0", "pf0vf1"), **more):
    found = {
        "/run/openvswitch": ("db.sock",),
        f"{NET}/eth0/device": {"link": f"../../../{PF}"},
        f"{NET}/eth0/phys_switch_id": SWITCH,
        f"{NET}/eth0/phys_port_name": "p0\n",
        f"{PCI}/{PF}/sriov_numvfs": "2\n",
    }
    for at, (vf, is_used) in enumerate(zip((FIRST, SECOND), used, strict=True)):
        found |= {
            f"{PCI}/{PF}/virtfn{at}": {"link": f"../{vf}"},
            f"{PCI}/{vf}/driver": DRIVER,
            f"{PCI}/{vf}/net": () if is_used else (f"eth0v{at}",),
        }
    for at, name in enumerate(reps):
        found |= {
            f"{NET}/rep{at}/device": {"link": f"../../../{PF}"},
            f"{NET}/rep{at}/phys_switch_id": SWITCH,
            f"{NET}/rep{at}/phys_port_name": f"{name}\n",
        }
    found |= more
    return {path: entry for path, entry in found.items() if entry is not None}


def judged(bench, *names, told=None, **more):
    rows = {"headings": ["name"], "data": [[name] for name in names]}
    cmds = {INTERFACES: json.dumps(rows) if told is None else told}
    node = bench.doc(cmds=cmds, files=files(**more))
    return bench.judge(node, only=CHECK).one(CHECK)


def test_a_function_in_use_whose_representor_is_in_no_bridge_warns(bench):
    found = judged(bench, "eth0", "rep0")

    assert (found.status, found.subject) == ("WARN", "eth0")
    assert found.observed == "rep1 of VF 1 is in no bridge"


def test_all_of_them_in_bridges_pass(bench):
    found = judged(bench, "eth0", "rep0", "rep1")

    assert (found.status, found.observed) == (
        "PASS",
        "2 VFs in use, each with its port",
    )


def test_a_function_whose_device_is_still_here_is_in_use_by_nobody(bench):
    assert judged(bench, "rep0", used=(True, False)).status == "PASS"


def test_a_function_without_a_driver_is_in_use_by_nobody(bench):
    more = {f"{PCI}/{SECOND}/driver": {"errno": "ENOENT"}}

    assert judged(bench, "rep0", **more).status == "PASS"


def test_a_function_that_vfio_has_is_in_use(bench):
    more = {f"{PCI}/{SECOND}/net": {"errno": "ENOENT"}}

    assert judged(bench, "rep0", **more).status == "WARN"


def test_a_representor_in_another_bridge_than_of_ovs_is_not_lost(bench):
    more = {f"{NET}/rep1/master": {"link": "../br0"}}

    assert judged(bench, "rep0", **more).status == "PASS"


@pytest.mark.parametrize("name", ["pf1vf1", "c1pf0vf1"])
def test_a_representor_of_another_function_does_not_count(bench, name):
    found = judged(bench, "rep0", "rep1", reps=("c0pf0vf0", name))

    assert (found.status, found.observed) == ("WARN", "VF 1 has no representor")


def test_legacy_mode_has_no_representors(bench):
    refused = {"errno": "ENOTSUP"}
    more = {
        f"{NET}/eth0/phys_switch_id": refused,
        f"{NET}/eth0/phys_port_name": refused,
    }

    assert judged(bench, reps=(), **more).status == "SKIP"


@pytest.mark.parametrize("name", ["pf0sf0", "pf0", "c1pf0"])
def test_a_representor_that_sorts_before_the_uplink_is_not_the_nic(bench, name):
    more = {
        f"{NET}/en0sf0/device": {"link": f"../../../{PF}"},
        f"{NET}/en0sf0/phys_switch_id": SWITCH,
        f"{NET}/en0sf0/phys_port_name": f"{name}\n",
    }

    found = judged(bench, "eth0", "rep0", **more)

    assert (found.status, found.subject) == ("WARN", "eth0")


def test_in_legacy_mode_the_nic_itself_is_named(bench):
    refused = {"errno": "EOPNOTSUPP"}
    more = {
        f"{NET}/eth0/phys_switch_id": refused,
        f"{NET}/eth0/phys_port_name": refused,
    }

    assert judged(bench, reps=(), **more).subject == "eth0"


def test_a_legacy_nic_without_names_of_ports_does_not_hide_the_other(bench):
    other = "0000:5e:00.0"
    more = {
        f"{NET}/abc0/device": {"link": f"../../../{other}"},
        f"{NET}/abc0/phys_switch_id": {"errno": "ENOENT"},
        f"{PCI}/{other}/sriov_numvfs": "1\n",
        f"{PCI}/{other}/virtfn0": {"link": "../0000:5e:00.2"},
    }
    rows = json.dumps({"headings": ["name"], "data": [["rep0"], ["rep1"]]})
    node = bench.doc(cmds={INTERFACES: rows}, files=files(**more))

    told = bench.judge(node, only=CHECK).statuses(CHECK)

    assert told == {"eth0": "PASS", "abc0": "SKIP"}


def test_functions_of_a_nic_that_has_only_an_rdma_device_count(bench):
    other = "0000:5e:00.0"
    more = {
        "/sys/class/infiniband/mlx5_7/device": {"link": f"../../../{other}"},
        f"{PCI}/{other}/sriov_numvfs": "8\n",
    }

    assert judged(bench, "rep0", "rep1", **more).status == "UNKNOWN"


@pytest.mark.parametrize(
    "more",
    [
        {f"{NET}/eth0/phys_port_name": {"errno": "EOPNOTSUPP"}},
        {f"{NET}/eth0/phys_port_name": "pf0\n"},
        {f"{NET}/eth0/device": None},
    ],
    ids=["no name", "a port inside", "no network device"],
)
def test_a_switch_without_a_port_to_the_wire_is_unknown(bench, more):
    assert judged(bench, "rep0", "rep1", **more).status == "UNKNOWN"


def test_functions_that_are_counted_and_not_listed_are_unknown(bench):
    without = {f"{PCI}/{PF}/virtfn{at}": None for at in (0, 1)}

    assert judged(bench, "rep0", "rep1", **without).status == "UNKNOWN"


def test_functions_of_a_gpu_are_no_question(bench):
    more = {f"{PCI}/0000:47:00.0/sriov_numvfs": "16\n"}

    assert judged(bench, "rep0", "rep1", **more).status == "PASS"


@pytest.mark.parametrize("number", ["0\n", {"errno": "ENOENT"}])
def test_no_virtual_functions_or_no_ovs_is_no_question(bench, number):
    without = {f"{PCI}/{PF}/virtfn{at}": None for at in (0, 1)}
    without[f"{PCI}/{PF}/sriov_numvfs"] = number

    assert judged(bench, "eth0", **without).status == "SKIP"
    node = bench.doc(files=files(**{"/run/openvswitch": {"errno": "ENOENT"}}))
    assert bench.judge(node, only=CHECK).status(CHECK) == "SKIP"


@pytest.mark.parametrize(
    "more",
    [
        {"told": '{"headings": ["name"], "data": [["rep0"], ["re'},
        {f"{PCI}/{PF}/sriov_numvfs": None},
        {f"{PCI}/{PF}/sriov_numvfs": "3\n"},
        {f"{PCI}/{SECOND}/driver": None},
        {f"{PCI}/{SECOND}/net": None},
        {f"{NET}/eth0/phys_switch_id": {"errno": "EACCES"}},
        {f"{NET}/rep1/phys_port_name": None},
    ],
    ids=["cut", "no number", "too few", "no driver", "no net", "denied", "no name"],
)
def test_what_was_not_read_is_unknown(bench, more):
    assert judged(bench, "rep0", "rep1", **more).status == "UNKNOWN"


def test_where_nobody_looked_for_switches_it_is_unknown(bench):
    more = {f"{NET}/{name}/phys_switch_id": None for name in ("eth0", "rep0", "rep1")}

    assert judged(bench, "rep0", "rep1", **more).status == "UNKNOWN"

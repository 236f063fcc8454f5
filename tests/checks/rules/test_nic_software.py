"""Drivers, device nodes and libraries, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

BDF = "0000:1a:00.0"


def device(number=0, bus=0x1A, netdev=""):
    base = f"/sys/class/infiniband/mlx5_{number}"
    return {
        f"{base}/device": {"link": f"../../../0000:{bus + number:02x}:00.0"},
        f"{base}/ports/1/state": "4: ACTIVE\n",
        f"{base}/ports/1/phys_state": "5: LinkUp\n",
        f"{base}/ports/1/link_layer": "Ethernet\n",
        f"{base}/ports/1/gid_attrs/ndevs/0": f"{netdev or f'ens{number + 1}f0np0'}\n",
    }


def devices(count=4):
    found = {"/sys/class/infiniband": tuple(f"mlx5_{n}" for n in range(count))}
    for number in range(count):
        found |= device(number)
    return found


def ethtool(version, driver="mlx5_core"):
    return (
        f"driver: {driver}\nversion: {version}\n"
        "firmware-version: 28.39.1002 (MT_0000000838)\nexpansion-rom-version: \n"
        f"bus-info: {BDF}\nsupports-statistics: yes\n"
    )


SPELLINGS = (
    {"cmds": {"ethtool -i ens1f0np0": ethtool("24.10-0.7.0")}},
    {"cmds": {"ethtool -i ens1f0np0": ethtool("OFED-internal-24.10-0.7.0")}},
    {"files": {"/sys/module/mlx5_core/version": "24.10-0.7.0\n"}},
    {"cmds": {"ofed_info -s": "MLNX_OFED_LINUX-24.10-0.7.0.0 (OFED-24.10-0.7.0):\n"}},
    {"cmds": {"ofed_info -s": "OFED-internal-24.10-0.7.0:\n"}},
)


def test_f35_r37_network_operator_3104_one_driver_in_all_spellings_is_the_same(bench):
    nodes = [bench.doc(f"node-{at}", **told) for at, told in enumerate(SPELLINGS)]

    seen = bench.judge(*nodes)

    assert set(seen.by_node("nic-driver-consistent").values()) == {"PASS"}
    values = {f.value for f in seen.all("nic-driver-consistent")}
    assert values == {"mlx5_core 24.10-0.7.0"}


def test_f35_the_kernels_own_driver_among_vendors_fails(bench):
    nodes = [bench.doc(f"node-{n}", **SPELLINGS[0]) for n in "abc"]
    inbox = {"ethtool -i ens1f0np0": ethtool("6.8.0-60-generic")}

    seen = bench.judge(*nodes, bench.doc("node-d", cmds=inbox))

    finding = seen.one("nic-driver-consistent", node="node-d")
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.observed == "mlx5_core inbox 6.8.0-60-generic"
    assert seen.status("nic-driver-consistent", node="node-a") == "PASS"


def test_f35_the_kernels_own_driver_beside_an_installed_package_is_a_mix(bench):
    cmds = {
        "ethtool -i ens1f0np0": ethtool("6.8.0-60-generic"),
        "ofed_info -s": "MLNX_OFED_LINUX-24.10-0.7.0.0 (OFED-24.10-0.7.0):\n",
    }

    finding = bench.judge(bench.doc(cmds=cmds)).one("nic-driver-consistent")

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.observed.endswith("although 24.10-0.7.0 is installed")


def test_f35_two_versions_of_one_driver_on_a_node_are_a_mix(bench):
    cmds = {
        "ethtool -i ens1f0np0": ethtool("6.8.0-60-generic"),
        "ethtool -i ens2f0np0": ethtool("24.10-0.7.0"),
    }

    assert bench.judge(bench.doc(cmds=cmds)).status("nic-driver-consistent") == "FAIL"


def test_a_module_without_a_version_is_the_kernels_own(bench):
    files = {"/sys/module/mlx5_core/version": {"errno": "ENOENT"}}
    inbox = bench.doc("node-a", cmds={"uname -r": "6.8.0-60-generic\n"}, files=files)
    vendor = bench.doc("node-b", **SPELLINGS[2])

    seen = bench.judge(inbox, vendor)

    assert set(seen.by_node("nic-driver-consistent").values()) == {"WARN"}


def test_the_profile_allows_a_driver_in_any_spelling(bench):
    profile = {"nic": {"driver": ["MLNX_OFED_LINUX-24.10-0.7.0.0"]}}

    good = bench.judge(bench.doc(**SPELLINGS[0]), profile=profile)
    old = {"ethtool -i ens1f0np0": ethtool("23.10-1.1.9")}
    bad = bench.judge(bench.doc(cmds=old), profile=profile)

    assert good.status("nic-driver-consistent") == "PASS"
    assert bad.status("nic-driver-consistent") == "FAIL"


def test_a_bond_tells_nothing_of_the_driver_below_it(bench):
    cmds = {"ethtool -i bond0": ethtool("6.8.0-60-generic", "bonding")}
    nodes = [
        bench.doc(f"node-{n}", cmds=cmds, files=SPELLINGS[2]["files"]) for n in "abc"
    ]

    seen = bench.judge(*nodes)

    values = {f.value for f in seen.all("nic-driver-consistent")}
    assert values == {"mlx5_core 24.10-0.7.0"}


def test_another_build_of_the_same_version_fails(bench):
    def built(name, source):
        files = {"/sys/module/mlx5_core/srcversion": source}
        return bench.doc(name, files=files, **SPELLINGS[0])

    seen = bench.judge(
        *[built(f"node-{n}", "AA11\n") for n in "abc"], built("node-d", "B")
    )

    subject = "mlx5_core srcversion"
    assert seen.status("nic-driver-consistent", subject, "node-d") == "FAIL"
    assert seen.status("nic-driver-consistent", "", "node-d") == "PASS"


@pytest.mark.parametrize("text", ["driver: mlx5_core\nversion: 24.1", "driver: mlx5"])
def test_a_driver_that_is_cut_off_is_unknown(bench, text):
    nodes = [bench.doc(f"node-{n}", **SPELLINGS[0]) for n in "abc"]
    cut = bench.doc("node-d", cmds={"ethtool -i ens1f0np0": text})

    seen = bench.judge(*nodes, cut)

    assert seen.status("nic-driver-consistent", node="node-d") == "UNKNOWN"


NO_CONFIG = (
    "libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.\n"
    "No IB devices found\n"
)
NO_DRIVER = (
    "libibverbs: Warning: couldn't load driver 'mlx5': libmlx5-rdmav34.so: cannot open"
    " shared object file\n"
)
BYTEPS = (
    "libibverbs: Warning: couldn't load driver 'mlx4': /usr/lib/libmlx4.so.1: version"
    " `IBVERBS_PRIVATE_22' not found\n"
)
LISTED = "4 HCAs found:\n\tmlx5_0\n\tmlx5_1\n\tmlx5_2\n\tmlx5_3\n\n"


@pytest.mark.parametrize("rc", [0, 255])
@pytest.mark.parametrize("stderr", [NO_CONFIG, NO_DRIVER, NO_DRIVER + NO_CONFIG])
def test_f41_r44_r45_user_space_without_its_provider_fails(bench, rc, stderr):
    cmds = {"ibv_devinfo -l": (rc, "", stderr)}

    finding = bench.judge(bench.doc(cmds=cmds, files=devices())).one(
        "nic-userspace-provider"
    )

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_f41_a_provider_that_cannot_be_loaded_fails_by_itself(bench):
    cmds = {"ibv_devinfo -l": (0, "0 HCAs found:\n\n", NO_DRIVER)}

    assert bench.judge(bench.doc(cmds=cmds)).status("nic-userspace-provider") == "FAIL"


def test_r44_byteps_313_a_missing_provider_of_hardware_that_is_not_here_is_noise(bench):
    cmds = {"ibv_devinfo -l": (0, LISTED, BYTEPS)}

    seen = bench.judge(bench.doc(cmds=cmds, files=devices()))

    assert seen.status("nic-userspace-provider") == "PASS"


def test_fewer_devices_than_sysfs_fail(bench):
    text = "3 HCAs found:\n\tmlx5_0\n\tmlx5_1\n\tmlx5_2\n\n"

    seen = bench.judge(bench.doc(cmds={"ibv_devinfo -l": text}, files=devices()))

    finding = seen.one("nic-userspace-provider")
    assert finding.status == "FAIL"
    assert finding.observed == "libibverbs lists 3 of 4 devices"


@pytest.mark.parametrize("cut", [0, 5, 15, 30, len(LISTED) - 8])
def test_a_list_that_is_cut_off_is_unknown(bench, cut):
    cmds = {"ibv_devinfo -l": LISTED[:cut]}

    seen = bench.judge(bench.doc(cmds=cmds, files=devices()))

    assert seen.status("nic-userspace-provider") == "UNKNOWN"


def test_the_verbose_list_serves_as_well(bench):
    text = "".join(
        f"hca_id:\tmlx5_{n}\n\ttransport:\tInfiniBand (0)\n" for n in range(4)
    )

    seen = bench.judge(bench.doc(cmds={"ibv_devinfo -v": text}, files=devices()))

    assert seen.status("nic-userspace-provider") == "PASS"


def test_pyverbs_serves_where_the_tool_is_not_installed(bench):
    document = bench.doc(
        cmds={"ibv_devinfo -l": (127, "", "not found")}, files=devices(2)
    )

    without = bench.judge(document).status("nic-userspace-provider")
    document["verbs"] = {"mlx5_0": {"max_qp": 1}, "mlx5_1": {"max_qp": 1}}
    with_all = bench.judge(document).status("nic-userspace-provider")
    del document["verbs"]["mlx5_1"]
    with_one = bench.judge(document).status("nic-userspace-provider")

    assert (without, with_all, with_one) == ("UNKNOWN", "PASS", "FAIL")


def test_exchanges_that_were_tried_are_no_device(bench):
    files = devices(2)
    document = bench.doc(files=files, cmds={"ibv_devinfo -l": (127, "", "not found")})
    document["verbs"] = {"mlx5_0": {"max_qp": 1}, "probes": []}

    assert (
        "PASS" not in bench.judge(document).statuses("nic-userspace-provider").values()
    )

    document["verbs"] = {"probes": []}
    seen = bench.judge(document).statuses("nic-userspace-provider").values()
    assert set(seen) == {"UNKNOWN"}


def test_no_rdma_core_told_by_pyverbs_is_a_fact_and_no_pass(bench):
    document = bench.doc(
        cmds={"rdma -j link": (1, "", "Failed to open NETLINK_RDMA socket")}
    )
    document["verbs"] = {"error": "PyverbsRDMAError: Failed to get devices list"}

    seen = bench.judge(document)

    assert seen.status("nic-count") == "FAIL"
    assert seen.status("nic-userspace-provider") == "SKIP"
    assert seen.status("nic-uverbs-devnode") == "SKIP"


def nodes_of(count, **modes):
    """Device nodes and their classes, mode by number."""
    names = [f"uverbs{n}" for n in range(count)]
    found = {
        "/sys/class/infiniband_verbs": ("abi_version", *names),
        "/dev/infiniband": ("rdma_cm", *names),
    }
    for number, name in enumerate(names):
        found[f"/sys/class/infiniband_verbs/{name}/ibdev"] = f"mlx5_{number}\n"
        found[f"/dev/infiniband/{name}"] = {"mode": modes.get(name, "0666")}
    return found


def test_device_nodes_that_everybody_may_open_pass(bench):
    seen = bench.judge(bench.doc(files=devices(2) | nodes_of(2)))

    assert seen.statuses("nic-uverbs-devnode") == {"mlx5_0": "PASS", "mlx5_1": "PASS"}


def test_r83_one_missing_device_node_fails_and_is_named(bench):
    files = devices(2) | nodes_of(2)
    del files["/dev/infiniband/uverbs1"]
    files["/dev/infiniband"] = ("rdma_cm", "uverbs0")

    seen = bench.judge(bench.doc(files=files))

    assert seen.statuses("nic-uverbs-devnode") == {"mlx5_0": "PASS", "mlx5_1": "FAIL"}
    assert seen.one("nic-uverbs-devnode", "mlx5_1").severity == "critical"


@pytest.mark.parametrize("errno", ["ENOENT", "EPERM", "EACCES"])
def test_r83_a_device_node_that_cannot_be_opened_fails(bench, errno):
    files = devices(1) | nodes_of(1)
    files["/dev/infiniband/uverbs0"] = {"errno": errno}

    assert bench.judge(bench.doc(files=files)).status("nic-uverbs-devnode") == "FAIL"


def test_without_the_directory_no_device_can_be_opened(bench):
    files = devices(1) | {"/dev/infiniband": {"errno": "ENOENT"}}

    assert bench.judge(bench.doc(files=files)).status("nic-uverbs-devnode") == "FAIL"


def test_a_device_without_a_verbs_class_fails(bench):
    files = devices(1) | {"/sys/class/infiniband_verbs": {"errno": "ENOENT"}}

    assert bench.judge(bench.doc(files=files)).status("nic-uverbs-devnode") == "FAIL"


def test_device_nodes_that_nobody_looked_at_are_unknown(bench):
    assert bench.judge(bench.doc(files=devices(1))).status("nic-uverbs-devnode") == (
        "UNKNOWN"
    )


def test_a_node_whose_mode_is_not_told_is_unknown(bench):
    files = devices(1) | nodes_of(1)
    del files["/dev/infiniband/uverbs0"]

    assert bench.judge(bench.doc(files=files)).status("nic-uverbs-devnode") == "UNKNOWN"


def test_a_node_only_for_root_is_tolerable_where_all_services_are_of_root(bench):
    files = devices(1) | nodes_of(1, uverbs0="0600")

    alone = bench.judge(bench.doc(files=files)).status("nic-uverbs-devnode")
    files["/proc/4242/status"] = "Name:\tclient\nUid:\t0\t0\t0\t0\n"
    root = bench.judge(bench.doc(files=files)).status("nic-uverbs-devnode")
    files["/proc/4242/status"] = "Name:\tclient\nUid:\t1000\t1000\t1000\t1000\n"
    user = bench.judge(bench.doc(files=files)).status("nic-uverbs-devnode")

    assert (alone, root, user) == ("FAIL", "WARN", "FAIL")


def test_r85_nvsentinel_1716_no_issm_device_is_no_matter(bench):
    files = devices(1) | nodes_of(1)

    assert bench.judge(bench.doc(files=files)).status("nic-uverbs-devnode") == "PASS"
    assert not any("issm" in name for name in files["/dev/infiniband"])


def test_r87_spiderpool_4345_a_pod_that_finds_no_devices_fails(bench):
    line = "kubectl exec -n serving store-0 -- ibv_devinfo -l"
    cmds = {line: (255, "", "No IB devices found\n")}

    seen = bench.judge(bench.doc(cmds=cmds, files=devices(1) | nodes_of(1)))

    assert seen.status("nic-uverbs-devnode", "pod:serving/store-0") == "FAIL"
    assert seen.status("nic-uverbs-devnode", "mlx5_0") == "PASS"
    blocked = seen.one("nic-userspace-provider", "pod:serving/store-0")
    assert (blocked.status, blocked.blocked_by) == ("SKIP", ("nic-uverbs-devnode",))


MODULES = (
    "rdma_ucm 32768 0 - Live 0x0\nmlx5_ib 475136 0 - Live 0x0\n"
    "ib_uverbs 188416 2 rdma_ucm,mlx5_ib, Live 0x0\n"
)


def test_the_modules_that_open_devices_are_loaded(bench):
    files = devices(1) | {"/proc/modules": MODULES}

    assert bench.judge(bench.doc(files=files)).status("nic-modules") == "PASS"


def test_a_module_that_is_missing_fails(bench):
    text = MODULES.replace("rdma_ucm 32768 0 - Live 0x0\n", "").replace("rdma_ucm,", "")
    files = devices(1) | {"/proc/modules": text}

    finding = bench.judge(bench.doc(files=files)).one("nic-modules")

    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert finding.observed == "not loaded: rdma_ucm"


def test_a_module_built_into_the_kernel_is_known_by_its_device(bench):
    files = devices(1) | {
        "/proc/modules": "mlx5_core 2248704 0 - Live 0x0\n",
        "/dev/infiniband": ("rdma_cm", "uverbs0"),
    }

    assert bench.judge(bench.doc(files=files)).status("nic-modules") == "PASS"


def test_rdma_links_alone_count_as_devices(bench):
    rows = [{"ifname": "mlx5_0", "port": 1, "state": "ACTIVE"}]
    cmds = {"rdma -j link": json.dumps(rows), "ibv_devinfo -l": "0 HCAs found:\n\n"}

    assert bench.judge(bench.doc(cmds=cmds)).status("nic-userspace-provider") == "FAIL"


def test_a_missing_nic_does_not_hide_what_the_others_lack(bench):
    files = devices(2) | nodes_of(2)
    files["/dev/infiniband/uverbs1"] = {"errno": "EPERM"}

    seen = bench.judge(bench.doc(files=files), nics=("mlx5_0", "mlx5_1", "mlx5_2"))

    assert seen.status("nic-count") == "FAIL"
    assert seen.statuses("nic-uverbs-devnode") == {"mlx5_0": "PASS", "mlx5_1": "FAIL"}


def test_a_node_without_rdma_devices_is_asked_for_none(bench):
    files = {"/sys/class/infiniband": {"errno": "ENOENT"}, "/proc/modules": MODULES}
    cmds = {"ibv_devinfo -l": (255, "", "No IB devices found\n")}

    seen = bench.judge(bench.doc(cmds=cmds, files=files))

    assert seen.status("nic-count") == "FAIL"
    for checked in ("nic-userspace-provider", "nic-uverbs-devnode", "nic-modules"):
        assert seen.status(checked) == "SKIP"

"""Locked memory, capabilities, huge pages: fixtures and reports of the catalogue."""

from __future__ import annotations

import pytest

ROW = "Max locked memory         {0:<20} {0:<20} bytes     \n"
CAPS = "CapEff:\t{}\n"
WITHOUT, WITH = "00000000a80425fb", "00000000a80465fb"


def service(memlock="8388608", caps=WITHOUT, pid=4242, **variables):
    environ = "".join(f"{name}={value}\0" for name, value in variables.items())
    files = {
        f"/proc/{pid}/limits": ROW.format(memlock),
        f"/proc/{pid}/environ": environ,
    }
    if caps is not None:
        files[f"/proc/{pid}/status"] = CAPS.format(caps)
    return files


def two_nics():
    found = {}
    for at in (0, 1):
        base = f"/sys/class/infiniband/mlx5_{at}"
        found[f"{base}/device"] = {"link": f"../../../0000:{at}a:00.0"}
        found[f"{base}/ports/1/state"] = "4: ACTIVE\n"
        found[f"{base}/ports/1/phys_state"] = "5: LinkUp\n"
    return found


def memlock(bench, files, **more):
    return bench.judge(bench.doc(files=files), **more).one("mem-memlock")


def test_f51_r62_mooncake_1382_two_nics_need_twice_the_segment(bench):
    files = {**service(MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB"), **two_nics()}

    seen = bench.judge(bench.doc(files=files))

    finding = seen.one("mem-memlock")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert "128 GiB" in finding.expected
    follows = seen.one("mem-cap-ipc-lock")
    assert (follows.status, follows.blocked_by) == ("FAIL", ("mem-memlock",))


def test_f51_an_unlimited_memlock_passes(bench):
    files = {**service("unlimited", MOONCAKE_GLOBAL_SEGMENT_SIZE=str(64 << 30))}

    assert memlock(bench, {**files, **two_nics()}).status == "PASS"


def test_f51_a_small_limit_with_ipc_lock_passes(bench):
    files = {**service(caps=WITH, MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB"), **two_nics()}

    seen = bench.judge(bench.doc(files=files))

    assert seen.status("mem-memlock") == "PASS"
    assert seen.status("mem-cap-ipc-lock") == "PASS"


def test_f51_on_every_node_of_a_fleet_is_judged_node_by_node(bench):
    files = {**service(MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB"), **two_nics()}
    good = {**service("unlimited", MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB"), **two_nics()}
    nodes = [bench.doc(f"node-{n}", files=good) for n in "bcd"]

    seen = bench.judge(bench.doc(files=files), *nodes)

    assert seen.by_node("mem-memlock") == {
        "node-a": "FAIL",
        "node-b": "PASS",
        "node-c": "PASS",
        "node-d": "PASS",
    }


def test_r60_nccl_tests_206_eight_mebibytes_are_too_little_for_any_segment(bench):
    finding = memlock(bench, service())

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_r60_nccl_tests_206_what_ulimit_prints_is_in_kibibytes(bench):
    seen = bench.judge(bench.doc(cmds={"ulimit -l": "8192\n"}))

    assert seen.status("mem-memlock") == "FAIL"
    assert "8 MiB" in seen.one("mem-memlock").observed


def test_a_finite_limit_that_suffices_passes_and_wants_ipc_lock(bench):
    enough = str(130 << 30)
    files = {**service(enough, MOONCAKE_GLOBAL_SEGMENT_SIZE="64 GiB"), **two_nics()}

    seen = bench.judge(bench.doc(files=files))

    assert seen.status("mem-memlock") == "PASS"
    finding = seen.one("mem-cap-ipc-lock")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert finding.blocked_by == ()


def test_a_finite_limit_and_an_unknown_segment_is_unknown(bench):
    assert memlock(bench, {**service(str(64 << 30)), **two_nics()}).status == "UNKNOWN"


def test_a_segment_of_the_profile_wins(bench):
    files = {**service(str(3 << 30), MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB"), **two_nics()}
    profile = {"memory": {"segment_bytes": 1 << 30}}

    assert memlock(bench, files, profile=profile).status == "PASS"


@pytest.mark.parametrize("errno", ["EACCES", "EIO"])
def test_capabilities_that_may_not_be_read_are_no_verdict(bench, errno):
    files = service(MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB")
    files["/proc/4242/status"] = {"errno": errno}

    seen = bench.judge(bench.doc(files=files))

    assert seen.status("mem-memlock") == "UNKNOWN"
    assert seen.status("mem-cap-ipc-lock") == "UNKNOWN"


@pytest.mark.parametrize("cut", [10, 30, 47, 60, 68])
def test_a_row_that_is_cut_off_is_no_limit(bench, cut):
    files = service("unlimited", MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB")
    files["/proc/4242/limits"] = files["/proc/4242/limits"][:cut]

    assert memlock(bench, files).status == "UNKNOWN"


def test_a_mask_of_capabilities_that_is_cut_off_is_no_verdict(bench):
    files = service(MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB")
    files["/proc/4242/status"] = "CapEff:\t00000000a8046"

    assert memlock(bench, files).status == "UNKNOWN"


def test_limits_that_may_not_be_read_are_no_verdict(bench):
    files = {"/proc/4242/limits": {"errno": "EACCES"}}

    assert memlock(bench, files).status == "UNKNOWN"


def test_the_master_registers_nothing(bench):
    files = {**service(), "/proc/4242/cmdline": "/usr/bin/mooncake_master\0"}

    assert memlock(bench, files).status == "UNKNOWN"


def numa_balancing(bench, entry, **more):
    path = "/proc/sys/kernel/numa_balancing"
    document = bench.doc(files={path: entry})
    return bench.judge(document, **more).status("mem-numa-balancing")


def test_r65_deepep_624_numa_balancing_warns(bench):
    assert numa_balancing(bench, "1\n") == "WARN"
    document = bench.doc(cmds={"sysctl kernel.numa_balancing": (0, SYSCTL, "")})
    assert bench.judge(document).status("mem-numa-balancing") == "WARN"


SYSCTL = "kernel.numa_balancing = 1\n"


def test_numa_balancing_that_the_kernel_lacks_is_fine(bench):
    assert numa_balancing(bench, {"errno": "ENOENT"}) == "PASS"
    assert numa_balancing(bench, {"errno": "EACCES"}) == "UNKNOWN"
    assert numa_balancing(bench, "") == "UNKNOWN"


def test_numa_balancing_may_be_what_the_profile_wants(bench):
    profile = {"expect": {"mem-numa-balancing": ["1"]}}

    assert numa_balancing(bench, "1\n", profile=profile) == "PASS"
    assert numa_balancing(bench, "0\n", profile=profile) == "WARN"


def align(bench, size, **variables):
    files = bench.env(MOONCAKE_GLOBAL_SEGMENT_SIZE=size, **variables)
    files["/proc/sys/vm/nr_hugepages"] = variables.get("pages", "0\n")
    return bench.judge(bench.doc(files=files)).status("mem-hugepage-align")


def test_r64_mooncake_3845_a_segment_that_ends_inside_a_huge_page_warns(bench):
    assert align(bench, "3779571220", MC_STORE_USE_HUGEPAGE="1") == "WARN"
    assert align(bench, "3781165056", MC_STORE_USE_HUGEPAGE="1") == "PASS"


def test_alignment_does_not_matter_without_huge_pages(bench):
    assert align(bench, "3779571220") == "SKIP"
    assert align(bench, "3779571220", MC_STORE_USE_HUGEPAGE="0") == "SKIP"


def test_a_huge_page_of_one_gibibyte_wants_whole_gibibytes(bench):
    sizes = {"MC_STORE_USE_HUGEPAGE": "1", "MC_STORE_HUGEPAGE_SIZE": "1GB"}

    assert align(bench, "3GB", **sizes) == "PASS"
    assert align(bench, "3.5GB", **sizes) == "WARN"


def test_a_size_that_is_none_is_no_verdict(bench):
    assert align(bench, "much", MC_STORE_USE_HUGEPAGE="1") == "UNKNOWN"


def hugepages(bench, mems, node0, node1):
    base = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/free_hugepages"
    files = {
        **bench.env(MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB", MC_STORE_USE_HUGEPAGE="1"),
        "/proc/4242/status": f"Mems_allowed_list:\t{mems}\n",
        base.format(0): f"{node0}\n",
        base.format(1): f"{node1}\n",
    }
    return bench.judge(bench.doc(files=files)).one("mem-hugepages")


def test_free_pages_of_the_other_socket_do_not_help_a_pinned_store(bench):
    finding = hugepages(bench, "0", 100, 100000)

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert hugepages(bench, "1", 100, 100000).status == "PASS"
    assert hugepages(bench, "0-1", 20000, 20000).status == "PASS"


def test_free_pages_that_nobody_read_are_no_verdict(bench):
    files = {
        **bench.env(MOONCAKE_GLOBAL_SEGMENT_SIZE="64GB", MC_STORE_USE_HUGEPAGE="1"),
        "/proc/4242/status": "Mems_allowed_list:\t0\n",
    }

    assert bench.judge(bench.doc(files=files)).status("mem-hugepages") == "UNKNOWN"

"""GPUDirect, from the catalogue's fixtures and reports."""

from __future__ import annotations

import pytest

MODULES = (
    "nvidia 54349824 221 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000\n"
    "mlx5_core 2248704 1 mlx5_ib, Live 0x0000000000000000\n"
    "ib_core 458752 8 rdma_ucm,rpcrdma,mlx5_ib,ib_uverbs, Live 0x0000000000000000\n"
)
PEERMEM = "nvidia_peermem 16384 0 - Live 0x0000000000000000\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"


def with_peermem(users="nvidia_peermem,"):
    return PEERMEM + MODULES.replace("ib_core 458752 8 ", f"ib_core 458752 9 {users}")


def gpu(modules=MODULES, version=OPEN):
    return {"/proc/modules": modules, "/proc/driver/nvidia/version": version}


def kernel(release="6.8.0-60-generic"):
    return {"uname -r": f"{release}\n"}


def test_f31_r41_mooncake_351_gpu_memory_without_peermem_fails(bench):
    finding = bench.judge(bench.doc(files=gpu())).one("gdr-peermem-loaded")

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_f31_also_where_the_service_does_not_say(bench):
    files = gpu() | bench.env(MC_GID_INDEX="3")

    assert bench.judge(bench.doc(files=files)).status("gdr-peermem-loaded") == "FAIL"


@pytest.mark.parametrize("word", ["0", "false", "OFF"])
def test_f31_dma_buf_instead_passes_on_an_open_module_and_a_new_kernel(bench, word):
    files = gpu() | bench.env(WITH_NVIDIA_PEERMEM=word)

    seen = bench.judge(bench.doc(cmds=kernel(), files=files))

    assert seen.status("gdr-peermem-loaded") == "PASS"
    assert seen.status("gdr-dmabuf-capable") == "PASS"


def test_a_module_that_is_live_and_used_passes(bench):
    files = gpu(with_peermem())

    assert bench.judge(bench.doc(files=files)).status("gdr-peermem-loaded") == "PASS"


def test_a_module_that_did_not_register_with_ib_core_fails(bench):
    files = gpu(with_peermem(users=""))

    assert bench.judge(bench.doc(files=files)).status("gdr-peermem-loaded") == "FAIL"


def test_a_module_that_is_still_loading_fails(bench):
    files = gpu(with_peermem().replace("0 - Live", "0 - Loading", 1))

    assert bench.judge(bench.doc(files=files)).status("gdr-peermem-loaded") == "FAIL"


def test_an_environment_that_may_not_be_read_leaves_it_open(bench):
    files = gpu() | {
        "/proc/4242/environ": {"errno": "EACCES"},
        "/proc/4242/cmdline": "/usr/bin/mooncake_client\0",
    }

    assert bench.judge(bench.doc(files=files)).status("gdr-peermem-loaded") == "UNKNOWN"


@pytest.mark.parametrize("checked", ["gdr-peermem-loaded", "gdr-dmabuf-capable"])
def test_a_node_without_gpus_is_not_asked(bench, checked):
    files = {"/proc/modules": "mlx5_core 2248704 0 - Live 0x0\n"}

    assert bench.judge(bench.doc(files=files)).status(checked) == "SKIP"


@pytest.mark.parametrize("checked", ["gdr-peermem-loaded", "gdr-dmabuf-capable"])
def test_modules_that_nobody_read_are_unknown(bench, checked):
    assert bench.judge(bench.doc(cmds=kernel())).status(checked) == "UNKNOWN"


def test_modules_cut_off_in_the_middle_of_a_line_are_unknown(bench):
    files = gpu(MODULES[: MODULES.find("ib_core") + 20])

    assert bench.judge(bench.doc(files=files)).status("gdr-peermem-loaded") == "UNKNOWN"


@pytest.mark.parametrize(
    ("release", "version"),
    [("5.4.0-42-generic", OPEN), ("6.8.0-60-generic", CLOSED)],
)
def test_r42_mooncake_3538_dma_buf_that_is_chosen_and_not_supported_fails(
    bench, release, version
):
    files = gpu(version=version) | bench.env(WITH_NVIDIA_PEERMEM="0")

    finding = bench.judge(bench.doc(cmds=kernel(release), files=files)).one(
        "gdr-dmabuf-capable"
    )

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_dma_buf_that_nobody_chose_need_not_work(bench):
    files = gpu(with_peermem(), CLOSED)

    assert bench.judge(bench.doc(cmds=kernel(), files=files)).status(
        "gdr-dmabuf-capable"
    ) == ("SKIP")


def test_the_profile_may_choose_for_the_service(bench):
    seen = bench.judge(bench.doc(files=gpu()), profile={"nic": {"peermem": False}})

    assert seen.status("gdr-peermem-loaded") == "PASS"


F32 = (
    "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
    "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)",
)


@pytest.mark.parametrize("lines", [F32, F32[:1], F32[1:]])
def test_f32_r43_gpu_operator_2868_another_rdma_stack_than_the_gpu_driver_fails(
    bench, lines
):
    text = "".join(f"[   12.000001] {line}\n" for line in lines)

    finding = bench.judge(bench.doc(cmds={"dmesg": text})).one("gdr-peermem-symver")

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_f32_explains_why_the_module_is_not_loaded(bench):
    text = "".join(f"[   12.000001] {line}\n" for line in F32)

    seen = bench.judge(bench.doc(cmds={"dmesg": text}, files=gpu()))

    assert seen.one("gdr-peermem-loaded").status == "FAIL"
    assert seen.one("gdr-peermem-loaded").blocked_by == ("gdr-peermem-symver",)
    assert "gdr-peermem-symver" in {f.id for f in seen.report.roots}


def test_a_complaint_before_the_module_was_loaded_is_over(bench):
    text = f"[   12.000001] {F32[0]}\n"
    document = bench.doc(cmds={"dmesg": text}, files=gpu(with_peermem()))

    assert bench.judge(document).status("gdr-peermem-symver") == "PASS"


def test_a_log_that_may_not_be_read_is_unknown(bench):
    denied = (1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")

    seen = bench.judge(bench.doc(cmds={"dmesg -J": denied}, files=gpu()))

    assert seen.status("gdr-peermem-symver") == "UNKNOWN"
    assert seen.status("gdr-peermem-errors") == "UNKNOWN"


@pytest.mark.parametrize(("count", "verdict"), [(1, "PASS"), (2, "WARN")])
def test_invalid_contexts_that_repeat_warn(bench, count, verdict):
    line = "[ 99.5] nv_get_p2p_free_callback:127 ERROR detected invalid context\n"

    document = bench.doc(cmds={"dmesg": line * count})

    assert bench.judge(document).status("gdr-peermem-errors") == verdict

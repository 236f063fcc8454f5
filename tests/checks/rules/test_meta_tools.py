"""Tools and privilege of the collector."""

from __future__ import annotations

GONE = (127, "", "not found")


def test_a_tool_that_is_not_installed_warns_with_what_depends_on_it(bench):
    cmds = {"rdma -j link": "[]", "ethtool -i ens1f0np0": GONE}

    finding = bench.judge(bench.doc(cmds=cmds)).one("meta-tools")

    assert (finding.status, finding.severity) == ("WARN", "warning")
    assert "ethtool (nic-autoneg-pause" in finding.observed


def test_a_tool_that_sudo_does_not_find_is_not_installed(bench):
    cmds = {
        "rdma -j link": "[]",
        "sudo -n ovs-vsctl list Interface": (
            1,
            "",
            "sudo: ovs-vsctl: command not found",
        ),
    }

    assert bench.judge(bench.doc(cmds=cmds)).status("meta-tools") == "WARN"


def test_one_of_two_tools_that_tell_the_same_is_enough(bench):
    cmds = {"dcb -j pfc show dev a": GONE, "mlnx_qos -i a": "DCBX mode: OS\n"}

    assert bench.judge(bench.doc(cmds=cmds)).status("meta-tools") == "PASS"


def test_an_optional_tool_is_only_mentioned(bench):
    cmds = {"rdma -j link": "[]", "ofed_info -s": GONE}

    finding = bench.judge(bench.doc(cmds=cmds)).one("meta-tools")

    assert finding.status == "PASS"
    assert "optional and absent: ofed_info" in finding.observed


def test_without_any_command_nothing_is_said_of_tools(bench):
    assert bench.judge(bench.doc()).status("meta-tools") == "UNKNOWN"


def test_without_root_the_collection_is_insufficient(bench):
    document = bench.doc(cmds={"rdma -j link": "[]"}, collector={"euid": 1000})

    assert bench.judge(document).status("meta-privilege") == "WARN"


def test_what_was_denied_is_listed(bench):
    cmds = {
        "dmesg -J": (
            1,
            "",
            "dmesg: read kernel buffer failed: Operation not permitted",
        ),
        "lspci -Dvvv -s 0000:17:00.0": "17:00.0 PCI bridge\n"
        "\tCapabilities: <access denied>\n",
    }
    files = {"/proc/4242/environ": {"errno": "EACCES"}}
    document = bench.doc(cmds=cmds, files=files, collector={"euid": 1000})

    finding = bench.judge(document).one("meta-privilege")

    assert finding.status == "WARN"
    for each in (*cmds, *files):
        assert each in finding.observed
        assert each in finding.source


def test_root_without_capabilities_is_not_privileged(bench):
    told = "dmesg: read kernel buffer failed: Operation not permitted"
    document = bench.doc(
        cmds={"dmesg -J": (1, "", told)}, files={"/proc/cmdline": "ro\n"}
    )

    assert bench.judge(document).status("meta-privilege") == "WARN"


def test_root_passes_and_files_that_can_only_be_written_are_no_matter(bench):
    files = {
        "/proc/cmdline": "ro\n",
        "/sys/module/ib_core/parameters/x": {"errno": "EACCES"},
    }

    assert bench.judge(bench.doc(files=files)).status("meta-privilege") == "PASS"


def test_a_collector_that_does_not_tell_who_it_was_is_unknown(bench):
    document = bench.doc(files={"/proc/cmdline": "ro\n"})
    del document["collector"]["euid"]

    assert bench.judge(document).status("meta-privilege") == "UNKNOWN"


def test_where_nothing_was_read_privilege_is_unknown(bench):
    assert bench.judge(bench.doc()).status("meta-privilege") == "UNKNOWN"

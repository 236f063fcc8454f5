"""The SSD tier: mounted as on like nodes, wherever containers mount it again."""

from __future__ import annotations

import pytest

CHECK = "disk-ssd-present"
ROOT = "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n"
PAGES = "/dev/nvme1n1 /srv/pages xfs rw,noatime 0 0\n"
POD = "/dev/nvme1n1 /var/lib/kubelet/pods/{}/volumes/a xfs ro 0 0\n"


def judged(bench, *texts):
    nodes = [
        bench.doc(f"node-{at}", files={"/proc/mounts": text})
        for at, text in enumerate(texts)
    ]
    return bench.judge(*nodes, only=CHECK)


def test_like_nodes_pass_whatever_their_pods_mount_and_devices_are_called(bench):
    renamed = (ROOT + PAGES).replace("nvme1", "nvmeX").replace("nvme0", "nvme1")
    texts = [ROOT + PAGES + POD.format(at) for at in range(3)]

    seen = judged(bench, *texts, renamed.replace("nvmeX", "nvme0"))

    assert set(seen.by_node(CHECK).values()) == {"PASS"}


@pytest.mark.parametrize(
    "odd",
    [ROOT, ROOT + PAGES.replace("rw,", "ro,"), ROOT + PAGES.replace("xfs", "ext4")],
    ids=["not mounted", "read-only", "another file system"],
)
def test_a_node_that_differs_from_three_others_fails(bench, odd):
    seen = judged(bench, *[ROOT + PAGES] * 3, odd)

    assert seen.by_node(CHECK) == {
        "node-0": "PASS",
        "node-1": "PASS",
        "node-2": "PASS",
        "node-3": "FAIL",
    }


def test_the_profile_decides_before_the_peers(bench):
    node = bench.doc(files={"/proc/mounts": ROOT})
    wanted = {"expect": {CHECK: ["/ ext4 rw, /srv/pages xfs rw"]}}

    finding = bench.judge(node, only=CHECK, profile=wanted).one(CHECK)

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.observed == "/ ext4 rw"


@pytest.mark.parametrize(
    "text", [(ROOT + PAGES)[:-1], ROOT + "/dev/nvme1n1 /srv\n", ""]
)
def test_a_list_that_is_cut_off_is_unknown(bench, text):
    seen = judged(bench, *[ROOT + PAGES] * 3, text)

    assert seen.by_node(CHECK)["node-3"] == "UNKNOWN"


def test_a_node_that_was_not_read_is_unknown(bench):
    node = bench.doc("node-9")

    assert bench.judge(node, only=CHECK).status(CHECK) == "UNKNOWN"

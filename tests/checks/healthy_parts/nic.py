"""Single faults of the five NIC checks of `rules/nic.py`; what they read is in core."""

import json
import re


def _sysfs(device, leaf, text):
    def change(document, plan):
        document["files"][f"/sys/class/infiniband/{device}/{leaf}"] = {"text": text}

    return change


def _gone(document, plan):
    """The last NIC fell off the bus."""
    rail = plan.rails[-1]
    for path in list(document["files"]):
        if f"/{rail.device}/" in path or path.endswith(f"/{rail.device}"):
            del document["files"][path]
    document["files"]["/sys/class/infiniband"]["entries"].remove(rail.device)
    entry = document["cmds"]["rdma -j -d link"]
    kept = [row for row in json.loads(entry["stdout"]) if row["ifname"] != rail.device]
    entry["stdout"] = json.dumps(kept)


def _polling(document, plan):
    base = "/sys/class/infiniband/mlx5_2/ports/1"
    document["files"][f"{base}/state"] = {"text": "1: DOWN\n"}
    document["files"][f"{base}/phys_state"] = {"text": "2: Polling\n"}


def _renamed(document, plan):
    """udev gave the last NIC another name: same slot, same rail."""
    files = document["files"]
    for path in list(files):
        if "/infiniband/mlx5_7" in path:
            files[path.replace("mlx5_7", "mlx5_17")] = files.pop(path)
    names = files["/sys/class/infiniband"]["entries"]
    names[names.index("mlx5_7")] = "mlx5_17"
    for path, entry in files.items():
        if path.endswith("/ibdev") and entry["text"] == "mlx5_7\n":
            files[path] = {"text": "mlx5_17\n"}
    for line, entry in document["cmds"].items():
        if line.startswith(("rdma -j -d link", "rdma -j -d dev", "ibv_")):
            entry["stdout"] = re.sub(r"\bmlx5_7\b", "mlx5_17", entry["stdout"])


MUTANTS = [
    {"check": "nic-count", "change": _gone},
    {
        "check": "nic-link-type",
        "subject": "mlx5_5",
        "change": _sysfs("mlx5_5", "ports/1/link_layer", "InfiniBand\n"),
    },
    {"check": "nic-port-state", "subject": "mlx5_2", "change": _polling},
    {
        "check": "nic-fw-consistent",
        "subject": "mlx5_3",
        "change": _sysfs("mlx5_3", "fw_ver", "28.39.1002\n"),
    },
    {"check": "nic-naming", "subject": "rail7", "change": _renamed},
]

from __future__ import annotations

from chaos.systems.mooncake.expired import Expired

LINE = (
    "I1130 02:44:13.713963 17854 master_service.cpp:11119] client_id=1-2, "
    "segment_name={}:13308, action=unmount_expired_mem_segment\n"
)
OTHER = "I1130 02:44:13.713753 17854 master_service.cpp:11036] client_id=1-2, x\n"
STORES = {"127.9.9.10": "store-0", "127.9.9.11": "store-1"}


def expired(tmp_path, *masters):
    logs = {name: tmp_path / f"{name}.err" for name in masters or ("master",)}
    return Expired(logs, lambda name: STORES[name.partition(":")[0]])


def append(tmp_path, text, master="master"):
    with (tmp_path / f"{master}.err").open("a") as log:
        log.write(text)


def test_a_master_that_has_said_nothing_dropped_nobody(tmp_path):
    assert expired(tmp_path).counts() == {}


def test_every_drop_is_counted_once(tmp_path):
    seen = expired(tmp_path)
    append(tmp_path, OTHER + LINE.format("127.9.9.10"))

    assert seen.counts() == {"store-0": 1}
    append(tmp_path, LINE.format("127.9.9.11") + LINE.format("127.9.9.10"))
    assert seen.counts() == {"store-0": 2, "store-1": 1}
    assert seen.counts() == {"store-0": 2, "store-1": 1}


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path):
    seen, line = expired(tmp_path), LINE.format("127.9.9.10")
    append(tmp_path, line[:90])

    assert seen.counts() == {}
    append(tmp_path, line[90:])
    assert seen.counts() == {"store-0": 1}


def test_all_masters_are_heard(tmp_path):
    seen = expired(tmp_path, "master", "master-1")
    append(tmp_path, LINE.format("127.9.9.10"))
    append(tmp_path, LINE.format("127.9.9.10"), "master-1")

    assert seen.counts() == {"store-0": 2}

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.safety.locks import (
    DomainBusy,
    lease_block,
    lock_domain,
    remove_stale_locks,
)

_HOLD = """
import sys
from pathlib import Path
from chaos.safety.locks import lock_domain
lock = lock_domain("rack-1", directory=Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_run(tmp_path):
    """A second process that holds the lock of rack-1 until its input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.stdin.close()
    process.stdout.close()
    process.kill()
    process.wait()


def test_the_second_run_on_a_domain_is_refused_and_told_who_the_first_is(
    other_run, tmp_path
) -> None:
    with pytest.raises(DomainBusy) as refused:
        lock_domain("rack-1", directory=tmp_path)

    assert f'"pid": {other_run.pid}' in str(refused.value)
    assert refused.value.domain == "rack-1"


def test_a_lock_ends_with_its_holder(other_run, tmp_path) -> None:
    other_run.kill()
    other_run.wait()

    lock_domain("rack-1", directory=tmp_path).release()


def test_a_released_lock_leaves_no_file(tmp_path) -> None:
    lock = lock_domain("rack-1", directory=tmp_path)
    lock.release()
    lock.release()

    assert list(tmp_path.iterdir()) == []


def test_another_domain_is_free(other_run, tmp_path) -> None:
    lock_domain("rack-2", directory=tmp_path).release()


def test_a_lock_whose_file_was_removed_by_its_holder_is_taken_anew(
    tmp_path, monkeypatch
) -> None:
    first = lock_domain("rack-1", directory=tmp_path)
    real_open = os.open
    opened: list[int] = []

    def open_then_release(path, *args, **kwargs):
        descriptor = real_open(path, *args, **kwargs)
        if not opened:
            first.release()
        opened.append(descriptor)
        return descriptor

    monkeypatch.setattr(os, "open", open_then_release)
    lock = lock_domain("rack-1", directory=tmp_path)

    assert Path(lock.path).exists()
    assert len(opened) == 2
    lock.release()


def test_two_leases_never_share_a_block(tmp_path) -> None:
    first = lease_block(directory=tmp_path)
    second = lease_block(directory=tmp_path)

    assert first.prefix != second.prefix
    first.lock.release()
    second.lock.release()


def test_a_pinned_block_in_use_is_refused(tmp_path) -> None:
    block = lease_block(directory=tmp_path, pinned=4007)

    with pytest.raises(DomainBusy):
        lease_block(directory=tmp_path, pinned=4007)
    block.lock.release()


def test_when_every_block_is_leased_the_next_run_is_refused(tmp_path) -> None:
    locks = [lock_domain(f"local-{index}", directory=tmp_path) for index in range(3)]

    with pytest.raises(DomainBusy, match="3 runs"):
        lease_block(directory=tmp_path, blocks=3)
    for lock in locks:
        lock.release()


def test_addresses_of_a_block_are_loopback_and_bounded(tmp_path) -> None:
    block = lease_block(directory=tmp_path, pinned=4002)

    assert block.address(9) == "127.79.162.9"
    with pytest.raises(ValueError, match=r"1\.\.254"):
        block.address(255)
    block.lock.release()


def test_only_locks_that_nobody_holds_are_stale(other_run, tmp_path) -> None:
    stale = tmp_path / "domain-rack-9.lock"
    stale.write_text("left by a crash")

    removed = remove_stale_locks(tmp_path)

    assert removed == [stale]
    assert (tmp_path / "domain-rack-1.lock").exists()


def test_runs_with_other_state_directories_do_not_meet_either(tmp_path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    first = lease_block(directory=mine, blocks=50)
    second = lease_block(directory=theirs, blocks=50)

    assert first.index != second.index
    with pytest.raises(DomainBusy, match="listens on"):
        lease_block(directory=theirs, pinned=first.index)
    first.lock.release()
    second.lock.release()

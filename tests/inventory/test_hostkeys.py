"""What counts as a line about a host; connections are in `test_dial`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paramiko
import pytest

from inventory import HostEntry, SshError
from inventory.hostkeys import known_keys, known_name

if TYPE_CHECKING:
    from pathlib import Path

KEY = paramiko.ECDSAKey.generate()
TEXT = f"{KEY.get_name()} {KEY.get_base64()}"


def entry(file: Path, *, port: int = 22) -> HostEntry:
    return HostEntry(name="n", address="a.example", port=port, known_hosts=file)


def trusted(file: Path, line: str, *, port: int = 22) -> bool:
    file.write_text(f"garbage\n\n|1|bad|worse {TEXT}\n{line}\n")
    try:
        known_keys(entry(file, port=port)).check(KEY)
    except SshError:
        return False
    return True


@pytest.mark.parametrize(
    ("names", "port", "expected"),
    [
        ("a.example", 22, True),
        ("A.Example,10.0.0.1", 22, True),
        ("*.example", 22, True),
        ("*,!a.example", 22, False),
        ("b.example", 22, False),
        ("a.example", 2222, False),
        ("[a.example]:2222", 2222, True),
        ("[*.example]:2222", 2222, True),
        ("@cert-authority a.example", 22, False),
    ],
)
def test_names_mean_what_they_mean_to_ssh(
    names: str, port: int, expected: bool, tmp_path: Path
) -> None:
    assert trusted(tmp_path / "known", f"{names} {TEXT}", port=port) is expected


def test_a_host_may_have_several_keys_of_one_type(tmp_path: Path) -> None:
    other = paramiko.ECDSAKey.generate()
    lines = f"a.example {other.get_name()} {other.get_base64()}\na.example {TEXT}"

    assert trusted(tmp_path / "known", lines)


def test_the_types_we_know_are_asked_for_first(tmp_path: Path) -> None:
    file = tmp_path / "known"
    file.write_text("a.example ssh-rsa AAAA\n")
    offered = ("ssh-ed25519", "rsa-sha2-512", "ecdsa-sha2-nistp256")

    assert known_keys(entry(file)).preferred(offered)[0] == "rsa-sha2-512"


def test_the_port_is_part_of_the_name_unless_it_is_the_usual_one(
    tmp_path: Path,
) -> None:
    assert known_name(entry(tmp_path)) == "a.example"
    assert known_name(entry(tmp_path, port=2222)) == "[a.example]:2222"

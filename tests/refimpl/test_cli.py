"""The command line: help, hints, exit codes, and how little a start imports."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import dataclass

import pytest

from refimpl import cli
from refimpl.errors import PortTaken
from refimpl.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    name: str = setting("toy-0", "name of the toy")
    size_bytes: int = setting(1 << 20, "bytes")
    rail: tuple[str, ...] = setting((), "rails", repeatable=True)
    hugepages: bool = setting(False, "huge pages, 100% of them")
    grace_s: float = setting(5.0, "grace in seconds", scales=True)


@pytest.fixture
def toy(monkeypatch):
    """A role whose `run` is replaced at will; keeps the settings that it got."""
    module = types.ModuleType("toy_role")
    module.got = None
    module.answer = 0

    def run(settings):
        module.got = settings
        if isinstance(module.answer, Exception):
            raise module.answer
        return module.answer

    module.run = run
    module.Settings = _Settings
    monkeypatch.setitem(sys.modules, "toy_role", module)
    command = cli.Command(
        about="run a toy",
        settings="toy_role:Settings",
        module="toy_role",
        examples=("refimpl toy", "refimpl toy --name a"),
    )
    monkeypatch.setattr(cli, "COMMANDS", {"toy": command})
    return module


def test_flags_reach_the_role(toy):
    args = [
        "toy",
        "--name",
        "a",
        "--size-bytes",
        "2MiB",
        "--rail",
        "x=1",
        "--rail",
        "y=2",
        "--hugepages",
    ]

    assert cli.main(args) == 0
    assert toy.got == _Settings(
        name="a", size_bytes=2 << 20, rail=("x=1", "y=2"), hugepages=True
    )


def test_a_bool_flag_may_say_false(toy):
    cli.main(["toy", "--hugepages", "false"])

    assert toy.got.hugepages is False


def test_the_file_and_the_environment_reach_the_role(toy, tmp_path, monkeypatch):
    path = tmp_path / "c.toml"
    path.write_text("name = 'from file'\ngrace_s = 2")
    monkeypatch.setenv("REFIMPL_NAME", "from environment")
    cli.main(["toy", "--config", str(path)])

    assert (toy.got.name, toy.got.grace_s) == ("from environment", 2.0)


def test_the_file_may_come_from_the_environment(toy, tmp_path, monkeypatch):
    path = tmp_path / "c.toml"
    path.write_text("name = 'from file'\nstores = 8")
    monkeypatch.setenv("REFIMPL_CONFIG", str(path))
    cli.main(["toy"])

    assert toy.got.name == "from file"


def test_the_exit_code_is_the_roles(toy):
    toy.answer = 3

    assert cli.main(["toy"]) == 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["toy", "--size-bytes", "big"], "flag --size-bytes: 'big'"),
        (["toy", "--nmae", "x"], "unrecognized arguments: --nmae"),
        (["toy", "--name"], "expected one argument"),
        (["toy", "--na", "x"], "unrecognized"),
        (["play"], "invalid choice: 'play'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(toy, capsys, args, said):
    assert cli.main(args) == 2

    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_taken_port_is_one_line_and_exit_2(toy, capsys):
    toy.answer = PortTaken(what="rpc", address="127.0.0.1:5", reason="EADDRINUSE")

    assert cli.main(["toy"]) == 2
    assert "refimpl toy: cannot listen on 127.0.0.1:5" in capsys.readouterr().err


def test_a_breakdown_is_one_line_and_exit_1_and_debug_raises(toy, capsys):
    toy.answer = RuntimeError("two\nlines")

    assert cli.main(["toy"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(RuntimeError):
        cli.main(["toy", "--debug"])


def test_help_ends_with_examples_and_exit_codes(toy, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["toy", "--help"])
    text = capsys.readouterr().out

    assert ended.value.code == 0
    assert text.index("examples:") < text.index("exit codes:")
    assert "--grace-s" in text
    assert "times the time scale" in text
    assert "100% of them" in text


def test_the_command_line_itself_imports_nothing_heavy():
    code = (
        "import sys, refimpl.cli\n"
        "heavy = {'numpy', 'grpc', 'rich', 'prometheus_client', 'http.server'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"

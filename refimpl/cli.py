"""The command `refimpl`: runs one role, or a small cluster of them.

The options of a role are the settings of its dataclass, so argparse builds them from
data; it also starts in a tenth of the time of richer libraries, and a role imports
nothing that it does not use: a cluster of a dozen processes starts on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import MISSING, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from refimpl.errors import RefimplError, UsageError
from refimpl.settings import Option, load, options_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG_ENVIRONMENT: Final = "REFIMPL_CONFIG"
_LINE_MOST: Final = 2000
"""Characters of a complaint."""
EXIT_CODES: Final = """\
exit codes:
  0  ended orderly (SIGTERM, Ctrl-C)
  1  the role broke down
  2  usage: a bad setting, or a port that is taken
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One sub-command: where its settings and its `run` live, imported when used."""

    about: str
    settings: str
    module: str
    examples: tuple[str, str]


COMMANDS: Final[Mapping[str, Command]] = {
    "up": Command(
        about="run a whole cluster on this machine, with live status, until Ctrl-C",
        settings="refimpl.cluster:UpSettings",
        module="refimpl.cluster",
        examples=(
            "refimpl up --stores 4 --engines 2",
            "refimpl up --stores 8 --time-scale 0.1 --load 5",
        ),
    ),
    "master": Command(
        about="run the master: who holds which page",
        settings="refimpl.master.settings:MasterSettings",
        module="refimpl.master",
        examples=(
            "refimpl master --listen 127.0.0.1:50051",
            "REFIMPL_TIME_SCALE=0.1 refimpl master --config cluster.toml",
        ),
    ),
    "store": Command(
        about="run a store: contribute memory to the pool and serve it",
        settings="refimpl.store.settings:StoreSettings",
        module="refimpl.store",
        examples=(
            "refimpl store --name store-0 --master 127.0.0.1:50051",
            "refimpl store --name store-1 --rail a=127.0.0.2:0 --rail b=127.0.0.3:0",
        ),
    ),
    "engine": Command(
        about="run an engine: a timed model of prefill over a real HiCache",
        settings="refimpl.engine.settings:EngineSettings",
        module="refimpl.engine",
        examples=(
            "refimpl engine --name engine-0 --master 127.0.0.1:50051",
            "refimpl engine --policy wait_complete --prefill-tokens-per-s 8000",
        ),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    command = args[0] if args and args[0] in COMMANDS else ""
    try:
        return _run_command(command, args[1:]) if command else _run_top(args)
    except RefimplError as error:
        if debug:
            raise
        return _complain(command, str(error), error.exit_code)
    except Exception as error:
        if debug:
            raise
        what = f"{type(error).__name__}: {error} (--debug shows the traceback)"
        return _complain(command, what, 1)


def _complain(command: str, text: str, code: int) -> int:
    """One line, whatever was in the values that it repeats."""
    name = f"refimpl {command}".rstrip()
    line = " ".join(text.split())[:_LINE_MOST]
    plain = "".join(letter if letter.isprintable() else "?" for letter in line)
    sys.stderr.write(f"{name}: {plain}\n")
    return code


def _run_top(args: list[str]) -> int:
    """No known command: help, or a hint."""
    parser = _Parser(
        prog="refimpl",
        description="The reference system: a pooled KV cache of real processes.",
        epilog=_epilog(("refimpl up --stores 4 --engines 2", "refimpl store --help")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        rows.add_parser(name, help=command.about)
    parser.parse_args(args or ["--help"])
    return 2


def _run_command(name: str, args: list[str]) -> int:
    command = COMMANDS[name]
    cls = _resolve(command.settings)
    given = vars(_parser(name, command, options_of(cls)).parse_args(args))
    own = given.pop("config", None)
    config = own or os.environ.get(CONFIG_ENVIRONMENT)
    given.pop("debug", None)
    if (parent := given.pop("die_with_parent", None)) is not None:
        from refimpl.role import die_with_parent

        die_with_parent(parent)
    if config and name == "up":  # its roles read their own sections
        os.environ[CONFIG_ENVIRONMENT] = str(Path(config).resolve())
    settings = load(
        cls,
        name,
        flags=given,
        environ=os.environ,
        config=Path(config) if config else None,
        shared=own is None,
    )
    return int(import_module(command.module).run(settings))


def _resolve(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as a UsageError."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the whole usage."""
        raise UsageError(f"{message}; see {self.prog} --help")


def _parser(name: str, command: Command, options: list[Option]) -> _Parser:
    """Every flag is read as text, so that all sources share one conversion."""
    parser = _Parser(
        prog=f"refimpl {name}",
        description=f"{command.about[0].upper()}{command.about[1:]}.",
        epilog=_epilog(command.examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"TOML file with settings (environment: {CONFIG_ENVIRONMENT})",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument(
        "--die-with-parent",
        metavar="PID",
        nargs="?",
        const=0,
        type=int,
        help="end with the process (thread) that started this one; PID is its number, "
        "so that its end before ours began is seen as well",
    )
    group = parser.add_argument_group(
        "settings", f"flag > environment REFIMPL_<NAME> > [{name}] of FILE > default"
    )
    for option in options:
        group.add_argument(option.flag, **_argument(option))
    return parser


def _argument(option: Option) -> dict[str, Any]:
    """Keyword arguments of `add_argument` for one setting."""
    words = [option.help]
    if option.choices:
        words.append(f"one of {', '.join(option.choices)}")
    if option.default is MISSING:
        words.append("required")
    elif option.default not in ("", ()):
        words.append(f"default {option.default}")
    if option.scales:
        words.append("times the time scale")
    if option.repeatable:
        words.append("may be given several times")
    about: dict[str, Any] = {
        "dest": option.name,
        "metavar": _METAVARS[option.kind],
        "help": "; ".join(words).replace("%", "%%"),
    }
    if option.repeatable:
        about["action"] = "append"
    if option.kind is bool:
        about |= {"nargs": "?", "const": "true"}
    return about


_METAVARS: Final = {str: "TEXT", int: "N", float: "X", bool: "BOOL", tuple: "TEXT"}


def _epilog(examples: tuple[str, str]) -> str:
    return f"examples:\n  {examples[0]}\n  {examples[1]}\n\n{EXIT_CODES}"

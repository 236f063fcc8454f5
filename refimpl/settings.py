"""Settings of a role: one frozen dataclass, four sources, one clear line when bad.

A field made with `setting(...)` can come from, strongest first: a flag `--field-name`,
the environment `REFIMPL_FIELD_NAME`, a TOML file (`--config`, section of the role or
top level), its default. Values are handed on at factor 1; `in_real_time` multiplies the
durations by `time_scale` once, in the role, when it builds its parts.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import typing
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from refimpl.errors import SettingError, UsageError
from refimpl.names import MOST_CHARACTERS, NAME_RULE, is_name, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")

ROLES = ("master", "store", "engine", "up")
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_YES = ("true", "yes", "on", "1")
_NO = ("false", "no", "off", "0")


def setting(
    default: Any = MISSING,
    help: str = "",  # noqa: A002 -- the word that every option library uses
    *,
    scales: bool = False,
    repeatable: bool = False,
    choices: Sequence[str] = (),
    at_least: float | None = None,
    at_most: float | None = None,
    named: bool = False,
) -> Any:
    """A dataclass field that can be set from flags, environment and file.

    Args:
        default: value when nobody says anything; none makes the setting required.
        help: one sentence with the unit.
        scales: a duration that `in_real_time` multiplies by `time_scale`.
        repeatable: a `tuple[str, ...]`; the flag may be given several times.
        choices: the only words allowed.
        at_least: smallest value allowed.
        at_most: largest value allowed.
        named: a name, which log lines, labels and paths hold; empty if the default is.
    """
    about = {
        "setting": True,
        "help": help,
        "scales": scales,
        "repeatable": repeatable,
        "choices": tuple(choices),
        "at_least": at_least,
        "at_most": at_most,
        "named": named,
    }
    if default is MISSING:
        return dataclasses.field(metadata=about)
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting, as a command line sees it."""

    name: str
    kind: type
    default: Any
    help: str
    scales: bool
    repeatable: bool
    choices: tuple[str, ...]
    at_least: float | None
    at_most: float | None
    named: bool

    @property
    def flag(self) -> str:
        """`prefetch_base_s` -> `--prefetch-base-s`."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """`prefetch_base_s` -> `REFIMPL_PREFETCH_BASE_S`."""
        return "REFIMPL_" + self.name.upper()

    @property
    def is_size(self) -> bool:
        """Bytes, so that `64MiB` may be written."""
        return self.kind is int and (self.name.endswith(("size", "_bytes")))


def options_of(cls: type) -> list[Option]:
    """The settings of a dataclass in the order of its fields."""
    hints = typing.get_type_hints(cls)
    return [
        Option(
            name=f.name,
            kind=_kind(hints[f.name]),
            default=f.default,
            **{k: v for k, v in f.metadata.items() if k != "setting"},
        )
        for f in dataclasses.fields(cls)
        if f.metadata.get("setting")
    ]


def load(
    cls: type[T],
    role: str,
    *,
    flags: Mapping[str, str | Sequence[str]],
    environ: Mapping[str, str],
    config: Path | None = None,
    shared: bool = False,
) -> T:
    """Reads every setting from its strongest source and builds `cls`.

    Args:
        cls: dataclass whose fields were made by `setting`.
        role: name of the section in the file.
        flags: text given on the command line by field name, absent when not given.
        environ: usually `os.environ`.
        config: TOML file, or None.
        shared: the file is for other roles as well, so that names at its top level
            that this one does not know are not mistakes.

    Raises:
        UsageError: one line naming source, value and remedy.
    """
    options = options_of(cls)
    known = {option.name for option in options}
    filed = _read_file(config, role, known, shared=shared) if config else {}
    values: dict[str, Any] = {}
    for option in options:
        found = _find(option, flags, environ, filed)
        if found is not None:
            values[option.name] = _checked(option, *found)
        elif option.default is MISSING:
            raise UsageError(
                f"{option.name} is not set; give {option.flag}, {option.env} "
                f"or `{option.name}` in [{role}] of the --config file"
            )
    try:
        return cls(**values)
    except ValueError as error:
        raise UsageError(f"settings of {role} do not fit together: {error}") from error


def in_real_time(settings: T) -> T:
    """A copy whose `scales` fields are multiplied by its `time_scale`."""
    factor = float(getattr(settings, "time_scale", 1.0))
    scaled = {
        o.name: getattr(settings, o.name) * factor
        for o in options_of(type(settings))
        if o.scales
    }
    return dataclasses.replace(settings, **scaled)  # type: ignore[type-var]


def _find(
    option: Option,
    flags: Mapping[str, str | Sequence[str]],
    environ: Mapping[str, str],
    filed: Mapping[str, tuple[str, Any]],
) -> tuple[str, Any] | None:
    """(source in words, raw value), or None when nobody set it."""
    if option.name in flags:
        return f"flag {option.flag}", flags[option.name]
    if option.env in environ:
        raw = environ[option.env]
        value = [w.strip() for w in raw.split(";") if w.strip()]
        return f"environment {option.env}", value if option.repeatable else raw
    return filed.get(option.name)


def _read_file(
    path: Path, role: str, known: set[str], *, shared: bool
) -> dict[str, tuple[str, Any]]:
    """Settings of a role by name; its own section wins over the top level."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"file {path}: cannot be read ({error.strerror}); check --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"file {path}: is not TOML ({error}); correct it") from error
    section = document.get(role, {})
    if not isinstance(section, dict):
        raise UsageError(f"file {path}: `{role}` is not a table; write [{role}]")
    top = {k: v for k, v in document.items() if k not in ROLES}
    _refuse_unknown(path, f"[{role}] ", section, known)
    if not shared and not any(name in document for name in ROLES):
        _refuse_unknown(path, "", top, known)
    found = {k: (f"file {path}, {k}", v) for k, v in top.items() if k in known}
    found |= {k: (f"file {path}, [{role}] {k}", v) for k, v in section.items()}
    return found


def _refuse_unknown(
    path: Path, where: str, names: Iterable[str], known: set[str]
) -> None:
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "remove it"
        raise UsageError(f"file {path}, {where}{name}: no such setting; {remedy}")


def _kind(hint: Any) -> type:
    """The plain type of a field: str, int, float, bool or tuple."""
    kind = typing.get_origin(hint) or hint
    if kind not in (str, int, float, bool, tuple):
        raise TypeError(f"a setting cannot be of type {hint!r}")
    return typing.cast("type", kind)


def _checked(option: Option, source: str, raw: Any) -> Any:
    """The value in its own type and range, or a SettingError."""

    def bad(problem: str, remedy: str) -> SettingError:
        return SettingError(source=source, value=raw, problem=problem, remedy=remedy)

    try:
        value = _CONVERT[option.kind](option, raw)
    except (ValueError, TypeError):
        raise bad(f"is not {_WORDS[option.kind]}", _example(option)) from None
    if not all(is_plain(text) for text in _texts(value)):
        raise bad(
            f"holds control characters, or more than {MOST_CHARACTERS} characters",
            "write one plain line",
        )
    if option.named and not (is_name(value) or value == option.default == ""):
        raise bad("is not a name", f"a name is {NAME_RULE}")
    if option.choices and value not in option.choices:
        raise bad("is not a choice", f"use one of {', '.join(option.choices)}")
    if option.at_least is not None and value < option.at_least:
        raise bad("is too small", f"use {option.at_least:g} or more")
    if option.at_most is not None and value > option.at_most:
        raise bad("is too large", f"use {option.at_most:g} or less")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    """The texts in a value of any kind."""
    if isinstance(value, tuple):
        return value
    return (value,) if isinstance(value, str) else ()


def _to_str(_option: Option, raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw


def _to_bool(_option: Option, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    if not isinstance(raw, str):
        raise TypeError
    word = raw.strip().lower()
    return word in _YES if word in _YES + _NO else _fail()


def _to_int(option: Option, raw: Any) -> int:
    if isinstance(raw, bool):
        raise TypeError
    if isinstance(raw, int):
        return raw
    if not isinstance(raw, str):
        raise TypeError
    if not option.is_size:
        return int(raw)
    text = raw.strip().lower().removesuffix("b").removesuffix("i")
    digits = text.rstrip("kmgt")
    return int(digits) * _BYTES[text[len(digits) :]] if digits else _fail()


def _to_float(_option: Option, raw: Any) -> float:
    if isinstance(raw, bool):
        raise TypeError
    value = float(raw)
    return value if math.isfinite(value) else _fail()


def _to_tuple(_option: Option, raw: Any) -> tuple[str, ...]:
    if isinstance(raw, str):
        return (raw,)
    if not all(isinstance(item, str) for item in raw):
        raise TypeError
    return tuple(raw)


def _fail() -> Any:
    raise ValueError


def _example(option: Option) -> str:
    if option.is_size:
        return "write e.g. 67108864 or 64MiB"
    example = {int: "8", float: "0.5", bool: "true or false", str: '"word"'}
    return "write e.g. " + example.get(option.kind, '"a", "b"')


_CONVERT: dict[type, Callable[[Option, Any], Any]] = {
    str: _to_str,
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    tuple: _to_tuple,
}
_WORDS: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    tuple: "a list of texts",
}

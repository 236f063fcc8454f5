"""Settings: four sources in order, and one clear line for every mistake."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from refimpl.errors import UsageError
from refimpl.settings import in_real_time, load, options_of, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    name: str = setting("store-0", "name")
    size_bytes: int = setting(1 << 20, "bytes", at_least=1)
    slots: int = setting(4, "slots", at_least=1, at_most=64)
    grace_s: float = setting(5.0, "grace", scales=True)
    poll_s: float = setting(0.02, "poll")
    hugepages: bool = setting(False, "huge pages")
    rail: tuple[str, ...] = setting((), "rails", repeatable=True)
    policy: str = setting("timeout", "policy", choices=("timeout", "best_effort"))
    time_scale: float = setting(1.0, "factor", at_least=0.001)

    def __post_init__(self) -> None:
        if self.slots == 13:
            raise ValueError("13 slots bring bad luck")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Required:
    master: str = setting(help="where the master is")


def _load(flags=None, environ=None, config=None, cls=_Settings):
    return load(cls, "store", flags=flags or {}, environ=environ or {}, config=config)


@pytest.fixture
def toml(tmp_path):
    def write(text: str):
        path = tmp_path / "cluster.toml"
        path.write_text(text)
        return path

    return write


def test_defaults_stand_when_nobody_says_anything():
    assert _load() == _Settings()


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(toml):
    config = toml("[store]\nname = 'f'\nslots = 5\ngrace_s = 1")
    environ = {"REFIMPL_NAME": "e", "REFIMPL_SLOTS": "6"}
    got = _load({"name": "g"}, environ, config)

    assert got == _Settings(name="g", slots=6, grace_s=1.0)


def test_the_section_of_the_role_beats_the_top_level(toml):
    config = toml("time_scale = 0.1\nslots = 3\n[store]\nslots = 5\n[master]\nx = 1")
    got = _load(config=config)

    assert (got.time_scale, got.slots) == (0.1, 5)


def test_every_type_is_read_from_text():
    environ = {
        "REFIMPL_SIZE_BYTES": "64MiB",
        "REFIMPL_HUGEPAGES": "yes",
        "REFIMPL_RAIL": "a=127.0.0.2:0; b=127.0.0.3:0",
        "REFIMPL_GRACE_S": "2.5",
    }

    assert _load(environ=environ) == _Settings(
        size_bytes=64 << 20,
        hugepages=True,
        rail=("a=127.0.0.2:0", "b=127.0.0.3:0"),
        grace_s=2.5,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("4k", 4096), ("2GiB", 2 << 30), ("3MB", 3 << 20), ("16 b", 16)],
)
def test_sizes_may_have_a_unit(text, expected):
    assert expected == _load({"size_bytes": text}).size_bytes


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ({"slots": "many"}, {}, "flag --slots: 'many' is not a whole number; write"),
        ({"slots": "0"}, {}, "too small; use 1 or more"),
        ({"slots": "65"}, {}, "too large; use 64 or less"),
        ({}, {"REFIMPL_SLOTS": "x"}, "environment REFIMPL_SLOTS: 'x'"),
        ({"policy": "fast"}, {}, "use one of timeout, best_effort"),
        ({"size_bytes": "MiB"}, {}, "64MiB"),
        ({"size_bytes": "1.5g"}, {}, "whole number"),
        ({"grace_s": "nan"}, {}, "finite"),
        ({"hugepages": "maybe"}, {}, "true or false"),
        ({"slots": "13"}, {}, "store do not fit together: 13 slots bring bad luck"),
    ],
)
def test_a_bad_value_names_source_value_and_remedy(flags, environ, said):
    with pytest.raises(UsageError, match=said) as caught:
        _load(flags, environ)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[store]\nslost = 3",
            r"\[store\] slost: no such setting; did you mean 'slots'",
        ),
        ("zzz = 3", "zzz: no such setting; remove it"),
        ("[store]\nslots = 'x'", r"\[store\] slots: 'x' is not a whole number"),
        ("[store]\nslots = true", "whole number"),
        ("[store]\nname = 3", "is not a text"),
        ("[store]\nrail = [1]", "list of texts"),
        ("store = 1", r"write \[store\]"),
        ("= broken", "is not TOML"),
    ],
)
def test_a_bad_file_is_named_with_the_field(toml, text, said):
    with pytest.raises(UsageError, match=said) as caught:
        _load(config=toml(text))

    assert "cluster.toml" in str(caught.value)


def test_a_file_shared_with_other_roles_may_say_more(toml):
    config = toml("stores = 8\nslots = 3")
    got = load(_Settings, "store", flags={}, environ={}, config=config, shared=True)

    assert got.slots == 3


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read"):
        _load(config=tmp_path / "none.toml")


def test_a_required_setting_says_where_it_may_stand():
    with pytest.raises(UsageError, match="--master, REFIMPL_MASTER"):
        _load(cls=_Required)


def test_real_time_scales_durations_once_and_polls_never():
    got = in_real_time(_Settings(time_scale=0.1))

    assert (
        pytest.approx(got.grace_s),
        got.poll_s,
        got.time_scale,
    ) == (0.5, 0.02, 0.1)


def test_options_know_their_flag_and_environment():
    option = next(o for o in options_of(_Settings) if o.name == "size_bytes")

    assert (option.flag, option.env) == ("--size-bytes", "REFIMPL_SIZE_BYTES")

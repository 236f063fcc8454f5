from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from chaos.conformance.faults import FAULTS
from chaos.conformance.profile import (
    Expect,
    load_profile,
    load_profiles,
    profile_for,
)
from chaos.errors import UsageError

OURS = Path(__file__).parents[3] / "suites" / "conformance"


@pytest.fixture
def written(tmp_path, row):
    def build(*rows, name="one.yaml", **head):
        document = {"system": "s", "version": "1", "expected": list(rows) or [row()]}
        path = tmp_path / name
        path.write_text(yaml.safe_dump({**document, **head}), encoding="utf-8")
        return path

    return build


def test_fails_is_said_only_after_20_of_20(profile, row):
    profile(row(seen={"held": 0, "failed": 20}))

    for seen in ({"held": 0, "failed": 19}, {"held": 1, "failed": 40}, {}):
        with pytest.raises(ValidationError, match="20 of 20"):
            profile(row(seen=seen))


def test_holds_is_not_said_of_what_was_seen_to_fail(profile, row):
    profile(row(expect="holds", seen={"held": 3, "failed": 0}))

    with pytest.raises(ValidationError, match="seen to fail 1 times"):
        profile(row(expect="holds", seen={"held": 30, "failed": 1}))


def test_holds_is_not_said_of_what_was_never_seen(profile, row):
    with pytest.raises(ValidationError, match="never seen to hold"):
        profile(row(expect="holds", seen=None))


@pytest.mark.parametrize("expect", ["holds", "sometimes"])
def test_an_expectation_without_a_reference_is_refused(profile, row, expect):
    with pytest.raises(ValidationError, match="reference"):
        profile(row(expect=expect, seen=None, reference=None))


def test_the_unknown_needs_no_reference(profile, row):
    made = profile(row(expect="unknown", seen=None, reference=None))

    assert made.expected[0].expect is Expect.UNKNOWN


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"law": "no-such"}, "no property 'no-such'"),
        ({"law": "no-failure"}, "not asked of bare"),
        ({"arm": "other"}, "arm"),
        ({"expect": "maybe"}, "expect"),
        ({"strange": 1}, "strange"),
    ],
)
def test_a_bad_row_is_told_in_one_line_with_file_and_field(written, row, change, said):
    path = written(row(**change))
    with pytest.raises(UsageError) as raised:
        load_profile(path)

    assert str(path) in str(raised.value)
    assert said in str(raised.value)
    assert "expected.0" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_same_property_twice_is_refused(written, row):
    with pytest.raises(UsageError, match="is expected twice"):
        load_profile(written(row(), row()))


@pytest.mark.parametrize("text", ["", "[]", "{a: ", "a: [1", "\t"])
def test_what_is_no_profile_is_told_in_one_line(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        load_profile(path)

    assert "bad.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"none\.yaml"):
        load_profile(tmp_path / "none.yaml")


def test_two_files_do_not_speak_of_one_version(written, tmp_path):
    written(name="one.yaml")
    written(name="two.yaml")
    with pytest.raises(UsageError, match="both speak of s 1"):
        load_profiles(tmp_path)


def test_its_own_settings_are_looked_for_before_all_settings(profile, row):
    made = profile(
        row(settings="*", expect="sometimes"),
        row(settings="tuned", expect="holds", seen={"held": 1}),
    )

    def found(settings):
        return made.of(("store-paused", "stall-bounded", "bare", settings)).expect

    assert found("tuned") is Expect.HOLDS
    assert found("default") is Expect.SOMETIMES
    assert made.of(("store-killed", "stall-bounded", "bare", "tuned")) is None


def test_its_own_version_is_looked_for_before_all_versions(profile):
    any_, own = profile(version="*"), profile(version="2")

    assert profile_for([any_, own], "mooncake", "2") is own
    assert profile_for([own, any_], "mooncake", "3") is any_
    assert profile_for([own], "mooncake", "3") is None
    assert profile_for([any_], "refimpl", "3") is None


def test_our_profiles_can_be_read_and_name_faults_that_there_are():
    profiles = load_profiles(OURS)
    named = {row.fault for one in profiles for row in one.expected}

    assert {one.system for one in profiles} == {"mooncake", "refimpl"}
    assert named <= {fault.name for fault in FAULTS}

from __future__ import annotations

import pytest

from chaos.canary.build import Build, Failpoint
from chaos.canary.sides import (
    MOONCAKE,
    REFIMPL,
    URLS,
    Shape,
    same_but_label,
    settings_of,
    side_of,
)
from chaos.errors import UsageError


def test_the_reference_system_with_everything_planted():
    side = side_of(
        "canary",
        "refimpl",
        settings=["engine.breaker_min_samples=50", "engine.policy=best_effort"],
        defects=["breaker_never_opens"],
        failpoints=["master:master.lookup=sleep(2)"],
    )

    spec = Shape(seed=3).spec(side)
    assert side.kind == REFIMPL
    assert spec.defects == ("breaker_never_opens",)
    assert spec.overrides["engine"]["breaker_min_samples"] == 50
    assert spec.overrides["engine"]["policy"] == "best_effort"
    assert spec.seed == 3
    told = str(side)
    assert "breaker_never_opens" in told
    assert "master:master.lookup=sleep(2)" in told


def test_a_side_keeps_what_both_arms_have_in_common():
    plain = Shape().spec(side_of("baseline", "refimpl"))
    changed = Shape().spec(side_of("canary", "refimpl", settings=["engine.x=1"]))

    common = dict(plain.overrides["engine"])
    assert {**common, "x": 1} == changed.overrides["engine"]


@pytest.mark.parametrize(
    ("text", "profile"), [("mooncake", "default"), ("mooncake:tuned", "tuned")]
)
def test_mooncake_has_profiles(text, profile):
    side = side_of("canary", text)

    assert (side.kind, side.profile) == (MOONCAKE, profile)
    assert Shape().spec(side).overrides["mooncake"] == {"profile": profile}
    assert "master" not in Shape().spec(side).overrides


def test_urls_are_a_group_in_their_order():
    side = side_of("canary", "http://a:1, http://b:2/")

    assert (side.kind, side.urls) == (URLS, ("http://a:1", "http://b:2"))
    assert not side.ours


@pytest.mark.parametrize(
    "text", ["", "refimpl:x", "mooncake:", "group:", "group", "toxiproxy", "a:80"]
)
def test_what_is_nothing_known_is_refused_with_what_there_is(text):
    with pytest.raises(UsageError, match="refimpl, mooncake"):
        side_of("canary", text)


def test_an_endpoint_named_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        side_of("canary", "http://a:1,http://a:1/")


@pytest.mark.parametrize(
    ("text", "given", "option"),
    [
        ("http://a:1", {"settings": ["engine.x=1"]}, "--canary-set"),
        ("http://a:1", {"defects": ["deadline_ignored"]}, "--canary-defect"),
        ("mooncake", {"defects": ["deadline_ignored"]}, "--canary-defect"),
        ("mooncake", {"failpoints": ["master:a=on"]}, "--canary-failpoint"),
        ("group:blue", {"failpoints": ["master:a=on"]}, "--canary-failpoint"),
    ],
)
def test_what_a_kind_cannot_do_is_refused(text, given, option):
    with pytest.raises(UsageError, match=option):
        side_of("canary", text, **given)


def test_values_are_those_of_json_and_else_text():
    found = settings_of("canary", ["a.b=1", "a.c=true", "a.d=x", "b.e=[1, 2]"])

    assert found == {"a": {"b": 1, "c": True, "d": "x"}, "b": {"e": (1, 2)}}


@pytest.mark.parametrize("text", ["engine", "engine.x", "x=1", ".x=1", "engine.=1"])
def test_a_setting_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"ROLE\.FIELD=VALUE"):
        settings_of("canary", [text])


def test_equal_sides_are_an_aa_run():
    one, other = side_of("baseline", "refimpl"), side_of("canary", "refimpl")

    assert same_but_label(one, other)
    changed = side_of("canary", "refimpl", defects=["lease_not_checked"])
    assert not same_but_label(one, changed)


@pytest.mark.parametrize(
    "text",
    ["master.lookup=on", "master:=on", "master:x=", "nobody:x=on", "master:a=on;b=on"],
)
def test_a_failpoint_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match="canary-failpoint"):
        Failpoint.parse(text)


def test_a_failpoint_is_on_a_role_or_on_all_of_a_kind():
    every, one = (
        Failpoint.parse("store:a=on"),
        Failpoint.parse("store-1:a=1*pause->off"),
    )

    assert [every.on(role) for role in ("store-0", "store-1", "master")] == [
        True,
        True,
        False,
    ]
    assert [one.on(role) for role in ("store-0", "store-1")] == [False, True]
    assert one.spec == "1*pause->off"


def test_a_checkout_is_a_build_and_anything_else_is_refused(tmp_path):
    checkout = tmp_path / "branch"
    (checkout / "refimpl").mkdir(parents=True)
    (checkout / "refimpl" / "__main__.py").touch()

    assert Build.at(str(checkout)).sources == str(checkout)
    assert Build.at("").ours
    with pytest.raises(UsageError, match="no package refimpl"):
        Build.at(str(tmp_path))
    with pytest.raises(UsageError, match="neither a checkout nor an interpreter"):
        Build.at(str(tmp_path / "nothing"))


def test_the_interpreter_of_a_checkout_brings_its_sources(tmp_path):
    (tmp_path / "refimpl").mkdir()
    (tmp_path / "refimpl" / "__main__.py").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n", encoding="utf-8")
    python.chmod(0o755)

    found = Build.at(str(python))

    assert (found.python, found.sources) == (str(python), str(tmp_path))
    assert not found.ours

"""A profile that is wrong is refused by file and field; one that is learned fits."""

from __future__ import annotations

import pytest

from checks.baseline import load_baseline, to_baseline
from checks.errors import UsageError
from checks.judge import judge
from checks.learn import learned
from checks.profile import Profile, load_profile, load_waivers, matches


def written(tmp_path, text):
    path = tmp_path / "golden.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nic: {cuont: 8}", "nic.cuont"),
        ("nic: {count: many}", "nic.count"),
        ("schema: other/1", "schema"),
        ("severity: {nic-count: X}", "severity"),
        ("waivers: [{id: nic-count, until: soon, reason: x}]", "waivers.0.until"),
        ("waivers: [{id: nic-count, until: 2026-12-31}]", "waivers.0.reason"),
        ("expect: {nic-cuont: 8}", "nic-cuont"),
        ("disable: [nope]", "nope"),
        ("- a", "mapping"),
        ("a: [", "no YAML"),
        ("expect: {nic-count: [/(/]}", "expect"),
    ],
)
def test_an_error_names_the_file_and_the_field(tmp_path, text, named):
    path = written(tmp_path, text)

    with pytest.raises(UsageError) as caught:
        load_profile(path, known=("nic-count",))

    assert str(path) in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("nic: {cuont: 8}", "fields of nic: count, driver, firmware"),
        ("nic: 8", "fields of nic: count, driver, firmware"),
        (
            "rails: [{nam: a}]",
            "fields of rails: address, bdf, device, mac, name, netdev",
        ),
        ("waivers: [{idd: x}]", "fields of waivers: id, node, reason, subject, until"),
        ("rout: {}", "fields of a profile: disable, expect, iommu"),
    ],
)
def test_an_unknown_field_is_answered_with_those_of_its_section(tmp_path, text, known):
    with pytest.raises(UsageError) as caught:
        load_profile(written(tmp_path, text))

    assert known in str(caught.value)


def test_a_wrong_value_of_a_known_field_needs_no_list(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_profile(written(tmp_path, "nic: {count: many}"))

    assert "fields of" not in str(caught.value)


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_profile(tmp_path / "none.yaml")


def test_an_empty_profile_prescribes_nothing(tmp_path):
    assert load_profile(written(tmp_path, "")) == Profile()


def test_values_may_be_single_lists_or_by_key(tmp_path):
    text = "expect: {a: 8, b: [1, true], c: {rail0: x, rail1: [y, z]}}"
    profile = load_profile(written(tmp_path, text))

    assert profile.allowed("a", "any") == ("8",)
    assert profile.allowed("b", "any") == ("1", "true")
    assert profile.allowed("c", "rail1") == ("y", "z")
    assert profile.allowed("c", "rail7") is None
    assert profile.allowed("d", "any") is None


@pytest.mark.parametrize(
    ("value", "allowed", "expected"),
    [
        ("400", [">=400"], True),
        ("399.5", [">=400"], False),
        ("abc", [">=400"], False),
        ("4200", ["<=4200"], True),
        ("28.43.1", ["/28\\.43\\..*/"], True),
        ("128.43.1", ["/28\\.43\\..*/"], False),
        ("/", ["/"], True),
        ("x", [], False),
    ],
)
def test_allowed_values_are_text_patterns_and_bounds(value, allowed, expected):
    assert matches(value, allowed) is expected


def test_waivers_may_stand_in_a_file_of_their_own(tmp_path):
    text = "- {id: nic-count, node: n, until: 2026-12-31, reason: ticket}"

    (waiver,) = load_waivers(written(tmp_path, text), known=("nic-count",))

    assert (waiver.id, waiver.node) == ("nic-count", "n")


def test_a_learned_profile_fits_the_nodes_it_was_learned_from(healthy, tmp_path):
    documents = healthy.documents()
    path = written(tmp_path, learned(judge(documents)))

    profile = load_profile(path)
    report = judge(documents, profile)

    assert not [f for f in report.findings if f.bad]
    assert profile.expect["nic-count"] == ("8",)
    assert (
        "(profile)" in next(f for f in report.findings if f.id == "nic-count").expected
    )


def test_a_learned_profile_catches_a_fleet_that_changed_together(healthy, tmp_path):
    path = written(tmp_path, learned(judge(healthy.documents())))
    changed = healthy.documents()
    for document in changed:
        for name, entry in document["files"].items():
            if name.endswith("/fw_ver"):
                entry["text"] = "28.99.0\n"

    report = judge(changed, load_profile(path))

    assert "nic-fw-consistent" in {f.id for f in report.roots}


def test_a_baseline_is_read_back_as_it_was_saved(healthy, tmp_path):
    import json

    report = judge(healthy.documents())
    path = tmp_path / "last.json"
    path.write_text(json.dumps(to_baseline(report)))

    previous = load_baseline(path)

    assert previous["node-03", "nic-count", ""] == "8"
    assert not [
        f for f in judge(healthy.documents(), previous=previous).findings if f.bad
    ]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": "preflight.baseline/1"}', "[1]"]
)
def test_a_file_that_is_no_baseline_is_a_usage_error(tmp_path, text):
    with pytest.raises(UsageError):
        load_baseline(written(tmp_path, text))

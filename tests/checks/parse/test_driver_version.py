"""F35, R37: one version in all its spellings."""

from __future__ import annotations

import pytest

from checks.parse.driver_version import normalised


@pytest.mark.parametrize(
    "text",
    [
        "24.10-0.7.0",
        "OFED-internal-24.10-0.7.0",
        "OFED-internal-24.10-0.7.0:",
        "MLNX_OFED_LINUX-24.10-0.7.0.0 (OFED-24.10-0.7.0):",
        "MLNX_OFED_LINUX-24.10-0.7.0.0",
        "doca2.9.0-24.10-0.7.0.0",
        " 24.10-0.7.0\n",
    ],
)
def test_f35_r37_every_spelling_of_a_release_is_the_same(text):
    assert normalised(text) == "24.10-0.7.0"


@pytest.mark.parametrize(
    "release",
    [
        "6.8.0-60-generic",
        "5.14.0-427.13.1.el9_4.x86_64",
        "6.1.0-31-amd64",
        "5.14.21-150500.55.39-default",
    ],
)
def test_the_release_of_a_kernel_is_never_taken_for_a_vendors(release):
    assert normalised(release) == f"inbox {release}"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("5.8-2.0.3", "5.8-2.0.3"),
        ("1.0", "1.0"),
        ("", ""),
        ("4.9-0.1.7.0", "4.9-0.1.7"),
    ],
)
def test_other_versions_stay_as_they_are(text, version):
    assert normalised(text) == version

"""What is expected of the tests of a suite on a system that is not ours. A YAML file.

    system: mooncake
    version: 0.3.13.post1
    tests:
      - test: test_blast_radius.py::test_a_killed_store*
        target: netns
        settings: tuned
        expect: sometimes
        breaks: ["O2: wait <= *"]
        seen: {held: 1, failed: 2}
        reference: why it is so

The suites state laws, and a released system may break some of them. A test that fails
as expected is reported as expected (pytest's xfail), not hidden and not red; `fails` is
said only of what failed in 20 of 20 runs, and then a pass is a finding. `breaks` names
the laws that may be broken, each as "ORACLE: claim", where the claim is a pattern. What
breaks another one stays red, and so does what is INCONCLUSIVE, an assertion of a test,
and whatever breaks in the harness. Wrong bytes (O1) never are expected.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Self

import pytest
import yaml
from _pytest.outcomes import Failed
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chaos.conformance.profile import ANY, FAILS_OF, Expect, Seen
from chaos.errors import UsageError
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from chaos.judge.verdict import Judgement

_FOLDER: Final = ("conformance", "tests")
_MOST_BYTES: Final = 1 << 20


_LAW: Final = re.compile(r"(?!O1:)[A-Z]+[0-9]+[a-z]?: .+")

ROW: Final = pytest.StashKey["Expected"]()


class Unkept(Failed):
    """The verdict of a test that broke what its row names, and nothing else."""


def refusal_of(
    judgements: Iterable[Judgement], words: str, row: Expected | None
) -> Failed:
    """What ends a test with these judgements: `Unkept` where its row expects it."""
    broken = [one for one in judgements if one.verdict is Verdict.FAIL]
    expected = row is not None and broken and all(map(row.names, broken))
    return (Unkept if expected else Failed)(words, pytrace=False)


class Expected(BaseModel):
    """One row; `test` is a pattern of a node id within the suites' directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    test: str = Field(min_length=1)
    target: str = ANY
    settings: str = ANY
    expect: Expect
    breaks: tuple[str, ...] = ()
    seen: Seen = Seen()
    reference: str = Field(min_length=1)

    @model_validator(mode="after")
    def _of_what_was_seen(self) -> Self:
        seen = self.seen
        if self.expect is Expect.FAILS and (seen.held or seen.failed < FAILS_OF):
            runs = seen.failed + seen.held
            raise ValueError(
                f"`fails` needs {FAILS_OF} of {FAILS_OF} runs, not {seen.failed} of"
                f" {runs}; say sometimes"
            )
        for law in self.breaks:
            if not _LAW.fullmatch(law):
                raise ValueError(
                    f"`breaks` has {law!r}, which is no law as a report says it"
                    " (O2: wait <= *), or the one that is never expected (O1)"
                )
        if (self.expect in (Expect.FAILS, Expect.SOMETIMES)) is not bool(self.breaks):
            raise ValueError("`fails` and `sometimes` go with `breaks`, others without")
        return self

    def names(self, judgement: Judgement) -> bool:
        """Whether this law is one that may be broken."""
        law = f"{judgement.oracle}: {judgement.claim}"
        return any(fnmatchcase(law, _literal(one)) for one in self.breaks)

    def fits(self, test: str, target: str, settings: str) -> bool:
        """Whether it speaks of this test here, with these settings."""
        return (
            self.target in (ANY, target)
            and self.settings in (ANY, settings)
            and (self.test == test or fnmatchcase(test, _literal(self.test)))
        )

    def mark(self) -> pytest.MarkDecorator | None:
        """Pytest's word for it; None where a failure is one."""
        if not self.breaks:
            return None
        return pytest.mark.xfail(
            reason=f"expected, {self.expect.value}: {self.reference}",
            raises=Unkept,
            strict=self.expect is Expect.FAILS,
        )


class Expectations(BaseModel):
    """All rows of one version of a system."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str = Field(min_length=1)
    version: str = Field(min_length=1)
    tests: tuple[Expected, ...]

    def of(self, test: str, target: str, settings: str) -> Expected | None:
        """The first row that fits."""
        fitting = (row for row in self.tests if row.fits(test, target, settings))
        return next(fitting, None)


def load_expected(path: Path) -> Expectations:
    """Reads one file.

    Raises:
        UsageError: It cannot be read, or says what makes no sense.
    """
    try:
        text = path.read_bytes()[: _MOST_BYTES + 1]
        document = yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}") from error
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{path} is larger than 1 MiB")
    try:
        return Expectations.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{path}: {where}: {first['msg']}") from error


def expect(
    items: Iterable[pytest.Item],
    *,
    system: str,
    version: str,
    target: str,
    settings: str,
) -> None:
    """Marks the tests of which a failure is expected on this system."""
    found: dict[Path, list[Expectations]] = {}
    for item in items:
        folder = item.path.parent.parent.joinpath(*_FOLDER)
        if folder not in found:
            files = map(load_expected, sorted(folder.glob("*.yaml")))
            found[folder] = [
                one for one in files if (one.system, one.version) == (system, version)
            ]
        test = f"{item.path.name}::{item.nodeid.partition('::')[2]}"
        rows = (one.of(test, target, settings) for one in found[folder])
        row = next(filter(None, rows), None)
        mark = row.mark() if row is not None else None
        if row is not None and mark is not None:
            item.stash[ROW] = row
            item.add_marker(mark)


def _literal(pattern: str) -> str:
    """Brackets of parameters are no sets of characters; stars stay stars."""
    return pattern.replace("[", "[[]")

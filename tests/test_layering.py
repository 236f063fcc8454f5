"""Who may import whom, as `docs/design.md` says. Read from the sources, not by running.

`refimpl.core` imports nothing of the house; other rooms of `refimpl` never import
`chaos`; `inventory` imports nothing of the house; `chaos` imports `refimpl` in two
files; `checks` imports neither; suites import `chaos` and `checks`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSE = (
    "refimpl", "chaos", "checks", "inventory", "suites", "tests", "benchmarks"
)  # fmt: skip
DOORS = ("chaos/systems/refimpl.py", "chaos/systems/engines.py")
IMPURE = ("time", "socket", "threading", "asyncio", "subprocess", "select", "selectors")


def sources(*folders: str) -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "_pb2" not in path.name
    )


def imports_of(text: str) -> set[str]:
    """Every module that a source imports, also inside functions and for types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def of_the_house(source: str, *allowed: str) -> list[str]:
    """Imports of our own packages that are not allowed here."""
    names = imports_of((ROOT / source).read_text(encoding="utf-8"))
    ours = {name for name in names if name.partition(".")[0] in HOUSE}
    return sorted(
        name
        for name in ours
        if not any(name == ok or name.startswith(f"{ok}.") for ok in allowed)
    )


@pytest.mark.parametrize("source", sources("refimpl/core"))
def test_the_core_imports_nothing_of_the_house_but_itself(source: str) -> None:
    names = of_the_house(source, "refimpl.core")

    assert [name for name in names if name != "refimpl"] == []


@pytest.mark.parametrize("source", sources("refimpl/core"))
def test_the_core_has_no_clock_socket_or_thread_of_its_own(source: str) -> None:
    names = imports_of((ROOT / source).read_text(encoding="utf-8"))

    assert sorted({name.partition(".")[0] for name in names} & set(IMPURE)) == []


@pytest.mark.parametrize("source", sources("refimpl"))
def test_the_reference_system_knows_nothing_of_who_breaks_it(source: str) -> None:
    assert of_the_house(source, "refimpl") == []


@pytest.mark.parametrize("source", sources("inventory"))
def test_the_inventory_imports_nothing_of_the_house_but_itself(source: str) -> None:
    assert of_the_house(source, "inventory") == []


@pytest.mark.parametrize("source", sources("checks"))
def test_preflight_knows_neither_the_harness_nor_the_reference_system(
    source: str,
) -> None:
    assert of_the_house(source, "checks", "inventory") == []


@pytest.mark.parametrize("source", sources("chaos"))
def test_only_its_doors_in_the_harness_import_the_reference_system(
    source: str,
) -> None:
    allowed = ("chaos", "inventory", *(("refimpl",) if source in DOORS else ()))

    assert of_the_house(source, *allowed) == []


@pytest.mark.parametrize("source", sources("suites/chaos"))
def test_suites_talk_to_the_harness_only(source: str) -> None:
    assert of_the_house(source, "chaos") == []


def test_an_import_inside_a_function_is_seen() -> None:
    text = "def f():\n    from refimpl.core import codes\n"

    assert "refimpl.core.codes" in imports_of(text)


def test_there_are_no_packages_under_tests_and_suites() -> None:
    found = [
        *(ROOT / "tests").rglob("__init__.py"),
        *ROOT.glob("suites/**/__init__.py"),
    ]

    assert found == []

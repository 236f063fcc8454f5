from __future__ import annotations

import pytest

from chaos.report.files import link, read_json, write_json, write_text


def test_what_is_written_is_whole_and_leaves_no_temporary(tmp_path):
    write_json(tmp_path / "a.json", {"x": [1, 2]})
    write_text(tmp_path / "a.md", "one")
    write_text(tmp_path / "a.md", "two")

    assert read_json(tmp_path / "a.json") == {"x": [1, 2]}
    assert (tmp_path / "a.md").read_text() == "two"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.md"]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})

    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})

    assert read_json(tmp_path / "a.json") == {"x": 1}


def test_a_link_moves_and_is_relative(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        link(tmp_path / "latest", tmp_path / name)

    assert (tmp_path / "latest").readlink().as_posix() == "two"


def test_a_directory_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "latest").mkdir()
    (tmp_path / "one").mkdir()

    link(tmp_path / "latest", tmp_path / "one")

    assert not (tmp_path / "latest").is_symlink()

from __future__ import annotations

import os
import pickle

import pytest

from refimpl.errors import UsageError
from refimpl.security.secret import MOST_BYTES, Secret, read_secret

VALUE = "correct-horse-battery"


def _read(file: str = "", **environ: str) -> Secret | None:
    return read_secret(file=file, flag="--x-file", environ=environ, variable="X")


def test_nothing_set_is_no_secret():
    assert _read() is None


def test_the_file_wins_over_the_environment(secret_file):
    found = _read(secret_file(VALUE + "\n"), X="something-else-entirely")

    assert found == Secret(VALUE.encode())


def test_an_empty_variable_is_a_mistake_not_no_secret():
    with pytest.raises(UsageError, match="environment X"):
        _read(X="")


@pytest.mark.parametrize("length", [15, MOST_BYTES + 1])
def test_too_short_or_long_is_refused_without_telling_it(length):
    with pytest.raises(UsageError, match=f"not {length}") as caught:
        _read(X="q" * length)

    assert "qq" not in str(caught.value)


@pytest.mark.parametrize("length", [16, MOST_BYTES])
def test_the_bounds_themselves_are_good(length):
    assert _read(X="q" * length) == Secret(b"q" * length)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"--x-file .*nowhere.*No such file"):
        _read(str(tmp_path / "nowhere"))


def test_a_file_that_others_may_read_is_refused_with_the_remedy(secret_file):
    with pytest.raises(UsageError, match="chmod 600"):
        _read(secret_file(VALUE, mode=0o644))


def test_a_group_may_read_it(secret_file):
    assert _read(secret_file(VALUE, mode=0o640)) is not None


def test_a_pipe_does_not_make_it_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)

    with pytest.raises(UsageError, match="not a plain file"):
        _read(str(tmp_path / "pipe"))


@pytest.mark.parametrize("file", ["a\0b", "/", "/proc/self/mem"])
def test_strange_files_are_refused_in_one_line(file):
    with pytest.raises(UsageError) as caught:
        _read(file)

    assert "\n" not in str(caught.value)


def test_a_huge_file_is_not_read_whole(tmp_path):
    path = tmp_path / "huge"
    path.touch(0o600)
    os.truncate(path, 1 << 40)

    with pytest.raises(UsageError, match="more than"):
        _read(str(path))


def test_no_text_form_tells_it():
    secret = Secret(VALUE.encode())
    forms = [repr(secret), str(secret), f"{secret}", f"{secret!r}", repr([secret])]

    assert not any("horse" in form for form in forms)


def test_it_is_not_pickled():
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Secret(VALUE.encode()))

from __future__ import annotations

import pytest

from refimpl.errors import UsageError
from refimpl.security.token import (
    is_loopback,
    read_token,
    require_token,
    token_of_environment,
)

VALUE = "0123456789abcdef"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.255.3.4", "::1", "[::1]", "localhost"]
)
def test_loopback_is_free(host):
    require_token(host, None, "the door")

    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        *("0.0.0.0", "::", "[::]", "10.0.0.1", "example.org", "127.1", "", "0"),
        *("127.0.0.1.nip.io", "::ffff:10.0.0.1", "2130706433", "localhost.evil.org"),
    ],
)
def test_anything_else_needs_a_token(host):
    with pytest.raises(UsageError, match="REFIMPL_TOKEN or --token-file"):
        require_token(host, None, "the door")


def test_with_a_token_any_address_will_do():
    require_token("0.0.0.0", read_token(environ={"REFIMPL_TOKEN": VALUE}), "the door")


def test_only_the_whole_header_is_admitted():
    token = read_token(environ={"REFIMPL_TOKEN": VALUE})
    assert token is not None
    bad = [
        None, "", "Bearer", "Bearer ", VALUE, f"bearer {VALUE}", f"Bearer {VALUE} ",
        f"Bearer  {VALUE}", f"Basic {VALUE}", f"Bearer {VALUE[:-1]}", "Bearer \udcff",
        f"Bearer {VALUE}x", "Bearer " + "0" * 16,
    ]  # fmt: skip

    assert token.admits(token.header)
    assert token.admits(f"Bearer {VALUE}")
    assert not any(token.admits(header) for header in bad)


@pytest.mark.parametrize("value", ["short", "with space in the middle", "é" * 16])
def test_a_token_that_no_header_carries_is_refused_untold(value):
    with pytest.raises(UsageError) as caught:
        read_token(environ={"REFIMPL_TOKEN": value})

    assert value not in str(caught.value)


def test_a_caller_finds_the_token_where_a_role_does(secret_file):
    named = {"REFIMPL_TOKEN_FILE": secret_file(VALUE)}
    given = {"REFIMPL_TOKEN": VALUE}

    headers = {token_of_environment(e).header for e in (named, given)}
    assert headers == {f"Bearer {VALUE}"}
    assert token_of_environment({}) is None


def test_a_token_does_not_tell_itself():
    assert VALUE not in repr(read_token(environ={"REFIMPL_TOKEN": VALUE}))

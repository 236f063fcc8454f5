from __future__ import annotations

import pytest

from refimpl.compat.link import Naming
from refimpl.compat.options import Options, byte_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("16MB", 16 << 20),
        (" 16 MB ", 16 << 20),
        ("3g", 3 << 30),
        ("2KiB", 2048),
        ("1TB", 1 << 40),
        ("0", 0),
    ],
)
def test_sizes_in_words_are_powers_of_1024(text, size):
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "50%", "-1", "1.5MB", "MB", "1 M B", "٣"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="no size"):
        byte_size(text)


def test_a_dictionary_has_upstreams_defaults():
    options = Options.of({"local_hostname": "h", "metadata_server": "x"})

    assert options.global_segment_size == options.local_buffer_size == 16 << 20
    assert options.master_server_addr == "127.0.0.1:50051"
    assert options.tenant_id == "default"
    assert not options.enable_client_http_server


@pytest.mark.parametrize(("text", "on"), [("true", True), ("1", True), ("no", False)])
def test_flags_may_be_texts(text, on):
    found = {"local_hostname": "h", "metadata_server": "x"}
    options = Options.of({**found, "enable_client_http_server": text})

    assert options.enable_client_http_server is on


def test_names_of_tenants_are_told_apart_and_given_back():
    ours, theirs = Naming(), Naming(tenant="blue")
    names = [ours.full("a"), theirs.full("a"), theirs.full("b")]

    assert ours.keys(["a"]) != theirs.keys(["a"])
    assert ours.mine(names) == ["a"]
    assert theirs.mine(names) == ["a", "b"]
    assert Naming(tenant="blu").mine(names) == []


def test_no_name_of_the_default_tenant_is_one_of_another():
    ours, theirs = Naming(), Naming(tenant="blue")
    sly = theirs.full("a")

    assert ours.full(sly) != theirs.full("a")
    assert ours.mine([ours.full(sly), theirs.full("a")]) == [sly]
    assert theirs.mine([ours.full(sly)]) == []


def test_a_tenant_is_printable():
    with pytest.raises(ValueError, match="tenant_id"):
        Options(local_hostname="h", tenant_id="a\x1fb")

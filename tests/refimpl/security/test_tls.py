"""Every mistake with certificates is one line with the file, and found at the start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from refimpl.errors import UsageError
from refimpl.security.tls import load_tls


def _refusal(pair, side="client", **more) -> str:
    with pytest.raises(UsageError) as caught:
        load_tls(**{**pair.paths, **more}, side=side)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("side", ["server", "client"])
def test_good_files_load(authority, side):
    tls = load_tls(**authority.issue("good").paths, side=side)

    assert tls is not None
    assert tls.server_credentials() is not None
    assert tls.channel_credentials() is not None


def test_none_named_is_no_tls():
    assert load_tls(cert="", key="", ca="", side="client") is None


def test_a_part_of_it_names_the_rest(authority):
    said = _refusal(authority.issue("part"), key="", ca="")

    assert "--tls-key and --tls-ca are not set" in said


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_missing_file_is_named(authority, which):
    said = _refusal(authority.issue("missing"), **{which: "/no/such.pem"})

    assert f"--tls-{which} '/no/such.pem': cannot be read (No such file" in said


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_file_of_something_else_is_named(authority, secret_file, which):
    other = secret_file("not a certificate")
    said = _refusal(authority.issue("other"), **{which: other})

    assert f"--tls-{which} {other!r}: holds no PEM" in said


@pytest.mark.parametrize("side", ["server", "client"])
def test_an_expired_certificate_is_named(authority, side):
    pair = authority.issue("old", days=(-30, -1))
    said = _refusal(pair, side)

    assert f"--tls-cert {pair.cert!r}: certificate has expired; issue a new one" in said


def test_a_certificate_of_tomorrow_is_named(authority):
    pair = authority.issue("tomorrow", days=(1, 2))

    assert f"{pair.cert!r}: certificate is not yet valid" in _refusal(pair)


def test_an_expired_ca_is_named_not_the_certificate(new_authority):
    pair = new_authority("gone", days=(-9, -1)).issue("good")
    said = _refusal(pair)

    assert f"--tls-ca {pair.ca!r}: expired on" in said


@pytest.mark.parametrize("side", ["server", "client"])
def test_another_ca_is_named_with_both_files(authority, new_authority, side):
    pair = authority.issue("stranger")
    other = new_authority("other").ca
    said = _refusal(pair, side, ca=other)

    assert f"{pair.cert!r}: is not signed by the CA in --tls-ca {other!r}" in said


@pytest.mark.parametrize(
    ("side", "wrong"), [("server", "client"), ("client", "server")]
)
def test_a_certificate_of_another_purpose_is_named(authority, side, wrong):
    pair = authority.issue(f"only-{wrong}", purposes=(wrong,))

    assert f"extendedKeyUsage={side}Auth" in _refusal(pair, side)


def test_a_leaf_given_as_ca_is_named(authority):
    pair = authority.issue("leaf")

    assert "holds no certificate of a CA" in _refusal(pair, ca=pair.cert)


def test_a_key_of_another_certificate_is_named(authority):
    pair, other = authority.issue("one"), authority.issue("two")
    said = _refusal(pair, key=other.key)

    assert f"{other.key!r}: is not the key of --tls-cert {pair.cert!r}" in said


def test_a_key_that_others_may_read_is_refused(authority):
    pair = authority.issue("open")
    Path(pair.key).chmod(0o604)

    assert "chmod 600" in _refusal(pair)


def test_an_encrypted_key_does_not_ask_for_its_password(authority, tmp_path):
    pair = authority.issue("locked")
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", pair.key, "-aes256", "-passout", "pass:x"]
    try:
        subprocess.run([*command, "-out", str(locked)], check=True)
    except FileNotFoundError:
        pytest.skip("needs the command openssl (package openssl)")
    locked.chmod(0o600)

    assert "is encrypted" in _refusal(pair, key=str(locked))


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_damaged_file_is_refused(authority, which):
    pair = authority.issue(f"damaged-{which}")
    lines = Path(pair.paths[which]).read_text().splitlines()
    damaged = Path(pair.cert).with_name(f"damaged-{which}")
    damaged.write_text("\n".join([lines[0], lines[1][:20], *lines[-1:]]) + "\n")
    damaged.chmod(0o600)

    assert "damaged" in _refusal(pair, **{which: str(damaged)})


def test_the_key_is_in_no_text_form(authority):
    tls = load_tls(**authority.issue("quiet").paths, side="client")

    assert "PRIVATE KEY" not in repr(tls)

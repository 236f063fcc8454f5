from __future__ import annotations

import pytest

from refimpl.errors import UsageError
from refimpl.security.options import ClientSecurity
from refimpl.security.secret import Secret


def test_a_client_finds_in_the_environment_what_a_role_does(authority, secret_file):
    pair = authority.issue("from-environment")
    environ = {
        "REFIMPL_TLS_CERT": pair.cert,
        "REFIMPL_TLS_KEY": pair.key,
        "REFIMPL_TLS_CA": pair.ca,
        "REFIMPL_TLS_SERVER_NAME": "master",
        "REFIMPL_DATA_SECRET_FILE": secret_file("a secret of sixteen"),
    }
    found = ClientSecurity.from_env(environ)

    assert found.tls is not None
    assert found.tls.server_name == "master"
    assert found.data_secret == Secret(b"a secret of sixteen")
    assert "sixteen" not in repr(found)


def test_an_empty_environment_is_an_open_pool():
    assert ClientSecurity.from_env({}) == ClientSecurity(tls=None, data_secret=None)


def test_half_of_it_is_a_mistake():
    with pytest.raises(UsageError, match="--tls-cert and --tls-ca are not set"):
        ClientSecurity.from_env({"REFIMPL_TLS_KEY": "x"})

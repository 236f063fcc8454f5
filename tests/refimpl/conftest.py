"""A certificate authority of the tests, and secrets in files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

DAY = datetime.timedelta(days=1)
PURPOSES = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
}


@dataclass
class Pair:
    """Files of a certificate and its key, and of the CA that signed it."""

    cert: str
    key: str
    ca: str

    @property
    def flags(self) -> list[str]:
        return [
            *("--tls-cert", self.cert),
            *("--tls-key", self.key),
            *("--tls-ca", self.ca),
        ]

    @property
    def paths(self) -> dict[str, str]:
        return {"cert": self.cert, "key": self.key, "ca": self.ca}


class Authority:
    """Signs certificates for 127.0.0.1 and writes them to files."""

    def __init__(self, folder: Path, *, days: tuple[int, int] = (-1, 30)) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(folder.name)
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = (
            _builder(self._name, self._name, self._key.public_key(), days)
            .add_extension(constraints, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = self._write("ca.pem", certificate.public_bytes(_PEM))

    def issue(
        self,
        name: str,
        *,
        days: tuple[int, int] = (-1, 30),
        purposes: tuple[str, ...] = ("server", "client"),
        host: str = "127.0.0.1",
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName(name)]
        usages = x509.ExtendedKeyUsage([PURPOSES[one] for one in purposes])
        certificate = (
            _builder(_name(name), self._name, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .add_extension(usages, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        text = key.private_bytes(
            _PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pair(
            cert=self._write(f"{name}.pem", certificate.public_bytes(_PEM)),
            key=self._write(f"{name}.key", text),
            ca=self.ca,
        )

    def _write(self, name: str, data: bytes) -> str:
        path = self._folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return str(path)


_PEM = serialization.Encoding.PEM


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject, issuer, public_key, days) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
    )


@pytest.fixture(scope="session")
def new_authority(tmp_path_factory):
    """Makes a certificate authority of its own folder."""

    def make(name: str = "ca", **more) -> Authority:
        return Authority(tmp_path_factory.mktemp(name), **more)

    return make


@pytest.fixture(scope="session")
def authority(new_authority) -> Authority:
    return new_authority("authority")


@pytest.fixture
def secret_file(tmp_path):
    """Writes a file that only its owner may read."""

    def write(text: str, name: str = "secret", mode: int = 0o600) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write

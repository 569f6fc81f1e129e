"""The CA and what it signs, down to real handshakes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from keepclose.apiserver.auth.certificates import CertificateAuthority, InvalidHostError
from keepclose.apiserver.auth.credentials import certificate_user
from keepclose.apiserver.auth.users import RequestUser, authenticated_user
from keepclose.system.private_files import BrokenFileError

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC).timestamp()
DAY = 86_400.0
LOCAL_NAMES = {
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "::1",
}


def load(path: Path) -> x509.Certificate:
    """Return the certificate in a file."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(certificate: x509.Certificate) -> set[str]:
    """Return the names and addresses that a certificate is for."""
    held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in held}


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def start(directory: Path, *hosts: str, now: float = NOW) -> bool:
    """Start as the server does and return whether it made a new certificate."""
    return CertificateAuthority(directory, now=now).ensure_server_certificate(hosts)


def test_the_first_start_makes_private_files(tmp_path: Path) -> None:
    """A CA for ten years and a server certificate for one, readable by the owner alone."""
    pki = tmp_path / "pki"
    assert start(pki, "keepclose.example", "192.0.2.7", "192.0.2.7") is True
    assert sorted(contents(pki)) == ["ca.crt", "ca.key", "server.crt", "server.key"]
    assert {path.stat().st_mode & 0o777 for path in pki.iterdir()} == {0o600}
    ca, server = load(pki / "ca.crt"), load(pki / "server.crt")
    server.verify_directly_issued_by(ca)
    assert f"{ca.not_valid_after_utc:%F}" == "2037-01-14"
    assert f"{server.not_valid_after_utc:%F}" == "2028-01-15"
    assert f"{server.not_valid_before_utc:%FT%T}" == "2027-01-15T07:55:00"
    assert names(server) == LOCAL_NAMES | {"keepclose.example", "192.0.2.7"}
    for certificate in (ca, server):
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    limits = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)
    usage = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


@pytest.mark.parametrize(
    ("days", "hosts", "want_changed"),
    [
        pytest.param(0.0, ["a.example"], set(), id="the same again changes nothing"),
        pytest.param(335.0, ["a.example"], set(), id="30 days left are enough"),
        pytest.param(335.1, ["a.example"], {"server"}, id="less than 30 days left are not"),
        pytest.param(500.0, ["a.example"], {"server"}, id="nor is a certificate that has ended"),
        pytest.param(1.0, [], set(), id="a name too many does no harm"),
        pytest.param(1.0, ["b.example"], {"server"}, id="a name too few does"),
        pytest.param(3623.0, ["a.example"], {"ca", "server"}, id="a CA that ends soon changes all"),
    ],
)
def test_later_starts_keep_what_is_good(
    tmp_path: Path, days: float, hosts: list[str], want_changed: set[str]
) -> None:
    """Certificates are kept until they end soon or lack a name."""
    start(tmp_path, "a.example")
    before = contents(tmp_path)
    assert start(tmp_path, *hosts, now=NOW + days * DAY) is bool(want_changed)
    after = contents(tmp_path)
    assert {name.partition(".")[0] for name in after if after[name] != before[name]} == want_changed
    load(tmp_path / "server.crt").verify_directly_issued_by(load(tmp_path / "ca.crt"))
    assert start(tmp_path, *hosts, now=NOW + days * DAY) is False


def test_a_server_certificate_of_another_ca_is_made_anew(tmp_path: Path) -> None:
    """Clients trust the CA that is there now."""
    start(tmp_path)
    for name in ("ca.crt", "ca.key"):
        (tmp_path / name).unlink()
    assert start(tmp_path) is True
    load(tmp_path / "server.crt").verify_directly_issued_by(load(tmp_path / "ca.crt"))


def test_a_key_that_a_crash_left_alone_is_replaced(tmp_path: Path) -> None:
    """Keys are written before certificates, so a key alone was never used."""
    (tmp_path / "ca.key").write_bytes(b"half of it")
    start(tmp_path)
    (tmp_path / "server.crt").unlink()
    assert start(tmp_path) is True


def test_a_server_certificate_without_names_is_made_anew(tmp_path: Path) -> None:
    """A certificate that serves no name is not kept, whoever put it there."""
    start(tmp_path)
    made = CertificateAuthority(tmp_path, now=NOW).issue_client("joe")
    (tmp_path / "server.crt").write_bytes(made.certificate)
    (tmp_path / "server.key").write_bytes(made.key)
    assert start(tmp_path) is True


def rsa_key() -> bytes:
    """Return a key of a kind that is not ours."""
    return rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def another_key(directory: Path) -> bytes:
    """Return a key of our kind that fits nothing."""
    return CertificateAuthority(directory, now=NOW).issue_client("joe").key


@pytest.mark.parametrize(
    ("name", "spoil", "want_problem"),
    [
        pytest.param("ca.crt", lambda _: b"", "holds no certificate", id="empty certificate"),
        pytest.param("server.crt", lambda _: b"x", "holds no certificate", id="bad certificate"),
        pytest.param("ca.key", lambda _: b"x", "holds no private key", id="bad key"),
        pytest.param("ca.key", None, "is missing", id="no key"),
        pytest.param("server.key", another_key, "does not match server.crt", id="another key"),
        pytest.param(
            "ca.key",
            lambda _: rsa_key(),
            "holds a key that is not an elliptic curve key",
            id="RSA key",
        ),
    ],
)
def test_broken_files_stop_the_start(
    tmp_path: Path, name: str, spoil: Callable[[Path], bytes] | None, want_problem: str
) -> None:
    """The error names file, problem and way out, and no file is touched."""
    start(tmp_path)
    if spoil is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(spoil(tmp_path))
    before = contents(tmp_path)
    with pytest.raises(BrokenFileError) as caught:
        start(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / name}: {want_problem}; put the right one back, or remove {tmp_path} to create"
        " all of them again"
    )
    assert contents(tmp_path) == before


@pytest.mark.parametrize("host", ["", "two words", "über.example", "https://x", "a_b"])
def test_hosts_must_be_names_or_addresses(tmp_path: Path, host: str) -> None:
    """What no certificate can hold is named."""
    with pytest.raises(InvalidHostError, match="is neither a host name nor an address"):
        start(tmp_path, host)


async def shake_hands(
    authority: CertificateAuthority, client: ssl.SSLContext, host: str
) -> dict[str, Any] | None:
    """Return the client's certificate as the server sees it; None when the server hangs up."""
    seen: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peercert") or {})
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=authority.server_context())
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname=host
        )
        # NB: with TLS 1.3 a client learns only when it reads that its certificate was refused.
        try:
            writer.write(b"hello\n")
            answer = await reader.readline()
        except (ssl.SSLError, ConnectionError):
            answer = b""
        writer.close()
    assert answer == (b"hello\n" if seen else b"")
    return seen[0] if seen else None


def trusting(authority: CertificateAuthority) -> ssl.SSLContext:
    """Return a client that trusts the CA alone, as strictly as it can."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def current_authority(directory: Path) -> CertificateAuthority:
    """Return a CA of today, since a handshake looks at the real clock."""
    authority = CertificateAuthority(directory, now=datetime.now(UTC).timestamp())
    authority.ensure_server_certificate(["keepclose.example"])
    return authority


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "keepclose.example"])
async def test_clients_that_trust_the_ca_can_connect(tmp_path: Path, host: str) -> None:
    """A handshake under each name succeeds without a client certificate."""
    authority = current_authority(tmp_path)
    assert await shake_hands(authority, trusting(authority), host) == {}


async def test_another_name_is_not_served(tmp_path: Path) -> None:
    """A client that asks for a name that the certificate lacks hangs up."""
    authority = current_authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        await shake_hands(authority, trusting(authority), "other.example")


@pytest.mark.parametrize(
    ("groups", "want_user"),
    [
        pytest.param([], authenticated_user("joe"), id="no groups"),
        pytest.param(["a", "b"], authenticated_user("joe", "a", "b"), id="two groups"),
    ],
)
async def test_a_client_certificate_names_its_user(
    tmp_path: Path, groups: list[str], want_user: RequestUser
) -> None:
    """What the CA issued for a user authenticates as that user."""
    authority = current_authority(tmp_path)
    client = with_certificate(tmp_path, authority, authority, groups)
    peer = await shake_hands(authority, client, "localhost")
    assert certificate_user(peer or {}) == want_user


async def test_a_client_certificate_of_another_ca_is_refused(tmp_path: Path) -> None:
    """Nobody can name themselves."""
    authority = current_authority(tmp_path / "ours")
    other = current_authority(tmp_path / "theirs")
    client = with_certificate(tmp_path, authority, other, ["system:masters"])
    assert await shake_hands(authority, client, "localhost") is None


async def test_the_servers_own_certificate_names_nobody(tmp_path: Path) -> None:
    """A certificate that was made to serve does not do for a client."""
    authority = current_authority(tmp_path)
    client = trusting(authority)
    client.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    assert await shake_hands(authority, client, "localhost") is None


def with_certificate(
    directory: Path, trusted: CertificateAuthority, issuer: CertificateAuthority, groups: list[str]
) -> ssl.SSLContext:
    """Return a client with a certificate for joe."""
    issued = issuer.issue_client("joe", groups)
    path = directory / "joe.pem"
    path.write_bytes(issued.certificate + issued.key)
    context = trusting(trusted)
    context.load_cert_chain(path)
    return context

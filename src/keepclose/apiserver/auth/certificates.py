"""The private CA, the server certificate, client certificates and kubeconfigs of a data directory.

The CA is created at the first start and kept, since clients hold it. The server certificate is
issued again when it expires within 30 days or is not valid yet, when a name is missing from it, or
when the CA has changed; the CA itself when it expires within 30 days. A CA that is not valid yet
was created, or is read, with a wrong clock. The server cannot know which, so it reports and keeps
the CA. An unreadable file is never replaced silently. Keys are on the curve P-256, with mode 0600.

`kubeconfig` is that of the administrator, `<role>.kubeconfig` that of another role, and
`node-<name>.kubeconfig` that of a node. Each holds its token and the CA, so it can be copied to
another machine as it is. A file with the right content is not written again.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

import structlog
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from keepclose.apiserver.auth.credentials import Tokens
from keepclose.apiserver.auth.users import NODE_PREFIX, UserRole, role_user
from keepclose.model.metadata_validation import dns1123_subdomain
from keepclose.system.private_files import (
    BrokenFileError,
    create_private_directory,
    read_private,
    remove_private,
    write_private,
)

CLUSTER: Final = "keepclose"
CA_LIFETIME: Final = timedelta(days=3652)
LEAF_LIFETIME: Final = timedelta(days=365)
_RENEWED_BEFORE: Final = timedelta(days=30)

# What `cryptography` raises for an invalid or damaged certificate.
_UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
# Clocks differ, so a certificate is valid from a little before it is issued.
_TOLERANCE: Final = timedelta(minutes=5)
_LOCAL_NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "::1",
)

_log = structlog.get_logger(__name__)


class InvalidHostError(ValueError):
    """A host that is neither a DNS name nor an IP address."""


class _Pair(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class _ClientCertificate(NamedTuple):
    """The certificate of a client and its key, both as PEM."""

    certificate: bytes
    key: bytes


class CertificateAuthority:
    """The CA in a directory, and the certificates that it issues."""

    def __init__(self, directory: Path, *, now: float) -> None:
        """Read the CA, or create one where none is or it expires soon.

        `now` is in seconds since 1970. Raises BrokenFileError for files that cannot be used.
        """
        self._directory = directory
        self._now = datetime.fromtimestamp(now, UTC)
        self.certificate_path = directory / "ca.crt"
        self.server_certificate_path = directory / "server.crt"
        self.server_key_path = directory / "server.key"
        self._advice = f"put the right one back, or remove {directory} to create all of them again"
        create_private_directory(directory)
        self._pair = self._read_pair("ca") or self._create_missing()
        self._check_authority()
        self._reject_future(self._pair.certificate)
        if self._expires_soon(self._pair.certificate):
            end = f"{self._pair.certificate.not_valid_after_utc:%Y-%m-%d}"
            _log.warning("CA expires, new CA created", file=str(self.certificate_path), end=end)
            self._pair = self._create()

    @property
    def pem(self) -> bytes:
        """The certificate of the CA."""
        return _certificate_pem(self._pair.certificate)

    def ensure_server_certificate(self, hosts: Sequence[str] = ()) -> bool:
        """Ensure a server certificate for the local names of this machine and the given hosts.

        Returns whether a new one was issued. Hosts are DNS names or IP addresses.
        """
        names = [_general_name(host) for host in dict.fromkeys((*_LOCAL_NAMES, *hosts))]
        pair = self._read_pair("server")
        if pair is not None and self._is_current(pair.certificate, names):
            return False
        subject = _subject("kube-apiserver")
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        self._write_pair("server", self._sign(subject, usage=usage, names=names))
        return True

    def issue_client(self, user: str, groups: Sequence[str] = ()) -> _ClientCertificate:
        """Return a client certificate of this user in these groups."""
        pair = self._sign(_subject(user, groups), usage=ExtendedKeyUsageOID.CLIENT_AUTH)
        return _ClientCertificate(_certificate_pem(pair.certificate), _key_pem(pair.key))

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of the server; client certificates are optional.

        Raises BrokenFileError.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # NB: OpenSSL is stricter about these files than `cryptography`, which has read them.
        path = self.server_certificate_path
        try:
            # NB: the certificate alone first, to tell its damage from damage of the key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
            path = self.server_key_path
            context.load_cert_chain(self.server_certificate_path, path)
            path = self.certificate_path
            context.load_verify_locations(path)
        except ssl.SSLError as error:
            raise BrokenFileError(path, "cannot be used for TLS", self._advice) from error
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _create_missing(self) -> _Pair:
        # NB: clients that hold the former CA will reject this server.
        if self.server_certificate_path.exists():
            _log.warning("CA was missing, new CA created", file=str(self.certificate_path))
        return self._create()

    def _create(self) -> _Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("keepclose-ca")
        usage = _key_usage(signs_certificates=True)
        builder = (
            self._builder(subject, key.public_key(), lifetime=CA_LIFETIME)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        pair = _Pair(builder.sign(key, hashes.SHA256()), key)
        self._write_pair("ca", pair)
        return pair

    def _sign(
        self,
        subject: x509.Name,
        *,
        usage: x509.ObjectIdentifier,
        names: Sequence[x509.GeneralName] = (),
    ) -> _Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._pair
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
        builder = (
            self._builder(subject, key.public_key(), lifetime=LEAF_LIFETIME)
            .issuer_name(issuer.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(signer, critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _Pair(builder.sign(issuer.key, hashes.SHA256()), key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, lifetime: timedelta
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _TOLERANCE)
            .not_valid_after(self._now + lifetime)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def _is_current(self, certificate: x509.Certificate, names: Sequence[x509.GeneralName]) -> bool:
        try:
            certificate.verify_directly_issued_by(self._pair.certificate)
            alternative_names = certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            )
        except (
            InvalidSignature,
            UnsupportedAlgorithm,
            ValueError,
            TypeError,
            x509.ExtensionNotFound,
        ):
            return False
        is_valid = certificate.not_valid_before_utc <= self._now
        return (
            set(names) <= set(alternative_names.value)
            and is_valid
            and not self._expires_soon(certificate)
        )

    def _reject_future(self, certificate: x509.Certificate) -> None:
        start = certificate.not_valid_before_utc
        if start > self._now:
            raise BrokenFileError(
                self.certificate_path,
                f"is valid only from {start:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
                f"{self._now:%Y-%m-%d %H:%M}",
                f"set the clock, or remove {self._directory} to create all certificates again",
            )

    def _expires_soon(self, certificate: x509.Certificate) -> bool:
        return certificate.not_valid_after_utc - self._now < _RENEWED_BEFORE

    def _read_pair(self, name: str) -> _Pair | None:
        certificate_path, key_path = self._paths(name)
        certificate_pem, key_pem = read_private(certificate_path), read_private(key_path)
        # NB: the key is written first, so a key without a certificate was never used.
        if certificate_pem is None:
            return None
        advice = self._advice
        if key_pem is None:
            raise BrokenFileError(key_path, "is missing", advice)
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            # NB: `cryptography` decodes lazily, so damage shows only when a part is read.
            public_key, _ = certificate.public_key(), certificate.extensions
        except _UNREADABLE as error:
            raise BrokenFileError(certificate_path, "holds no certificate", advice) from error
        try:
            key = serialization.load_pem_private_key(key_pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BrokenFileError(key_path, "holds no private key", advice) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BrokenFileError(key_path, "holds a key that is not an elliptic curve key", advice)
        if key.public_key() != public_key:
            raise BrokenFileError(key_path, f"does not match {certificate_path.name}", advice)
        return _Pair(certificate, key)

    def _check_authority(self) -> None:
        """Reject a CA that does not match its signature: clients hold the intact one."""
        certificate = self._pair.certificate
        try:
            certificate.verify_directly_issued_by(certificate)
        except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm) as error:
            problem = "is damaged: it does not match its own signature"
            raise BrokenFileError(self.certificate_path, problem, self._advice) from error

    def _write_pair(self, name: str, pair: _Pair) -> None:
        certificate_path, key_path = self._paths(name)
        # The old certificate is removed first: a key without one, left by a crash, is replaced.
        remove_private(certificate_path)
        write_private(key_path, _key_pem(pair.key))
        write_private(certificate_path, _certificate_pem(pair.certificate))

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self._directory / f"{name}.crt", self._directory / f"{name}.key"


def _subject(common_name: str, organisations: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [
            *(
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)
                for organisation in organisations
            ),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if dns1123_subdomain(host.lower().removeprefix("*.")):
        raise InvalidHostError(f"{host!r} is neither a host name nor an address")
    return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def write_kubeconfigs(
    directory: Path, tokens: Tokens, *, server: str, ca: bytes | None
) -> dict[UserRole, Path]:
    """Write the kubeconfig of every role and return the paths.

    `server` is the address with its scheme; `ca` is the CA as PEM, None for plain HTTP.
    """
    paths: dict[UserRole, Path] = {}
    for role in UserRole:
        name = "kubeconfig" if role is UserRole.ADMIN else f"{role}.kubeconfig"
        paths[role] = directory / name
        text = render_kubeconfig(
            server=server, ca=ca, user=role_user(role).name, token=tokens.of_role(role)
        )
        _write_if_changed(paths[role], text)
    return paths


def write_node_kubeconfig(
    directory: Path, tokens: Tokens, node_name: str, *, server: str, ca: bytes | None
) -> Path:
    """Write the kubeconfig of a node, whose token is created if missing, and return the path."""
    token = tokens.of_node(node_name)
    path = directory / f"node-{node_name}.kubeconfig"
    _write_if_changed(
        path, render_kubeconfig(server=server, ca=ca, user=NODE_PREFIX + node_name, token=token)
    )
    return path


def render_kubeconfig(*, server: str, ca: bytes | None, user: str, token: str) -> str:
    """Return a kubeconfig with one cluster, one user and one context."""
    cluster = {"server": server}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": CLUSTER,
    }
    return yaml.safe_dump(document, sort_keys=False, width=2**20)


def _write_if_changed(path: Path, text: str) -> None:
    content = text.encode()
    create_private_directory(path.parent)
    if read_private(path) != content:
        write_private(path, content)

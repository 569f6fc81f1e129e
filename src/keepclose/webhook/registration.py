"""The MutatingWebhookConfiguration by which API servers find the webhook, and its certificates.

Its scope is minimal: creates and updates of slices that the built-in controller manages. The
failure policy is Ignore, so that a failing webhook never blocks a write. The configuration stays
when the webhook stops; slices are then written without its hints until a replica is back.

The serving certificate of a webhook: from files, or generated and shared through a Secret. API
servers require TLS, and the registration names the CA to trust, so a CA of its own is as good as
any. A generated certificate is valid for ten years. A webhook that starts generates it again, with
its CA, when it is unreadable, near its expiry or for other names. Only generating needs
`cryptography`.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from binascii import Error as Base64Error
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import AlreadyExists, ConfigError, Conflict, KubeError, NotFound
from keepclose.kube.requests import MUTATING_WEBHOOKS, SECRETS
from keepclose.model.well_known import MANAGED_BY_LABEL, SERVICE_NAME_LABEL
from keepclose.system.files import MAX_SETTINGS_BYTES, read_input
from keepclose.webhook.settings import WEBHOOK_PATH, WebhookSettings

CONFIGURATION: Final = "keepclose-hints"
WEBHOOK: Final = "hints.keepclose.dev"
TIMEOUT_S: Final = 2
CHECK_S: Final = 60.0
# How often the pair is read again because another replica wrote it first.
_ATTEMPTS: Final = 5
_log = structlog.get_logger(__name__)
SECRET: Final = "keepclose-webhook-tls"  # noqa: S105 - the name of one
LIFETIME: Final = timedelta(days=3652)
RENEWED_BEFORE: Final = timedelta(days=90)
_TOLERANCE: Final = timedelta(minutes=5)
_CRYPTOGRAPHY_MISSING: Final = (
    "cryptography is not installed; a webhook that generates its own certificate needs: "
    "pip install cryptography. Otherwise give --webhook-tls-cert-file and "
    "--webhook-tls-private-key-file"
)


def make_configuration(settings: WebhookSettings, *, managed_by: str, ca: bytes) -> dict[str, Any]:
    """Return the configuration; without a CA another component must inject the CA bundle."""
    client_config: dict[str, Any]
    if settings.service is not None:
        target = settings.service
        service = {"namespace": target.namespace, "name": target.name, "port": target.port}
        client_config = {"service": {**service, "path": WEBHOOK_PATH}}
    else:
        client_config = {
            "url": settings.url.removesuffix("/").removesuffix(WEBHOOK_PATH) + WEBHOOK_PATH
        }
    if ca:
        client_config["caBundle"] = base64.b64encode(ca).decode()
    namespaces = {"matchLabels": settings.namespace_labels} if settings.namespace_labels else {}
    webhook = {
        "name": WEBHOOK,
        "clientConfig": client_config,
        "rules": [
            {
                "operations": ["CREATE", "UPDATE"],
                "apiGroups": ["discovery.k8s.io"],
                "apiVersions": ["v1"],
                "resources": ["endpointslices"],
                "scope": "Namespaced",
            }
        ],
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespaces,
        "objectSelector": {
            "matchLabels": {MANAGED_BY_LABEL: managed_by},
            "matchExpressions": [{"key": SERVICE_NAME_LABEL, "operator": "Exists"}],
        },
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_S,
        "admissionReviewVersions": ["v1"],
        "reinvocationPolicy": "IfNeeded",
    }
    return {
        "apiVersion": MUTATING_WEBHOOKS.api_version,
        "kind": MUTATING_WEBHOOKS.kind,
        "metadata": {"name": CONFIGURATION},
        "webhooks": [webhook],
    }


class Registration:
    """Reconciles the configuration."""

    def __init__(
        self, client: Client, settings: WebhookSettings, *, managed_by: str, clock: Clock
    ) -> None:
        self._client = client
        self._settings = settings
        self._managed_by = managed_by
        self._clock = clock
        self.ca = b""
        """The CA certificates that API servers must trust, as PEM."""

    async def ensure(self) -> bool:
        """Create or correct the configuration; return whether that took a write."""
        desired = make_configuration(self._settings, managed_by=self._managed_by, ca=self.ca)
        try:
            present = await self._client.get(MUTATING_WEBHOOKS, CONFIGURATION)
        except NotFound:
            try:
                await self._client.create(MUTATING_WEBHOOKS, desired)
            except AlreadyExists:
                return False
            return True
        if not self.ca:
            _keep_bundle(present, desired)
        if present.get("webhooks") == desired["webhooks"]:
            return False
        try:
            await self._client.update_raw(
                MUTATING_WEBHOOKS, {**present, "webhooks": desired["webhooks"]}
            )
        except Conflict:
            return False
        return True

    async def keep(self) -> None:
        """Reconcile the configuration until cancelled; failures are logged and retried."""
        while self._settings.registers:
            try:
                if await self.ensure():
                    _log.info("webhook registered", configuration=CONFIGURATION)
            except KubeError as error:
                _log.warning(
                    "webhook not registered", configuration=CONFIGURATION, error=str(error)
                )
            await self._clock.sleep(CHECK_S)


def _keep_bundle(present: dict[str, Any], desired: dict[str, Any]) -> None:
    """Keep the CA bundle that another component, such as cert-manager, injected."""
    for webhook in present.get("webhooks") or ():
        bundle = webhook.get("clientConfig", {}).get("caBundle")
        if webhook.get("name") == WEBHOOK and bundle:
            desired["webhooks"][0]["clientConfig"]["caBundle"] = bundle


class ServingPair(NamedTuple):
    """A certificate with its key, and the CA that signed it, all as PEM."""

    certificate: bytes
    key: bytes
    ca: bytes


def read_pair(certificate: str, key: str, ca: str) -> ServingPair:
    """Return the pair that the files hold; without a CA file the certificate is its own CA.

    Raise ConfigError for a file that cannot be read.
    """
    read, private = _read_file(certificate), _read_file(key)
    return ServingPair(read, private, _read_file(ca) if ca else read)


def _read_file(name: str) -> bytes:
    try:
        return read_input(name, most=MAX_SETTINGS_BYTES)
    except OSError as error:
        raise ConfigError(f"the webhook's certificate: {name}: {error}") from error


def load_pair(context: ssl.SSLContext, pair: ServingPair) -> None:
    """Use the pair for new connections of the context; raise ConfigError for an invalid one."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pair.pem"
        path.touch(mode=0o600)
        path.write_bytes(pair.certificate + b"\n" + pair.key)
        try:
            # NB: a context keeps the certificate of a pair whose key it rejects, and every later
            # handshake would fail; so another context tries the pair first.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
            context.load_cert_chain(path)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"the webhook's certificate and key do not match: {error}") from error


async def ensure_pair(
    client: Client, *, namespace: str, hosts: Sequence[str], now: float
) -> ServingPair:
    """Return the pair of the Secret; generate and store it first if there is no valid one.

    Of several replicas that start at once, one generates it and the others read it. NotFound means
    that the namespace does not exist.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            secret = await client.get(SECRETS, SECRET, namespace=namespace)
        except NotFound:
            secret = {}
        pair = _read_secret(secret)
        if pair is not None and is_good(pair, hosts, now=now):
            return pair
        generated = make_pair(hosts, now=now)
        data = {
            "tls.crt": base64.b64encode(generated.certificate).decode(),
            "tls.key": base64.b64encode(generated.key).decode(),
            "ca.crt": base64.b64encode(generated.ca).decode(),
        }
        try:
            if secret:
                await client.update_raw(SECRETS, {**secret, "data": data})
            else:
                new: dict[str, Any] = {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": SECRET, "namespace": namespace},
                    "type": "kubernetes.io/tls",
                    "data": data,
                }
                await client.create(SECRETS, new, namespace=namespace)
        except (AlreadyExists, Conflict, NotFound) as error:
            is_deleted = isinstance(error, NotFound) and bool(secret)
            if attempt == _ATTEMPTS or (isinstance(error, NotFound) and not is_deleted):
                raise
            continue
        return generated
    raise AssertionError("the last attempt returns or raises")


def make_pair(hosts: Sequence[str], *, now: float) -> ServingPair:
    """Return a certificate for the hosts from a new CA; raise ConfigError without cryptography.

    The key of the CA is not kept: it signs this one certificate and no other.
    """
    try:
        from cryptography import x509  # noqa: PLC0415 - loaded only where it is needed
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(_CRYPTOGRAPHY_MISSING) from error
    moment = datetime.fromtimestamp(now, UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    def build(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - _TOLERANCE)
            .not_valid_after(moment + LIFETIME)
        )

    issuer = name("keepclose webhook authority")
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = (
        build(issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        build(name("keepclose webhook"), key)
        .add_extension(
            x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return ServingPair(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        authority.public_bytes(pem),
    )


def is_good(pair: ServingPair, hosts: Sequence[str], *, now: float) -> bool:
    """Return whether a generated pair is readable, for these hosts, and not near its expiry."""
    try:
        from cryptography import x509  # noqa: PLC0415 - loaded only where it is needed
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    except ImportError:
        # The replica that generated the pair has checked it; this one cannot.
        return True
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        authority = x509.load_pem_x509_certificate(pair.ca)
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound, ConfigError):
        return False
    certified_hosts = {str(name.value) for name in names}
    moment = datetime.fromtimestamp(now, UTC)
    # NB: a pair that was generated while the clock was ahead may not be valid for years.
    is_current = all(
        item.not_valid_before_utc <= moment < item.not_valid_after_utc - RENEWED_BEFORE
        for item in (certificate, authority)
    )
    return is_current and certified_hosts >= set(hosts)


def _read_secret(secret: dict[str, Any]) -> ServingPair | None:
    data = secret.get("data") or {}
    try:
        parts = [base64.b64decode(data[name]) for name in ("tls.crt", "tls.key", "ca.crt")]
    except (KeyError, TypeError, Base64Error):
        return None
    return ServingPair(*parts)

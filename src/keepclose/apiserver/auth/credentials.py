"""Authenticates requests by client certificate or bearer token, and reads impersonation headers.

Each role and each node has a token in a file of mode 0600, created once and then kept, so that
distributed tokens stay valid. Tokens are looked up by their SHA-256: the time of the lookup reveals
nothing about the tokens, since a client cannot steer a digest. A file that another process adds is
valid from the next request on; one that it removes is invalid within a second, because checking the
directory for every request would cost more than the rest of authentication. A token that the server
creates ends with its checksum. Without it a flipped bit would yield another valid token, and
clients with the right one would be locked out silently.

As in Kubernetes, a certificate that the CA of the server signed wins over a token; its CN is the
user and each O a group. An unknown token is rejected with 401, even where anonymous requests are
allowed. A request without credentials, or with another scheme than Bearer, is anonymous. A caller
with the right to impersonate, which administrators have, may send `Impersonate-*` headers
(`kubectl --as`); the request then has only the rights of the named user and groups. Rights follow
from groups here, so a name without groups has the rights of any authenticated user.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote
from zlib import crc32

import structlog

from keepclose.apiserver.auth.authorization import RequestAction, allowed, deny
from keepclose.apiserver.auth.users import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    RequestUser,
    UserRole,
    authenticated_user,
    node_user,
    role_user,
)
from keepclose.apiserver.status_errors import StatusError, bad_request, unauthorized
from keepclose.model.field_errors import render_value
from keepclose.model.metadata_validation import dns1123_subdomain
from keepclose.system.private_files import (
    BrokenFileError,
    PrivateDirectory,
    create_private,
    create_private_directory,
    read_private,
)

RECHECK_SECONDS: Final = 1.0
# The header that a client may repeat; the parser joins its values by GROUP_SEPARATOR.
GROUP_HEADER: Final = b"impersonate-group"
GROUP_SEPARATOR: Final = b"\n"

_NODE_FILE: Final = "node-"
_SHORTEST: Final = 16
_PREFIX: Final = "kc_"
_CREATED_TOKEN: Final = re.compile(r"kc_[A-Za-z0-9_-]{43}_[0-9a-f]{8}")
# A created token may look like this after damage to its beginning.
_DAMAGED_TOKEN: Final = re.compile(r".{46}_[0-9a-f]{8}.?")
# Two files created within one tick of the file system's clock leave the same time of the directory.
_TICK_NS: Final = 100_000_000

_IMPERSONATION_PREFIX: Final = b"impersonate-"
_USER_HEADER: Final = b"impersonate-user"
_UID_HEADER: Final = b"impersonate-uid"
_EXTRA_PREFIX: Final = b"impersonate-extra-"
_SERVICE_ACCOUNT: Final = ("system", "serviceaccount")
_SERVICE_ACCOUNTS: Final = "system:serviceaccounts"

_log = structlog.get_logger(__name__)

PeerCertificate = Mapping[str, Any]
"""A certificate as `ssl.SSLSocket.getpeercert` returns it; empty when none was verified."""


class InvalidNodeNameError(ValueError):
    """An invalid name of a node, which must not become the name of a file."""


class Tokens:
    """The tokens in a directory."""

    def __init__(self, directory: Path, *, recheck_seconds: float = RECHECK_SECONDS) -> None:
        """Create the directory and the tokens of the roles where missing, and read all tokens.

        Raises BrokenFileError for a file without a valid token, or with the token of another file.
        """
        self._directory = directory
        self._users: dict[bytes, RequestUser] = {}
        self._read_at = -1
        self._recheck_seconds = recheck_seconds
        self._valid_until = 0.0
        create_private_directory(directory)
        is_first = not any(self._files())
        for role in UserRole:
            path = directory / role
            if not is_first and _read_token(path) is None:
                _log.warning("token was missing, new token created", file=str(path))
            self.of_role(role)
        self._load()

    def of_role(self, role: UserRole) -> str:
        """Return the token of a role."""
        return self._read_or_create(self._directory / role, role_user(role))

    def of_node(self, node_name: str) -> str:
        """Return the token of a node, which the first call creates. Raises InvalidNodeNameError."""
        problems = dns1123_subdomain(node_name)
        if problems:
            raise InvalidNodeNameError(f"{node_name!r} is not a valid node name: {problems[0]}")
        path = self._directory / f"{_NODE_FILE}{node_name}"
        return self._read_or_create(path, node_user(node_name))

    def find(self, token: str) -> RequestUser | None:
        """Return the user of a token, or None."""
        digest = _digest(token)
        user = self._users.get(digest)
        now = time.monotonic()
        if user is not None and now < self._valid_until:
            return user
        try:
            if self._directory.stat().st_mtime_ns != self._read_at:
                self._load()
            self._valid_until = now + self._recheck_seconds
        except (BrokenFileError, OSError) as error:
            # The tokens read before stay valid: one bad file must not lock out all users.
            _log.warning("reading tokens failed", error=str(error))
        return self._users.get(digest)

    def _load(self) -> None:
        # NB: taken before reading, so that a file created meanwhile is read next time.
        changed_at = self._directory.stat().st_mtime_ns
        is_settled = time.time_ns() - changed_at > _TICK_NS
        self._read_at = changed_at if is_settled else -1
        users: dict[bytes, RequestUser] = {}
        # NB: the directory is opened and checked once, since there may be many node tokens.
        with PrivateDirectory.open(self._directory) as directory:
            contents = [(path, user, directory.read(path.name)) for path, user in self._files()]
        for path, user, content in contents:
            token = _parse_token(path, content)
            if token is None:
                continue
            if users.setdefault(_digest(token), user) != user:
                raise BrokenFileError(path, "holds the token of another user", "remove it")
        self._users = users

    def _files(self) -> Iterator[tuple[Path, RequestUser]]:
        for path in sorted(self._directory.iterdir()):
            if path.is_symlink() and not path.exists():
                # A dangling link holds no token; creating one in its place reports the link.
                continue
            if path.name in list(UserRole):
                yield path, role_user(UserRole(path.name))
            elif path.name.startswith(_NODE_FILE):
                yield path, node_user(path.name.removeprefix(_NODE_FILE))

    def _read_or_create(self, path: Path, user: RequestUser) -> str:
        token = _read_token(path)
        while token is None:
            created = _create_token()
            is_created = create_private(path, f"{created}\n".encode())
            token = created if is_created else _read_token(path)
        self._users[_digest(token)] = user
        return token


def _read_token(path: Path) -> str | None:
    return _parse_token(path, read_private(path))


def _parse_token(path: Path, content: bytes | None) -> str | None:
    if content is None:
        return None
    token = content.strip().decode("ascii", "replace")
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        problem = f"is not a token of {_SHORTEST} or more characters"
        raise BrokenFileError(path, problem, "remove it and a new one is created")
    is_created = token.startswith(_PREFIX) or _DAMAGED_TOKEN.fullmatch(token)
    if is_created and not (
        _CREATED_TOKEN.fullmatch(token) and token.endswith(_checksum(token[:-9]))
    ):
        problem = "is damaged: the token does not match its checksum"
        fix = "put the right one back, or remove it and a new one is created"
        raise BrokenFileError(path, problem, fix)
    return token


def _create_token() -> str:
    body = f"{_PREFIX}{secrets.token_urlsafe(32)}"
    return f"{body}_{_checksum(body)}"


def _checksum(body: str) -> str:
    return f"{crc32(body.encode()):08x}"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class TokenSource(Protocol):
    """Looks up the users of tokens."""

    def find(self, token: str) -> RequestUser | None:
        """Return the user of a token, or None."""
        ...


def authenticate(
    headers: Mapping[str, str],
    peer_certificate: PeerCertificate | None,
    *,
    tokens: TokenSource,
) -> RequestUser | StatusError:
    """Return the user of the request, or the error for an unknown token.

    The TLS layer must have verified the certificate against the CA of the server. The header is
    looked up as `Authorization`; pass a mapping that ignores case.
    """
    user = certificate_user(peer_certificate or {})
    if user is not None:
        return user
    token = bearer_token(headers.get("Authorization", ""))
    if not token:
        return ANONYMOUS
    return tokens.find(token) or unauthorized()


def certificate_user(certificate: PeerCertificate) -> RequestUser | None:
    """Return the user that a verified certificate names, or None without a name."""
    names: list[str] = []
    groups: list[str] = []
    for relative_name in certificate.get("subject", ()):
        for attribute, value in relative_name:
            if attribute == "commonName":
                names.append(value)
            elif attribute == "organizationName":
                groups.append(value)
    # NB: of several names the last one counts, as in Go.
    return authenticated_user(names[-1], *groups) if names and names[-1] else None


def bearer_token(authorization: str) -> str:
    """Return the token in the header, or an empty string."""
    # NB: `strip` without arguments also strips bytes beyond ASCII, which belong to the token.
    scheme, _, rest = authorization.strip(" \t").partition(" ")
    return rest.partition(" ")[0] if scheme.lower() == "bearer" else ""


class Impersonation(NamedTuple):
    """The user and the groups that a request impersonates."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def service_account(self) -> tuple[str, str] | None:
        """Namespace and name of the ServiceAccount, None for another user."""
        parts = self.name.split(":")
        if tuple(parts[:2]) != _SERVICE_ACCOUNT or len(parts) != 4 or not all(parts):
            return None
        return parts[2], parts[3]


def read_impersonation(headers: Mapping[bytes, bytes]) -> Impersonation | None:
    """Return the user and groups in the headers, None without impersonation.

    Raises StatusError for headers that name groups, a UID or other attributes but no user. Header
    names are lower case.
    """
    if not any(name.startswith(_IMPERSONATION_PREFIX) for name in headers):
        return None
    name = headers.get(_USER_HEADER, b"").decode("latin-1")
    joined = headers.get(GROUP_HEADER)
    groups = () if joined is None else tuple(joined.decode("latin-1").split("\n"))
    if name:
        return Impersonation(name, groups)
    uid = headers.get(_UID_HEADER, b"").decode("latin-1")
    extra = _read_extra(headers)
    if joined is None and not uid and not extra:
        return None
    requested = (
        f'&user.DefaultInfo{{Name:"", UID:{render_value(uid)}, '
        f"Groups:{_format_strings(groups) if groups else '[]string(nil)'}, "
        f"Extra:map[string][]string{extra or '(nil)'}}}"
    )
    raise bad_request(f"requested {requested} without impersonating a user name")


def _read_extra(headers: Mapping[bytes, bytes]) -> str:
    """Return the extra attributes in the headers as Go formats a map; "" without any."""
    values = {
        unquote(name.removeprefix(_EXTRA_PREFIX).decode("latin-1")): value.decode("latin-1")
        for name, value in headers.items()
        if name.startswith(_EXTRA_PREFIX)
    }
    items = [f"{render_value(key)}:{_format_strings((values[key],))}" for key in sorted(values)]
    return f"{{{', '.join(items)}}}" if items else ""


def _format_strings(values: Iterable[str]) -> str:
    return f"[]string{{{', '.join(map(render_value, values))}}}"


def impersonate(caller: RequestUser, target: Impersonation) -> RequestUser:
    """Return the impersonated user. Raises StatusError unless the caller may impersonate it."""
    account = target.service_account
    if account is None:
        _check(caller, RequestAction("impersonate", resource="users", name=target.name))
    else:
        namespace, name = account
        resource = "serviceaccounts"
        _check(
            caller, RequestAction("impersonate", resource=resource, namespace=namespace, name=name)
        )
    for group in target.groups:
        _check(caller, RequestAction("impersonate", resource="groups", name=group))
    groups = target.groups
    if account is not None and not groups:
        groups = (_SERVICE_ACCOUNTS, f"{_SERVICE_ACCOUNTS}:{account[0]}")
    if target.name == ANONYMOUS.name:
        missing = UNAUTHENTICATED not in groups
        return RequestUser(target.name, (*groups, UNAUTHENTICATED) if missing else groups)
    missing = AUTHENTICATED not in groups and UNAUTHENTICATED not in groups
    return RequestUser(target.name, (*groups, AUTHENTICATED) if missing else groups)


def _check(caller: RequestUser, action: RequestAction) -> None:
    if not allowed(caller, action).allowed:
        raise deny(caller, action)

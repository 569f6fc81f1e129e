"""Bearer tokens: one a role and one a node, each in a file that its owner alone can read.

A file is made once and then kept, so that what was handed out stays good. Tokens are found by
their SHA-256: how long that takes tells nothing about the tokens there are, since nobody can steer
a digest. Another process may add a file, which counts from the next request on, or remove one,
which counts within a second: looking at the directory for every request would cost more than the
rest of finding out who calls.

A token that is made here ends with its own checksum. Without it a flipped bit would make another
token of the same form, and clients that hold the right one would be locked out without a word.
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

from keepclose.apiserver.auth.authorization import RequestAction, allowed, why_refused
from keepclose.apiserver.auth.users import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    RequestUser,
    UserRole,
    known_user,
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
    make_private_directory,
    read_private,
)

RECHECK_SECONDS: Final = 1.0
_NODE_FILE: Final = "node-"
_SHORTEST: Final = 16
_PREFIX: Final = "kc_"
_OURS: Final = re.compile(r"kc_[A-Za-z0-9_-]{43}_[0-9a-f]{8}")
# What a token of ours can look like after damage to its beginning.
_MAYBE_OURS: Final = re.compile(r".{46}_[0-9a-f]{8}.?")
# Files that come within one tick of the file system's clock leave no trace in the directory's time.
_TICK_NS: Final = 100_000_000
_log = structlog.get_logger(__name__)
PeerCertificate = Mapping[str, Any]
"""A certificate as `ssl.SSLSocket.getpeercert` returns it; empty when none was verified."""
GROUP_HEADER: Final = b"impersonate-group"
"""The header that may be repeated; its values are joined by GROUP_SEPARATOR."""
GROUP_SEPARATOR: Final = b"\n"

_IMPERSONATION_PREFIX: Final = b"impersonate-"
_USER_HEADER: Final = b"impersonate-user"
_UID_HEADER: Final = b"impersonate-uid"
_EXTRA_PREFIX: Final = b"impersonate-extra-"
_SERVICE_ACCOUNT: Final = ("system", "serviceaccount")
_SERVICE_ACCOUNTS: Final = "system:serviceaccounts"


class InvalidNodeNameError(ValueError):
    """A name that no node can have, and that therefore names no file."""


class Tokens:
    """The tokens in a directory."""

    def __init__(self, directory: Path, *, recheck_seconds: float = RECHECK_SECONDS) -> None:
        """Make the directory and the roles' tokens where they are missing, and read them all.

        Raises BrokenFileError for a file that holds no token, or one that another file holds.
        """
        self._directory = directory
        self._users: dict[bytes, RequestUser] = {}
        self._read_at = -1
        self._recheck_seconds = recheck_seconds
        self._good_until = 0.0
        make_private_directory(directory)
        is_first = not any(self._files())
        for role in UserRole:
            path = directory / role
            if not is_first and _read(path) is None:
                _log.warning("the token was missing, a new one is made", file=str(path))
            self.of_role(role)
        self._load()

    def of_role(self, role: UserRole) -> str:
        """Return the token of a role."""
        return self._keep_or_make(self._directory / role, role_user(role))

    def of_node(self, node_name: str) -> str:
        """Return the token of a node, which is made at the first call."""
        problems = dns1123_subdomain(node_name)
        if problems:
            raise InvalidNodeNameError(f"{node_name!r} is no name of a node: {problems[0]}")
        path = self._directory / f"{_NODE_FILE}{node_name}"
        return self._keep_or_make(path, node_user(node_name))

    def find(self, token: str) -> RequestUser | None:
        """Return whose token it is, or None."""
        digest = _digest(token)
        user = self._users.get(digest)
        now = time.monotonic()
        if user is not None and now < self._good_until:
            return user
        try:
            if self._directory.stat().st_mtime_ns != self._read_at:
                self._load()
            self._good_until = now + self._recheck_seconds
        except (BrokenFileError, OSError) as error:
            # What was read before still holds: one bad file must not lock everybody out.
            _log.warning("tokens not read again", error=str(error))
        return self._users.get(digest)

    def _load(self) -> None:
        # NB: taken before reading, so that a file that comes meanwhile is read next time.
        changed_at = self._directory.stat().st_mtime_ns
        is_settled = time.time_ns() - changed_at > _TICK_NS
        self._read_at = changed_at if is_settled else -1
        users: dict[bytes, RequestUser] = {}
        # NB: opened and looked at once, since there may be a file for each of many nodes.
        with PrivateDirectory.open(self._directory) as directory:
            contents = [(path, user, directory.read(path.name)) for path, user in self._files()]
        for path, user, content in contents:
            token = _parse(path, content)
            if token is None:
                continue
            if users.setdefault(_digest(token), user) != user:
                raise BrokenFileError(path, "holds the token of another user", "remove it")
        self._users = users

    def _files(self) -> Iterator[tuple[Path, RequestUser]]:
        for path in sorted(self._directory.iterdir()):
            if path.is_symlink() and not path.exists():
                # A link to nowhere holds no token; making one in its place names it.
                continue
            if path.name in list(UserRole):
                yield path, role_user(UserRole(path.name))
            elif path.name.startswith(_NODE_FILE):
                yield path, node_user(path.name.removeprefix(_NODE_FILE))

    def _keep_or_make(self, path: Path, user: RequestUser) -> str:
        token = _read(path)
        while token is None:
            made = _make()
            is_ours = create_private(path, f"{made}\n".encode())
            token = made if is_ours else _read(path)
        self._users[_digest(token)] = user
        return token


def _read(path: Path) -> str | None:
    return _parse(path, read_private(path))


def _parse(path: Path, content: bytes | None) -> str | None:
    if content is None:
        return None
    token = content.strip().decode("ascii", "replace")
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        problem = f"is no token of {_SHORTEST} or more characters"
        raise BrokenFileError(path, problem, "remove it and a new one is made")
    is_ours = token.startswith(_PREFIX) or _MAYBE_OURS.fullmatch(token)
    if is_ours and not (_OURS.fullmatch(token) and token.endswith(_checksum(token[:-9]))):
        problem = "is damaged: the token does not fit its checksum"
        fix = "put the right one back, or remove it and a new one is made"
        raise BrokenFileError(path, problem, fix)
    return token


def _make() -> str:
    body = f"{_PREFIX}{secrets.token_urlsafe(32)}"
    return f"{body}_{_checksum(body)}"


def _checksum(body: str) -> str:
    return f"{crc32(body.encode()):08x}"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class TokenSource(Protocol):
    """Who knows whose a token is."""

    def find(self, token: str) -> RequestUser | None:
        """Return whose token it is, or None."""
        ...


def authenticate(
    headers: Mapping[str, str],
    peer_certificate: PeerCertificate | None,
    *,
    tokens: TokenSource,
) -> RequestUser | StatusError:
    """Return who sends the request, or the refusal of a wrong token.

    The certificate must have been verified against our CA by the TLS layer already. Header names
    are looked up as `Authorization`; pass a mapping that ignores their case.
    """
    user = certified_user(peer_certificate or {})
    if user is not None:
        return user
    token = bearer_token(headers.get("Authorization", ""))
    if not token:
        return ANONYMOUS
    return tokens.find(token) or unauthorized()


def certified_user(certificate: PeerCertificate) -> RequestUser | None:
    """Return whom a verified certificate names, or None when it names nobody."""
    names: list[str] = []
    groups: list[str] = []
    for relative_name in certificate.get("subject", ()):
        for attribute, value in relative_name:
            if attribute == "commonName":
                names.append(value)
            elif attribute == "organizationName":
                groups.append(value)
    # NB: of several names the last one counts, as in Go.
    return known_user(names[-1], *groups) if names and names[-1] else None


def bearer_token(authorization: str) -> str:
    """Return the token in the header, or an empty text."""
    # NB: `strip` alone takes bytes beyond ASCII away, which belong to the token.
    scheme, _, rest = authorization.strip(" \t").partition(" ")
    return rest.partition(" ")[0] if scheme.lower() == "bearer" else ""


class Impersonation(NamedTuple):
    """Whom a request wants to be taken for."""

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
    """Return whom the headers name, None when they name no user.

    Raises Failure for headers that name groups, a UID or other attributes and no user. Header
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
    wanted = (
        f'&user.DefaultInfo{{Name:"", UID:{render_value(uid)}, '
        f"Groups:{_list_texts(groups) if groups else '[]string(nil)'}, "
        f"Extra:map[string][]string{extra or '(nil)'}}}"
    )
    raise bad_request(f"requested {wanted} without impersonating a user name")


def _read_extra(headers: Mapping[bytes, bytes]) -> str:
    """Return the further attributes that headers name, as Go writes a map; "" without any."""
    values = {
        unquote(name.removeprefix(_EXTRA_PREFIX).decode("latin-1")): value.decode("latin-1")
        for name, value in headers.items()
        if name.startswith(_EXTRA_PREFIX)
    }
    texts = [f"{render_value(key)}:{_list_texts((values[key],))}" for key in sorted(values)]
    return f"{{{', '.join(texts)}}}" if texts else ""


def _list_texts(texts: Iterable[str]) -> str:
    return f"[]string{{{', '.join(map(render_value, texts))}}}"


def impersonate(caller: RequestUser, wanted: Impersonation) -> RequestUser:
    """Return the user whose rights the request has; raises Failure where the caller may not."""
    account = wanted.service_account
    if account is None:
        _check(caller, RequestAction("impersonate", resource="users", name=wanted.name))
    else:
        namespace, name = account
        resource = "serviceaccounts"
        _check(
            caller, RequestAction("impersonate", resource=resource, namespace=namespace, name=name)
        )
    for group in wanted.groups:
        _check(caller, RequestAction("impersonate", resource="groups", name=group))
    groups = wanted.groups
    if account is not None and not groups:
        groups = (_SERVICE_ACCOUNTS, f"{_SERVICE_ACCOUNTS}:{account[0]}")
    if wanted.name == ANONYMOUS.name:
        missing = UNAUTHENTICATED not in groups
        return RequestUser(wanted.name, (*groups, UNAUTHENTICATED) if missing else groups)
    missing = AUTHENTICATED not in groups and UNAUTHENTICATED not in groups
    return RequestUser(wanted.name, (*groups, AUTHENTICATED) if missing else groups)


def _check(caller: RequestUser, action: RequestAction) -> None:
    if not allowed(caller, action).allowed:
        raise why_refused(caller, action)

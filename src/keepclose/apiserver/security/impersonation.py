"""Requests that are made as another user: `kubectl --as`, by the headers `Impersonate-*`.

As in Kubernetes: the caller must be allowed to impersonate, which administrators are; then the
request has the rights of the named user and of the named groups, and of no others. What a user may
do follows from groups here, so a name without groups has the rights of any authenticated user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from keepclose.apiserver.auth.authorization import Action, allowed, refusal
from keepclose.apiserver.auth.users import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User
from keepclose.apiserver.status_errors import bad_request
from keepclose.model.field_errors import render_value

GROUP_HEADER: Final = b"impersonate-group"
"""The header that may be repeated; its values are joined by GROUP_SEPARATOR."""
GROUP_SEPARATOR: Final = b"\n"

_PREFIX: Final = b"impersonate-"
_USER_HEADER: Final = b"impersonate-user"
_UID_HEADER: Final = b"impersonate-uid"
_EXTRA_PREFIX: Final = b"impersonate-extra-"
_SERVICE_ACCOUNT: Final = ("system", "serviceaccount")
_SERVICE_ACCOUNTS: Final = "system:serviceaccounts"


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
    if not any(name.startswith(_PREFIX) for name in headers):
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


def impersonate(caller: User, wanted: Impersonation) -> User:
    """Return the user whose rights the request has; raises Failure where the caller may not."""
    account = wanted.service_account
    if account is None:
        _check(caller, Action("impersonate", resource="users", name=wanted.name))
    else:
        namespace, name = account
        resource = "serviceaccounts"
        _check(caller, Action("impersonate", resource=resource, namespace=namespace, name=name))
    for group in wanted.groups:
        _check(caller, Action("impersonate", resource="groups", name=group))
    groups = wanted.groups
    if account is not None and not groups:
        groups = (_SERVICE_ACCOUNTS, f"{_SERVICE_ACCOUNTS}:{account[0]}")
    if wanted.name == ANONYMOUS.name:
        missing = UNAUTHENTICATED not in groups
        return User(wanted.name, (*groups, UNAUTHENTICATED) if missing else groups)
    missing = AUTHENTICATED not in groups and UNAUTHENTICATED not in groups
    return User(wanted.name, (*groups, AUTHENTICATED) if missing else groups)


def _check(caller: User, action: Action) -> None:
    if not allowed(caller, action).allowed:
        raise refusal(caller, action)

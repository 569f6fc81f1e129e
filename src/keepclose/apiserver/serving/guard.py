"""The door: finds out who calls and refuses what they may not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keepclose.apiserver.auth.authorization import Action, allowed, may_create_some, refusal
from keepclose.apiserver.auth.users import ANONYMOUS, MASTERS, User
from keepclose.apiserver.http.messages import Request
from keepclose.apiserver.security.authentication import TokenSource, authenticate
from keepclose.apiserver.security.impersonation import impersonate, read_impersonation
from keepclose.apiserver.security.write_rights import WriteRights
from keepclose.apiserver.serving.targets import Target
from keepclose.apiserver.status_errors import Failure

_NO_HEADERS: Final[Mapping[str, str]] = {}


class Guard:
    """Admits requests by token or client certificate."""

    def __init__(self, tokens: TokenSource) -> None:
        """Hold the tokens that count."""
        self._tokens = tokens

    def admit(self, request: Request, verb: str, target: Target | None) -> User:
        """Return whose request may go on; raise Failure where it may not.

        The request is given the rights that its write is checked against: which object a create
        is about, and whether an update or an apply creates one, is not known before its body is
        read.
        """
        user = self.user_of(request)
        if MASTERS in user.groups:
            return user
        action = _action(request, verb, target)
        if not (allowed(user, action).allowed or may_create_some(user, action)):
            raise refusal(user, action)
        request.rights = WriteRights(user, action)
        return user

    def user_of(self, request: Request) -> User:
        """Return whose rights the request has: who calls, or whom it is allowed to impersonate."""
        caller = self._caller_of(request)
        wanted = read_impersonation(request.headers)
        return caller if wanted is None else impersonate(caller, wanted)

    def knows(self, request: Request) -> bool:
        """Return whether the request has valid credentials."""
        try:
            return self._caller_of(request) is not ANONYMOUS
        except Failure:
            return False

    def _caller_of(self, request: Request) -> User:
        authorization = request.headers.get(b"authorization")
        if authorization is None and request.peer is None:
            return ANONYMOUS
        headers = (
            _NO_HEADERS
            if authorization is None
            else {"Authorization": authorization.decode("latin-1")}
        )
        user = authenticate(headers, request.peer, tokens=self._tokens)
        if isinstance(user, Failure):
            raise user
        if user is not ANONYMOUS:
            request.caller = user.name
        return user


def _action(request: Request, verb: str, target: Target | None) -> Action:
    if target is None:
        return Action(verb, path=request.path)
    return Action(
        verb,
        group=target.resource.group,
        resource=target.resource.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name,
    )

"""Authenticates and authorizes requests, and answers the reviews of the caller's own rights.

A review is posted by `kubectl auth can-i`, its `--list`, or `kubectl auth whoami`. It is answered
and never stored. The same rules decide reviews and requests, so a review holds for the request that
follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from keepclose.apiserver.auth.authorization import (
    RequestAction,
    WriteRights,
    allowed,
    deny,
    list_rules,
    may_create_unnamed,
)
from keepclose.apiserver.auth.credentials import (
    TokenSource,
    authenticate,
    impersonate,
    read_impersonation,
)
from keepclose.apiserver.auth.users import ANONYMOUS, MASTERS, RequestUser
from keepclose.apiserver.schema.findings import json_type_name
from keepclose.apiserver.serving.http_messages import HttpRequest, HttpResponse
from keepclose.apiserver.serving.options import RequestTarget
from keepclose.apiserver.serving.request_bodies import media_type_of, read_values
from keepclose.apiserver.status_errors import StatusError, bad_request
from keepclose.model.json_values import JsonObject

_NO_HEADERS: Final[Mapping[str, str]] = {}
_ACCESS_REVIEW: Final = "SelfSubjectAccessReview"
_RULES_REVIEW: Final = "SelfSubjectRulesReview"
_RESOURCE_ATTRIBUTES: Final = ("verb", "group", "resource", "subresource", "namespace", "name")


class Guard:
    """Authenticates requests by token or client certificate, and authorizes them."""

    def __init__(self, tokens: TokenSource) -> None:
        """Hold the valid tokens."""
        self._tokens = tokens

    def admit(self, request: HttpRequest, verb: str, target: RequestTarget | None) -> RequestUser:
        """Return the user of an authorized request. Raises StatusError for another.

        The request gets the rights against which its write is checked later: the body must be
        decoded to know which object a create names, and whether an update or an apply creates one.
        """
        user = self.user_of(request)
        if MASTERS in user.groups:
            return user
        action = _action(request, verb, target)
        if not (allowed(user, action).allowed or may_create_unnamed(user, action)):
            raise deny(user, action)
        request.rights = WriteRights(user, action)
        return user

    def user_of(self, request: HttpRequest) -> RequestUser:
        """Return the user whose rights the request has: the caller, or the impersonated user."""
        caller = self._caller_of(request)
        impersonation = read_impersonation(request.headers)
        return caller if impersonation is None else impersonate(caller, impersonation)

    def has_credentials(self, request: HttpRequest) -> bool:
        """Return whether the request has valid credentials."""
        try:
            return self._caller_of(request) is not ANONYMOUS
        except StatusError:
            return False

    def _caller_of(self, request: HttpRequest) -> RequestUser:
        authorization = request.headers.get(b"authorization")
        if authorization is None and request.peer is None:
            return ANONYMOUS
        headers = (
            _NO_HEADERS
            if authorization is None
            else {"Authorization": authorization.decode("latin-1")}
        )
        user = authenticate(headers, request.peer, tokens=self._tokens)
        if isinstance(user, StatusError):
            raise user
        if user is not ANONYMOUS:
            request.caller = user.name
        return user


def _action(request: HttpRequest, verb: str, target: RequestTarget | None) -> RequestAction:
    if target is None:
        return RequestAction(verb, path=request.path)
    return RequestAction(
        verb,
        group=target.resource.group,
        resource=target.resource.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name,
    )


def review_access(user: RequestUser, review: JsonObject) -> JsonObject:
    """Answer a SelfSubjectAccessReview: whether the user may do the action, and by which rule.

    A create that a rule allows for one name only is denied when the review has no name.
    """
    spec_type = f"{_ACCESS_REVIEW}Spec"
    spec = _read_part(review, _ACCESS_REVIEW, ("spec",), spec_type)
    attributes = _read_part(spec, spec_type, ("spec", "resourceAttributes"), "ResourceAttributes")
    path = _read_part(spec, spec_type, ("spec", "nonResourceAttributes"), "NonResourceAttributes")
    _check_strings(attributes, "resourceAttributes", _RESOURCE_ATTRIBUTES)
    _check_strings(path, "nonResourceAttributes", ("verb", "path"))
    if bool(attributes) is bool(path):
        raise bad_request(
            "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        )
    if path:
        action = RequestAction(path.get("verb") or "", path=path.get("path") or "")
    else:
        action = RequestAction(
            attributes.get("verb") or "",
            group=attributes.get("group") or "",
            resource=attributes.get("resource") or "",
            subresource=attributes.get("subresource") or "",
            namespace=attributes.get("namespace") or "",
            name=attributes.get("name") or "",
        )
    decision = allowed(user, action, {"metadata": {"name": action.name}})
    status: JsonObject = {"allowed": decision.allowed}
    if decision.reason:
        status["reason"] = decision.reason
    return {"spec": spec, "status": status}


def review_rules(user: RequestUser, review: JsonObject) -> JsonObject:
    """Answer a SelfSubjectRulesReview: what the user may do in the namespace."""
    spec = _read_part(review, _RULES_REVIEW, ("spec",), f"{_RULES_REVIEW}Spec")
    namespace = spec.get("namespace") or ""
    if not isinstance(namespace, str):
        raise _wrong_type(namespace, f"{_RULES_REVIEW}Spec", ("spec", "namespace"), "string")
    if not namespace:
        raise bad_request("no namespace on request")
    rules = list_rules(user, namespace)
    status = {
        "resourceRules": [
            {"verbs": rule.verbs, "apiGroups": [rule.group], "resources": [rule.resource]}
            | ({"resourceNames": [rule.name]} if rule.name else {})
            for rule in rules
            if rule.resource
        ],
        "nonResourceRules": [
            {"verbs": rule.verbs, "nonResourceURLs": rule.paths} for rule in rules if rule.paths
        ],
        "incomplete": False,
    }
    return {"spec": {}, "status": status}


def _read_part(value: JsonObject, struct: str, path: tuple[str, ...], kind: str) -> JsonObject:
    """Return the object at the last name of a path, {} when absent."""
    part = value.get(path[-1])
    if not isinstance(part, dict | None):
        raise _wrong_type(part, struct, path, f"v1.{kind}")
    return part or {}


def _check_strings(attributes: JsonObject, field: str, names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(attributes.get(name), str | None):
            struct = field[0].upper() + field[1:]
            raise _wrong_type(attributes[name], struct, ("spec", field, name), "string")


def _wrong_type(value: object, struct: str, path: tuple[str, ...], expected: str) -> StatusError:
    kind = _RULES_REVIEW if struct.startswith(_RULES_REVIEW) else _ACCESS_REVIEW
    return bad_request(
        f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal '
        f"{json_type_name(value)} into Go struct field {struct}.{'.'.join(path)} of type {expected}"
    )


def review_user(user: RequestUser, review: JsonObject) -> JsonObject:
    """Answer a SelfSubjectReview: the name and the groups of the user."""
    del review
    return {"status": {"userInfo": {"username": user.name, "groups": sorted(user.groups)}}}


_Reviewer = Callable[[RequestUser, JsonObject], JsonObject]
_REVIEWS: Final[dict[str, tuple[str, str, _Reviewer]]] = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": (
        "authorization.k8s.io/v1",
        _ACCESS_REVIEW,
        review_access,
    ),
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": (
        "authorization.k8s.io/v1",
        _RULES_REVIEW,
        review_rules,
    ),
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": (
        "authentication.k8s.io/v1",
        "SelfSubjectReview",
        review_user,
    ),
}


def is_review(path: str) -> bool:
    """Return whether the path is that of a review."""
    return path in _REVIEWS


def respond_review(request: HttpRequest, user: RequestUser) -> HttpResponse:
    """Return the response to a review of the user. Raises StatusError for a malformed one."""
    api_version, kind, review_for = _REVIEWS[request.path]
    review = read_values(request.body, media_type_of(request.header(b"content-type")), kind)
    reviewed = review_for(user, review)
    head = {"kind": kind, "apiVersion": api_version, "metadata": {}}
    return HttpResponse(201, msgspec.json.encode(head | reviewed), b"application/json")

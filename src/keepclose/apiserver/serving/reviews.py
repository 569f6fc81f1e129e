"""Questions about the caller: `kubectl auth can-i`, its `--list`, and `kubectl auth whoami`.

A review is posted, answered and not stored. What it says is decided by the rules that requests go
through, so it holds for the request that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from keepclose.apiserver.failures import bad_request
from keepclose.apiserver.security.roles import Action, allowed, list_rules
from keepclose.apiserver.security.users import User
from keepclose.apiserver.serving.bodies import media_type_of, read_values
from keepclose.apiserver.serving.messages import Answer, Request

JsonObject = dict[str, Any]


def review_access(user: User, review: JsonObject) -> JsonObject:
    """Return whether the user may do what a SelfSubjectAccessReview asks about, and by which rule.

    A create that a rule allows for one name only is refused where the review names none.
    """
    spec: JsonObject = review.get("spec") or {}
    wanted: JsonObject = spec.get("resourceAttributes") or {}
    path: JsonObject = spec.get("nonResourceAttributes") or {}
    if bool(wanted) is bool(path):
        raise bad_request(
            "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        )
    if path:
        action = Action(str(path.get("verb", "")), path=str(path.get("path", "")))
    else:
        action = Action(
            str(wanted.get("verb", "")),
            group=str(wanted.get("group", "")),
            resource=str(wanted.get("resource", "")),
            subresource=str(wanted.get("subresource", "")),
            namespace=str(wanted.get("namespace", "")),
            name=str(wanted.get("name", "")),
        )
    decision = allowed(user, action, {"metadata": {"name": action.name}})
    status: JsonObject = {"allowed": decision.allowed}
    if decision.reason:
        status["reason"] = decision.reason
    return {"spec": spec, "status": status}


def review_rules(user: User, review: JsonObject) -> JsonObject:
    """Return what the user may do in the namespace that a SelfSubjectRulesReview names."""
    spec: JsonObject = review.get("spec") or {}
    namespace = str(spec.get("namespace") or "")
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


def review_user(user: User, review: JsonObject) -> JsonObject:
    """Return what the server knows of the user."""
    del review
    return {"status": {"userInfo": {"username": user.name, "groups": sorted(user.groups)}}}


_Reviewer = Callable[[User, JsonObject], JsonObject]
_REVIEWS: Final[dict[str, tuple[str, str, _Reviewer]]] = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": (
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        review_access,
    ),
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": (
        "authorization.k8s.io/v1",
        "SelfSubjectRulesReview",
        review_rules,
    ),
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": (
        "authentication.k8s.io/v1",
        "SelfSubjectReview",
        review_user,
    ),
}


def answers_review(path: str) -> bool:
    """Return whether reviews are posted to the path."""
    return path in _REVIEWS


def answer_review(request: Request, user: User) -> Answer:
    """Return the answer to a review that the user posted; raises a Failure for an unread one."""
    api_version, kind, answer = _REVIEWS[request.path]
    review = read_values(request.body, media_type_of(request.header(b"content-type")), kind)
    answered = answer(user, review)
    head = {"kind": kind, "apiVersion": api_version, "metadata": {}}
    return Answer(201, msgspec.json.encode(head | answered), b"application/json")

"""Headers that say who calls, and reviews of rights: no request gets rights of another user."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from fuzzbounds import require

from keepclose.apiserver.auth.users import MASTERS, RequestUser, UserRole, node_user, role_user
from keepclose.apiserver.serving.guard import Guard, is_review, respond_review
from keepclose.apiserver.serving.http_messages import HttpRequest
from keepclose.apiserver.serving.options import parse_path, verb_of
from keepclose.apiserver.status_errors import StatusError

_USERS = {
    "admin-token": role_user(UserRole.ADMIN),
    "viewer-token": role_user(UserRole.VIEWER),
    "node-token": node_user("n1"),
}
_NAMES = (b"authorization", b"impersonate-user", b"impersonate-group", b"impersonate-uid")
_REVIEW = b"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class _Tokens:
    def find(self, token: str) -> RequestUser | None:
        """Return whose token it is."""
        return _USERS.get(token)


_GUARD = Guard(_Tokens())


def seeds() -> Iterator[bytes]:
    """Yield requests: a line with method and path, one for each header, then the body."""
    access = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "name": "a"}}}
    path = {"spec": {"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}}
    node = b"Bearer node-token\n\n\n\n"
    admin = b"Bearer admin-token\n"
    yield b"GET /api/v1/pods\n" + node
    yield b"POST /api/v1/nodes\n" + node + b'{"metadata":{"name":"n1"}}'
    yield b"PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1\n" + node
    yield b"GET /metrics\nBasic x\n\n\n\n"
    yield b"GET /api/v1/nodes\n" + admin + b"system:node:n1\nsystem:nodes\n\n"
    yield b"GET /api/v1/nodes\n" + admin + b"system:serviceaccount:a:b\n\nuid\n"
    yield b"GET /api/v1/nodes\nBearer viewer-token\nroot\nsystem:masters\n\n"
    for review in (access, path):
        yield _REVIEW + b"\n" + node + msgspec.json.encode(review)
    rules = b"POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews\n"
    yield rules + node + b'{"spec":{"namespace":"a"}}'


def check(data: bytes) -> None:
    """Admit the request, and answer it where it is a review."""
    lines = [*data.split(b"\n", 5), *[b""] * 6]
    method, _, path = lines[0].decode("latin-1").partition(" ")
    headers = {name: line for name, line in zip(_NAMES, lines[1:5], strict=False) if line}
    request = HttpRequest(method, path, "", headers, lines[5])
    target = parse_path(path)
    verb = verb_of(method, target, watch=False) if target else None
    try:
        _GUARD.admit(request, verb or method.lower(), target)
        user = _GUARD.user_of(request)
        token = headers.get(b"authorization", b"").strip().partition(b" ")[2].partition(b" ")[0]
        if token != b"admin-token":
            require(MASTERS not in user.groups, "a caller became an administrator")
            known = _USERS.get(token.decode("latin-1"))
            require(known is None or user == known, "a caller became another user")
        if is_review(path):
            msgspec.json.decode(respond_review(request, user).body)
    except StatusError as failure:
        require(failure.code < 500, f"status {failure.code}")

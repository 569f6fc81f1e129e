"""Who may do what, over the wire: tokens, certificates, roles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from keepclose.apiserver.auth.certificates import CertificateAuthority
from keepclose.testing.api_server import PATIENCE, Api, Served, connected, serving
from support.certificates import Authority as Stranger

JsonObject = dict[str, Any]
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ACKS = "/api/v1/namespaces/kube-system/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve with a token for node n1."""
    async with serving(tmp_path / "data", nodes=("n1",)) as served:
        yield served


async def test_nobody(secured: Served) -> None:
    """Without credentials there is health and nothing else, whatever is asked for."""
    assert (await secured.call("GET", "/healthz", token="")).status == 200
    for path in ("/api", "/version", "/metrics", CONFIGMAPS, "/nowhere"):
        assert (await secured.call("GET", path, token="")).status == 403, path
    reply = await secured.call("POST", CONFIGMAPS, {"metadata": {"name": "one"}}, token="")
    assert (reply.status, reply.message) == (
        403,
        (
            'configmaps is forbidden: User "system:anonymous" cannot create resource "configmaps" '
            'in API group "" in the namespace "default"'
        ),
    )
    watch = await secured.call("GET", f"{CONFIGMAPS}?watch=true", token="")
    assert watch.status == 403


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("Bearer wrong", id="a wrong token"),
        pytest.param("Bearer " + "x" * 43, id="a wrong token of the right length"),
    ],
)
async def test_wrong_credentials(secured: Served, header: str) -> None:
    """Credentials that nobody has are refused everywhere, before anything is looked at."""
    for path in (CONFIGMAPS, "/healthz"):
        reply = await secured.call("GET", path, token="", headers={"Authorization": header})
        assert (reply.status, reply.json["reason"]) == (401, "Unauthorized")
        assert reply.headers["WWW-Authenticate"] == 'Bearer realm="keepclose"'


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("Bearer", id="no token"),
        pytest.param("Basic YWRtaW46YWRtaW4=", id="a password"),
    ],
)
async def test_credentials_of_another_kind(secured: Served, header: str) -> None:
    """A header that holds no token is as good as none."""
    headers = {"Authorization": header}
    assert (await secured.call("GET", "/healthz", token="", headers=headers)).status == 200
    reply = await secured.call("GET", CONFIGMAPS, token="", headers=headers)
    assert reply.status == 403
    assert 'User "system:anonymous" cannot list' in reply.message


async def test_viewers(secured: Served) -> None:
    """A viewer reads everything and writes nothing; verbs that do not exist are not told apart."""
    token = secured.token_of("viewer")
    for path in (CONFIGMAPS, "/api/v1/nodes", "/apis/apps/v1/deployments", "/metrics", "/api"):
        assert (await secured.call("GET", path, token=token)).status == 200, path
    body = {"metadata": {"name": "one"}}
    for method, path in (
        ("POST", CONFIGMAPS),
        ("PUT", f"{CONFIGMAPS}/one"),
        ("PATCH", f"{CONFIGMAPS}/one"),
        ("DELETE", f"{CONFIGMAPS}/one"),
        ("DELETE", CONFIGMAPS),
        ("PUT", CONFIGMAPS),
    ):
        assert (await secured.call(method, path, body, token=token)).status == 403, (method, path)
    assert (await secured.get(CONFIGMAPS))["items"] == []


async def test_controllers(secured: Served) -> None:
    """A controller writes slices, events, leases and the status of Services, not Services."""
    token = secured.token_of("controller")
    sliced = {"metadata": {"name": "one"}, "addressType": "IPv4"}
    assert (await secured.call("POST", SLICES, sliced, token=token)).status == 201
    assert (await secured.call("DELETE", f"{SLICES}/one", token=token)).status == 200
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}}
    refused = await secured.call("POST", SERVICES, service, token=token)
    assert refused.status == 403
    created = await secured.create(SERVICES, service)
    path = f"{SERVICES}/s/status"
    assert (await secured.call("PUT", path, created, token=token)).status == 200
    assert (await secured.call("PUT", f"{SERVICES}/s", created, token=token)).status == 403
    assert (await secured.call("DELETE", SLICES, token=token)).status == 403


async def test_nodes(secured: Served) -> None:
    """A node reads what routing needs and writes about itself alone."""
    token = secured.token_of("node-n1")

    async def code(method: str, path: str, body: object = None) -> int:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return (await secured.call(method, path, body, token=token, type=kind)).status

    for path in (SERVICES, "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/nodes"):
        assert await code("GET", path) == 200, path
    assert await code("GET", CONFIGMAPS) == 403
    assert await code("GET", "/api/v1/pods") == 403
    assert await code("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}}) == 201
    assert await code("POST", "/api/v1/nodes", {"metadata": {"name": "n2"}}) == 403
    assert await code("PATCH", "/api/v1/nodes/n1/status", {}) == 200
    assert await code("PATCH", "/api/v1/nodes/n2/status", {}) == 403
    assert await code("POST", LEASES, {"metadata": {"name": "n1"}}) == 201
    assert await code("POST", LEASES, {"metadata": {"name": "n2"}}) == 403
    assert await code("POST", LEASES, b"no json") == 400
    assert await code("POST", ACKS, {"metadata": {"name": "keepclose-ack-n1"}}) == 201
    assert await code("POST", ACKS, {"metadata": {"name": "keepclose-ack-n2"}}) == 403
    assert await code("POST", ACKS, {"metadata": {"generateName": "keepclose-ack-n1"}}) == 403
    assert await code("GET", f"{ACKS}/keepclose-ack-n1") == 200
    assert await code("DELETE", f"{ACKS}/keepclose-ack-n1") == 403


@pytest.mark.parametrize(
    ("user", "groups", "want"),
    [
        pytest.param("root", ("system:masters",), 201, id="an administrator"),
        pytest.param("someone", (), 403, id="somebody without groups"),
        pytest.param("v", ("keepclose:viewers",), 403, id="a viewer"),
    ],
)
async def test_client_certificates(
    secured: Served, tmp_path: Path, user: str, groups: tuple[str, ...], want: int
) -> None:
    """A certificate of the server's own CA says who its holder is."""
    authority = CertificateAuthority(tmp_path / "data" / "pki", now=time.time())
    issued = authority.issue_client(user, groups)
    file = tmp_path / "client.pem"
    file.write_bytes(issued.certificate + issued.key)
    async with connected(secured.ca, certificate=file) as session:
        api = Api(secured.url, token="", ca=secured.ca, session=session)
        assert (await api.call("GET", "/version")).status == 200
        reply = await api.call("POST", CONFIGMAPS, {"metadata": {"name": "one"}})
        assert reply.status == want
        if want == 403:
            assert f'User "{user}" cannot create' in reply.message


async def test_certificates_of_strangers(secured: Served, tmp_path: Path) -> None:
    """A certificate of another CA is not even spoken with."""
    issued = Stranger().issue("root")
    file = tmp_path / "client.pem"
    file.write_bytes(issued.certificate + issued.key)
    async with connected(secured.ca, certificate=file) as session:
        api = Api(secured.url, token="", ca=secured.ca, session=session)
        # The moment at which TLS tells of the refusal differs, and so does the error.
        with pytest.raises((aiohttp.ClientError, OSError)):
            await api.call("GET", "/healthz")
    assert (await secured.call("GET", "/healthz")).status == 200


async def test_a_token_that_is_removed_counts_no_more(secured: Served) -> None:
    """Tokens are files: one that is removed is refused a second later, without a restart."""
    token = secured.token_of("viewer")
    assert (await secured.call("GET", CONFIGMAPS, token=token)).status == 200
    (secured.server.settings.data_dir / "tokens" / "viewer").unlink()
    async with asyncio.timeout(PATIENCE):
        # NB: only the clock and the file system know; there is nothing to wait for.
        while (await secured.call("GET", CONFIGMAPS, token=token)).status != 401:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.mark.parametrize(
    ("role", "attributes", "want"),
    [
        pytest.param("admin", {"verb": "delete", "resource": "pods"}, True, id="administrators"),
        pytest.param("viewer", {"verb": "delete", "resource": "pods"}, False, id="viewers"),
        pytest.param("viewer", {"verb": "list", "resource": "pods"}, True, id="viewers read"),
        pytest.param(
            "controller",
            {"verb": "create", "resource": "endpointslices", "group": "discovery.k8s.io"},
            True,
            id="controllers",
        ),
        pytest.param("node-n1", {"verb": "patch", "resource": "nodes", "name": "n1"}, True, id="n"),
        pytest.param(
            "node-n1", {"verb": "patch", "resource": "nodes", "name": "n2"}, False, id="o"
        ),
    ],
)
async def test_a_review_says_what_a_request_would_meet(
    secured: Served, role: str, attributes: JsonObject, want: bool
) -> None:
    """`kubectl auth can-i` asks the rules that requests go through."""
    review = {"spec": {"resourceAttributes": attributes}}
    reply = await secured.call("POST", REVIEWS, review, token=secured.token_of(role))
    assert reply.status == 201
    assert reply.json["status"]["allowed"] is want
    assert reply.json["spec"] == review["spec"]


async def test_reviews_that_cannot_be_answered(secured: Served) -> None:
    """A review asks about a resource or a path, not both or neither, and strangers get none."""
    assert (await secured.call("POST", REVIEWS, {"spec": {}})).status == 400
    assert (await secured.call("POST", REVIEWS, {"spec": {}}, token="")).status == 403
    assert (await secured.call("GET", REVIEWS)).status == 404
    rules = REVIEWS.replace("access", "rules")
    reply = await secured.call("POST", rules, {"spec": {}})
    assert (reply.status, reply.message) == (400, "no namespace on request")
    path = {"spec": {"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}}
    reply = await secured.call("POST", REVIEWS, path, token=secured.token_of("node-n1"))
    assert reply.json["status"] == {"allowed": False}


@pytest.mark.parametrize(
    ("subresource", "want"),
    [
        pytest.param("log", "kubectl describe pod -n default web", id="logs"),
        pytest.param("exec", "use: keepclose lab exec web -- COMMAND", id="exec"),
        pytest.param("portforward", "keepclose lab exec outside -- COMMAND", id="port-forward"),
    ],
)
async def test_requests_for_containers_name_what_to_use(
    secured: Served, subresource: str, want: str
) -> None:
    """No containers run here, and the refusal says what does instead."""
    reply = await secured.call("GET", f"/api/v1/namespaces/default/pods/web/{subresource}")
    assert reply.status == 501
    assert "no containers run here" in reply.message
    assert want in reply.message


async def test_the_log_of_a_container_that_ended(secured: Served) -> None:
    """What a container left as its message is its log; users without the right do not get it."""
    pods = "/api/v1/namespaces/default/pods"
    containers = [{"name": name, "image": "i"} for name in ("a", "b")]
    body = {"metadata": {"name": "done"}, "spec": {"containers": containers}}
    assert (await secured.call("POST", pods, body)).status == 201
    ended = {"exitCode": 0, "message": "line 1\nline 2\n"}
    statuses = [
        {"name": "a", "state": {"running": {}}},
        {"name": "b", "state": {"terminated": ended}},
    ]
    patch = {"status": {"containerStatuses": statuses}}
    kind = {"Content-Type": "application/merge-patch+json"}
    assert (await secured.call("PATCH", f"{pods}/done/status", patch, headers=kind)).status == 200
    for query in ("", "?container=b"):
        reply = await secured.call("GET", f"{pods}/done/log{query}")
        assert (reply.status, reply.body) == (200, b"line 1\nline 2\n")
    assert (await secured.call("GET", f"{pods}/done/log?container=a")).status == 501
    reply = await secured.call("GET", f"{pods}/done/log", headers=acting_as("jane"))
    assert reply.status == 403
    assert "pods/log" in reply.message


def acting_as(name: str, group: str = "") -> dict[str, str]:
    """Return the headers of `kubectl --as NAME --as-group GROUP`."""
    return {"Impersonate-User": name} | ({"Impersonate-Group": group} if group else {})


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param(acting_as("jane"), False, id="a user without groups"),
        pytest.param(acting_as("jane", "keepclose:viewers"), False, id="a viewer"),
        pytest.param(acting_as("jane", "system:masters"), True, id="an administrator"),
        pytest.param(acting_as("system:serviceaccount:default:build"), False, id="a pod"),
    ],
)
async def test_an_impersonated_user_has_its_own_rights(
    secured: Served, headers: dict[str, str], want: bool
) -> None:
    """`kubectl auth can-i --as` and the request itself go by the user that is impersonated."""
    review = {"spec": {"resourceAttributes": {"verb": "create", "resource": "configmaps"}}}
    reply = await secured.call("POST", REVIEWS, review, headers=headers)
    assert (reply.status, reply.json["status"]["allowed"]) == (201, want)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}
    reply = await secured.call("POST", CONFIGMAPS, body, headers=headers)
    assert reply.status == (201 if want else 403)
    if not want:
        assert f'User "{headers["Impersonate-User"]}" cannot create' in reply.message


async def test_all_groups_of_an_impersonated_user_count(secured: Served) -> None:
    """A group header may be repeated, and the groups of a ServiceAccount are known by its name."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    headers = [
        ("Authorization", f"Bearer {secured.token_of('admin')}"),
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "keepclose:viewers"),
        ("Impersonate-Group", "builders"),
    ]
    async with secured.session.post(secured.url + path, json={}, headers=headers) as response:
        info = (await response.json())["status"]["userInfo"]
    groups = ["builders", "keepclose:viewers", "system:authenticated"]
    assert info == {"username": "jane", "groups": groups}
    build = acting_as("system:serviceaccount:default:build")
    reply = await secured.call("POST", path, {}, headers=build)
    assert reply.json["status"]["userInfo"]["groups"] == [
        "system:authenticated",
        "system:serviceaccounts",
        "system:serviceaccounts:default",
    ]


async def test_only_administrators_impersonate(secured: Served) -> None:
    """Other roles are refused in the words of kube-apiserver, groups without a user for all."""
    viewer = secured.token_of("viewer")
    reply = await secured.call("GET", CONFIGMAPS, token=viewer, headers=acting_as("jane"))
    assert (reply.status, reply.message) == (
        403,
        (
            'users "jane" is forbidden: User "keepclose:viewer" cannot impersonate resource '
            '"users" in API group "" at the cluster scope'
        ),
    )
    assert (await secured.call("GET", "/healthz", token="", headers=acting_as("a"))).status == 403
    reply = await secured.call("GET", CONFIGMAPS, headers={"Impersonate-Group": "builders"})
    assert (reply.status, reply.message) == (
        400,
        (
            'requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"builders"}, '
            "Extra:map[string][]string(nil)} without impersonating a user name"
        ),
    )
    anonymous = acting_as("system:anonymous")
    assert (await secured.call("POST", REVIEWS, {"spec": {}}, headers=anonymous)).status == 403
    assert (await secured.call("GET", "/healthz", headers=anonymous)).status == 200


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param(
            "x",
            "string into Go struct field SelfSubjectAccessReview.spec of type "
            "v1.SelfSubjectAccessReviewSpec",
            id="spec",
        ),
        pytest.param(
            {"resourceAttributes": [1]},
            "array into Go struct field SelfSubjectAccessReviewSpec.spec.resourceAttributes of "
            "type v1.ResourceAttributes",
            id="attributes",
        ),
        pytest.param(
            {"resourceAttributes": {"verb": {"a": 1}}},
            "object into Go struct field ResourceAttributes.spec.resourceAttributes.verb of type "
            "string",
            id="verb",
        ),
        pytest.param(
            {"nonResourceAttributes": {"path": 5}},
            "number into Go struct field NonResourceAttributes.spec.nonResourceAttributes.path of "
            "type string",
            id="path",
        ),
    ],
)
async def test_a_review_of_the_wrong_shape_is_a_bad_request(
    secured: Served, spec: object, why: str
) -> None:
    """What is no review is refused in the words of Go's decoder, and is no error of the server."""
    reply = await secured.call("POST", REVIEWS, {"spec": spec})
    kind = "SelfSubjectAccessReview"
    refusal = f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal {why}'
    assert (reply.status, reply.message) == (400, refusal)


async def test_a_review_of_rules_of_the_wrong_shape_is_a_bad_request(secured: Served) -> None:
    """The list of rights is asked for in a namespace that is a text, in an object."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    for spec in ("x", {"namespace": 5}, {"namespace": ["default"]}):
        reply = await secured.call("POST", path, {"spec": spec})
        assert (reply.status, reply.json["reason"]) == (400, "BadRequest")
        assert "SelfSubjectRulesReview" in reply.message

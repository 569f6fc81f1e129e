"""Every failure that a server can answer with becomes the same error of our client."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from keepclose.kube.client import Client
from keepclose.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    ConnectionRefused,
    Forbidden,
    Invalid,
    NotFound,
    StatusCause,
    TlsError,
    TooLarge,
    Unauthorized,
)
from keepclose.kube.requests import CONFIG_MAPS, SERVICES
from support.real.apis import ONCE, Api, config_map, opened, service

JSON = {"Content-Type": "application/json"}


def _maps(namespace: str) -> str:
    return CONFIG_MAPS.path(namespace)


async def _post_rubbish(client: Client, namespace: str) -> None:
    await client.raw("POST", _maps(namespace), headers=JSON, body=b"{")


async def _post_to_an_object(client: Client, namespace: str) -> None:
    await client.raw("POST", f"{_maps(namespace)}/m", headers=JSON, body=b"{}")


async def _patch_with_a_text(client: Client, namespace: str) -> None:
    headers = {"Content-Type": "text/plain"}
    await client.raw("PATCH", f"{_maps(namespace)}/m", headers=headers, body=b"{}")


async def _get_a_missing_one(client: Client, namespace: str) -> None:
    await client.get(CONFIG_MAPS, "missing", namespace=namespace)


async def _get_an_unknown_kind(client: Client, _: str) -> None:
    await client.raw("GET", "/api/v1/things")


async def _create_again(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("m"), namespace=namespace)


async def _write_over_a_newer_one(client: Client, namespace: str) -> None:
    old = await client.get(CONFIG_MAPS, "m", namespace=namespace)
    await client.patch(CONFIG_MAPS, "m", {"data": {"value": "2"}}, namespace=namespace)
    await client.update(CONFIG_MAPS, old)


async def _create_in_no_namespace(client: Client, _: str) -> None:
    await client.create(CONFIG_MAPS, config_map("m"), namespace="missing")


async def _create_a_giant(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("big", "x" * (4 << 20)), namespace=namespace)


@pytest.mark.parametrize(
    ("act", "want_type", "want_code", "want_reason"),
    [
        pytest.param(_post_rubbish, BadRequest, 400, "BadRequest", id="a body that is no JSON"),
        pytest.param(_get_a_missing_one, NotFound, 404, "NotFound", id="no such object"),
        pytest.param(_get_an_unknown_kind, NotFound, 404, "NotFound", id="no such kind"),
        pytest.param(_create_in_no_namespace, NotFound, 404, "NotFound", id="no such namespace"),
        pytest.param(
            _post_to_an_object, ApiError, 405, "MethodNotAllowed", id="a verb that is not there"
        ),
        pytest.param(_create_again, AlreadyExists, 409, "AlreadyExists", id="a name that is taken"),
        pytest.param(_write_over_a_newer_one, Conflict, 409, "Conflict", id="a stale version"),
        pytest.param(
            _create_a_giant, TooLarge, 413, "RequestEntityTooLarge", id="a body over the limit"
        ),
        pytest.param(
            _patch_with_a_text, ApiError, 415, "UnsupportedMediaType", id="a patch of no known type"
        ),
    ],
)
async def test_failures(
    *,
    act: Callable[[Client, str], Awaitable[None]],
    want_type: type[ApiError],
    want_code: int,
    want_reason: str,
    api: Api,
    namespace: str,
) -> None:
    """Each failure has one type, whichever server answers."""
    async with opened(api.kubeconfig) as client:
        await client.create(CONFIG_MAPS, config_map("m"), namespace=namespace)
        with pytest.raises(want_type) as caught:
            await act(client, namespace)
    assert type(caught.value) is want_type
    assert caught.value.code == want_code
    assert caught.value.reason == want_reason


async def test_what_breaks_rules_comes_with_its_causes(api: Api, namespace: str) -> None:
    """All that is wrong with an object is told at once, field by field."""
    broken = service("web", trafficDistribution="Nowhere", ports=[{"name": "http", "port": 70000}])
    async with opened(api.kubeconfig) as client:
        with pytest.raises(Invalid) as caught:
            await client.create(SERVICES, broken, namespace=namespace)
    port = "Invalid value: 70000: must be between 1 and 65535, inclusive"
    wish = (
        'Unsupported value: "Nowhere": supported values: '
        '"PreferClose", "PreferSameZone", "PreferSameNode"'
    )
    assert caught.value.code == 422
    assert caught.value.causes == [
        StatusCause("FieldValueInvalid", "spec.ports[0].port", port),
        StatusCause("FieldValueInvalid", "spec.ports[0].targetPort", port),
        StatusCause("FieldValueNotSupported", "spec.trafficDistribution", wish),
    ]


async def test_who_may_not_write_is_forbidden(api: Api, namespace: str) -> None:
    """The server knows the user, names it, and says no."""
    async with opened(api.weak_kubeconfig) as client:
        with pytest.raises(Forbidden) as caught:
            await client.create(CONFIG_MAPS, config_map("m"), namespace=namespace)
    text = f'cannot create resource "configmaps" in API group "" in the namespace "{namespace}"'
    assert text in str(caught.value)


async def test_who_is_unknown_is_unauthorized(api: Api, tmp_path: Path) -> None:
    """A token that nobody has is refused for everything."""
    kubeconfig = _edited(api.kubeconfig, tmp_path, token="nobody-has-this-token")  # noqa: S106
    async with opened(kubeconfig) as client:
        with pytest.raises(Unauthorized) as caught:
            await client.list_all(CONFIG_MAPS)
    assert (caught.value.code, str(caught.value)) == (401, "Unauthorized")


async def test_a_server_that_is_not_there_refuses(api: Api, tmp_path: Path) -> None:
    """Nobody listens at the port: nothing was sent."""
    kubeconfig = _edited(api.kubeconfig, tmp_path, server="https://127.0.0.1:1")
    async with opened(kubeconfig, retries=ONCE) as client:
        with pytest.raises(ConnectionRefused) as caught:
            await client.list_all(CONFIG_MAPS)
    assert not caught.value.sent


async def test_a_server_of_another_authority_is_not_trusted(api: Api, tmp_path: Path) -> None:
    """Without the server's authority its certificate is worth nothing."""
    kubeconfig = _edited(api.kubeconfig, tmp_path, drop_authority=True)
    async with opened(kubeconfig, retries=ONCE) as client:
        with pytest.raises(TlsError):
            await client.list_all(CONFIG_MAPS)


def _edited(
    kubeconfig: Path,
    directory: Path,
    *,
    token: str = "",
    server: str = "",
    drop_authority: bool = False,
) -> Path:
    """Return a copy of a kubeconfig with something else in it."""
    copy = directory / "kubeconfig"
    shutil.copy(kubeconfig, copy)
    content = yaml.safe_load(copy.read_text())
    cluster = content["clusters"][0]["cluster"]
    if token:
        content["users"][0]["user"]["token"] = token
    if server:
        cluster["server"] = server
    if drop_authority:
        cluster.pop("certificate-authority", None)
        cluster.pop("certificate-authority-data", None)
    copy.write_text(yaml.safe_dump(content))
    return copy

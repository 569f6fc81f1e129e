"""Client libraries by other hands work with the server as with any other.

Both libraries check what they get against the published types, so that an answer that lacks a
field fails here.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes.informer
import lightkube
import pytest
from kubernetes.client.exceptions import ApiException
from lightkube.models.core_v1 import ServicePort, ServiceSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod, Service
from lightkube.types import PatchType

from keepclose.testing.api_server import PATIENCE, Served

# Most of it has no types.
OFFICIAL: Any = kubernetes
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def _service(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}], **spec},
    }


@pytest.fixture
async def kubeconfig(api: Served) -> Path:
    """Give the file that the server has written for the administrator."""
    return api.server.kubeconfig


@contextmanager
def _official(kubeconfig: Path) -> Iterator[Any]:
    """Connect with the official client."""
    configuration = OFFICIAL.client.Configuration()
    OFFICIAL.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    with OFFICIAL.client.ApiClient(configuration) as client:
        yield OFFICIAL.client.CoreV1Api(client)
        client.rest_client.pool_manager.clear()


async def test_official_objects(kubeconfig: Path) -> None:
    """Create, read, list with a selector and pages, replace and delete."""

    def session() -> None:
        with _official(kubeconfig) as core:
            made = core.create_namespaced_service(
                "default", _service("web", trafficDistribution="PreferSameZone")
            )
            assert made.spec.traffic_distribution == "PreferSameZone"
            assert made.spec.cluster_ip.startswith("10.96.")
            for name in ("a", "b", "c"):
                body = {"metadata": {"name": name, "labels": {"tier": name}}, "data": {"x": "1"}}
                core.create_namespaced_config_map("default", body)
            some = core.list_namespaced_config_map("default", label_selector="tier in (a,c)")
            assert [one.metadata.name for one in some.items] == ["a", "c"]
            page = core.list_namespaced_config_map("default", limit=2)
            assert page.metadata.remaining_item_count == 1
            rest = core.list_namespaced_config_map("default", _continue=page.metadata._continue)
            assert [one.metadata.name for one in (*page.items, *rest.items)] == ["a", "b", "c"]
            made.spec.traffic_distribution = "PreferSameNode"
            changed = core.replace_namespaced_service("web", "default", made)
            assert changed.spec.traffic_distribution == "PreferSameNode"
            assert core.read_namespaced_service("web", "default") == changed
            core.delete_namespaced_service("web", "default")
            assert core.list_namespaced_service("default").items == []
            assert "default" in {one.metadata.name for one in core.list_namespace().items}

    await asyncio.to_thread(session)


async def test_official_patches(kubeconfig: Path) -> None:
    """Every type of patch means what it should."""

    def session() -> None:
        with _official(kubeconfig) as core:
            core.create_namespaced_service("default", _service("web"))

            def patch(body: object, kind: str, **options: Any) -> Any:
                return core.patch_namespaced_service(
                    "web", "default", body, _content_type=kind, **options
                )

            admin = {"spec": {"ports": [{"name": "admin", "port": 81}]}}
            names = {port.name for port in patch(admin, STRATEGIC).spec.ports}
            assert names == {"http", "admin"}
            assert [port.name for port in patch(admin, MERGE).spec.ports] == ["admin"]
            operation = {"op": "replace", "path": "/spec/ports/0/port", "value": 82}
            assert patch([operation], JSON_PATCH).spec.ports[0].port == 82
            wish = {
                "apiVersion": "v1",
                "kind": "Service",
                "spec": {"trafficDistribution": "PreferSameZone"},
            }
            applied = patch(wish, APPLY, field_manager="me", force=True)
            assert applied.spec.traffic_distribution == "PreferSameZone"
            wish["spec"] = {"trafficDistribution": "PreferSameNode"}
            with pytest.raises(ApiException) as caught:
                patch(wish, APPLY, field_manager="you")
            assert caught.value.status == 409

    await asyncio.to_thread(session)


async def test_official_errors(kubeconfig: Path) -> None:
    """The library's error has status, reason and the Status as its body."""

    def status_of(act: Callable[[], object]) -> tuple[int, str]:
        with pytest.raises(ApiException) as caught:
            act()
        return caught.value.status, str(caught.value.body)

    def session() -> None:
        with _official(kubeconfig) as core:
            code, body = status_of(lambda: core.read_namespaced_service("none", "default"))
            assert code == 404
            assert 'services \\"none\\" not found' in body
            core.create_namespaced_service("default", _service("web"))
            again = _service("web")
            code, body = status_of(lambda: core.create_namespaced_service("default", again))
            assert code == 409
            assert "AlreadyExists" in body
            bad = _service("bad", trafficDistribution="Nowhere")
            code, body = status_of(lambda: core.create_namespaced_service("default", bad))
            assert code == 422
            assert "spec.trafficDistribution" in body
            code, body = status_of(lambda: core.create_namespaced_service("missing", again))
            assert code == 404

    await asyncio.to_thread(session)


async def test_official_watch(kubeconfig: Path) -> None:
    """A watch from a list's version brings what comes after it, and ends in time."""

    def session() -> None:
        with _official(kubeconfig) as core:
            version = core.list_namespaced_config_map("default").metadata.resource_version
            core.create_namespaced_config_map("default", {"metadata": {"name": "m"}})
            core.patch_namespaced_config_map("m", "default", {"data": {"x": "2"}})
            core.delete_namespaced_config_map("m", "default")
            stream = OFFICIAL.watch.Watch().stream(
                core.list_namespaced_config_map,
                "default",
                resource_version=version,
                timeout_seconds=1,
            )
            events = [(event["type"], event["object"].data) for event in stream]
            assert events == [
                ("ADDED", None),
                ("MODIFIED", {"x": "2"}),
                ("DELETED", {"x": "2"}),
            ]

    await asyncio.to_thread(session)


async def test_official_informer(kubeconfig: Path) -> None:
    """The library's informer keeps a cache of our objects."""

    def session() -> None:
        heard: list[tuple[str, str]] = []
        gone = threading.Event()
        added = threading.Event()
        with _official(kubeconfig) as core, _official(kubeconfig) as writer:
            writer.create_namespaced_config_map("default", {"metadata": {"name": "old"}})
            # It looks at its orders only between watches, so these are short.
            informer = OFFICIAL.informer.SharedInformer(
                core.list_namespaced_config_map, "default", resync_period=1
            )

            def on_added(one: Any) -> None:
                heard.append(("ADDED", one.metadata.name))
                added.set()

            def on_deleted(one: Any) -> None:
                heard.append(("DELETED", one.metadata.name))
                gone.set()

            informer.add_event_handler("ADDED", on_added)
            informer.add_event_handler("DELETED", on_deleted)
            informer.start()
            try:
                assert added.wait(PATIENCE)
                writer.create_namespaced_config_map("default", {"metadata": {"name": "new"}})
                writer.delete_namespaced_config_map("old", "default")
                assert gone.wait(PATIENCE)
                assert informer.cache.list_keys() == ["default/new"]
            finally:
                informer.stop()
            assert heard == [("ADDED", "old"), ("ADDED", "new"), ("DELETED", "old")]

    await asyncio.to_thread(session)


@contextmanager
def _light(kubeconfig: Path) -> Iterator[lightkube.Client]:
    """Connect with lightkube."""
    client = lightkube.Client(lightkube.KubeConfig.from_file(kubeconfig), field_manager="light")
    try:
        yield client
    finally:
        client.close()


def _light_service(**spec: Any) -> Service:
    port = ServicePort(name="http", port=80)
    return Service(
        metadata=ObjectMeta(name="web", namespace="default"),
        spec=ServiceSpec(selector={"app": "web"}, ports=[port], **spec),
    )


async def test_light_objects_and_patches(kubeconfig: Path) -> None:
    """Create, read, list, replace, patch in all ways, apply and delete."""

    def session() -> None:
        with _light(kubeconfig) as client:
            made = client.create(_light_service(trafficDistribution="PreferSameZone"))
            assert made.spec is not None
            assert made.spec.trafficDistribution == "PreferSameZone"
            made.spec.trafficDistribution = "PreferSameNode"
            changed = client.replace(made)
            assert client.get(Service, "web", namespace="default") == changed
            admin = {"spec": {"ports": [{"name": "admin", "port": 81}]}}

            def names(body: Any, kind: PatchType) -> list[str]:
                got = client.patch(Service, "web", body, namespace="default", patch_type=kind)
                assert got.spec is not None
                return sorted(port.name or "" for port in got.spec.ports or [])

            assert names(admin, PatchType.STRATEGIC) == ["admin", "http"]
            assert names(admin, PatchType.MERGE) == ["admin"]
            operation = {"op": "replace", "path": "/spec/ports/0/name", "value": "metrics"}
            assert names([operation], PatchType.JSON) == ["metrics"]
            applied = client.apply(_light_service(trafficDistribution="PreferSameZone"), force=True)
            assert applied.spec is not None
            assert applied.spec.trafficDistribution == "PreferSameZone"
            for number in range(5):
                meta = ObjectMeta(name=f"m-{number}", labels={"odd": str(number % 2)})
                client.create(ConfigMap(metadata=meta), namespace="default")
            found = client.list(ConfigMap, namespace="default", labels={"odd": "1"}, chunk_size=1)
            assert [one.metadata.name for one in found if one.metadata] == ["m-1", "m-3"]
            client.delete(Service, "web", namespace="default")
            assert list(client.list(Service, namespace="default")) == []
            assert client.get(Namespace, "default").metadata is not None

    await asyncio.to_thread(session)


async def test_light_watch_and_errors(kubeconfig: Path) -> None:
    """Events come typed, and failures carry the server's Status."""

    def session() -> None:
        with _light(kubeconfig) as client:
            found = client.list(ConfigMap, namespace="default")
            assert list(found) == []
            version = found.resourceVersion
            meta = ObjectMeta(name="m")
            client.create(ConfigMap(metadata=meta, data={"x": "1"}), namespace="default")
            client.delete(ConfigMap, "m", namespace="default")
            stream = client.watch(ConfigMap, namespace="default", resource_version=version)
            events = [(kind, one.data) for kind, one in itertools.islice(stream, 2)]
            assert events == [("ADDED", {"x": "1"}), ("DELETED", {"x": "1"})]
            with pytest.raises(lightkube.ApiError) as caught:
                client.get(Pod, "none", namespace="default")
            assert (caught.value.status.code, caught.value.status.reason) == (404, "NotFound")
            with pytest.raises(lightkube.ApiError) as caught:
                client.create(_light_service(trafficDistribution="Nowhere"))
            assert caught.value.status.code == 422
            details = caught.value.status.details
            assert details is not None
            assert [cause.field for cause in details.causes or []] == ["spec.trafficDistribution"]

    await asyncio.to_thread(session)

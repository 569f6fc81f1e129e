"""The unit tables of the registry of Services, asked of our API server by way of HTTP.

Each storage of the tests is a cluster of its own: a server with the same families and ranges, to
which the same writes are sent in the same order. What a server draws at random stands for what the
other drew.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.model.service.defaults import hide_on_read
from keepclose.model.service.strategy import normalize_cluster_ips, patch_allocated_values
from keepclose.model.service.types import Service
from keepclose.testing.api_server import Reply, Served, serving
from support.real.unit_tables import (
    Answers,
    Case,
    JsonObject,
    Judge,
    check_all_judged,
    compare,
    compare_in_order,
    pairs,
    read,
)

pytestmark = pytest.mark.real

_RANGES = {"IPv4": "10.0.0.0/16", "IPv6": "2000::/108"}
_WRITES = ("REST.Create", "REST.Update", "REST.Delete")
_OWN_METADATA = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")


class _Drawn:
    """What the two servers drew for the same places of one Service: addresses and node ports."""

    def __init__(self) -> None:
        self._theirs: dict[object, object] = {}
        self._ours: dict[object, object] = {}

    def learn(self, ours: JsonObject, theirs: JsonObject, *, asked: JsonObject) -> None:
        """Note what was drawn; what the request named itself was not, and stays once drawn."""
        named = {each for pair in _corresponding(asked, asked) for each in pair}
        for mine, yours in _corresponding(ours, theirs):
            if yours not in named and yours not in self._ours:
                self._theirs[mine], self._ours[yours] = yours, mine

    def to_ours(self, spec: JsonObject) -> JsonObject:
        """Return a Service's spec with what our server drew."""
        return _replaced(spec, self._ours)

    def to_theirs(self, spec: JsonObject) -> JsonObject:
        """Return a Service's spec with what the server of the test drew."""
        return _replaced(spec, self._theirs)


def _corresponding(ours: JsonObject, theirs: JsonObject) -> list[tuple[Any, Any]]:
    """Return what stands at equal places of two Services and may be drawn."""
    found: list[tuple[Any, Any]] = [
        (mine, yours)
        for mine, yours in zip(
            ours.get("clusterIPs", ()), theirs.get("clusterIPs", ()), strict=False
        )
        if _version(mine) == _version(yours)
    ]
    found += [
        (mine["nodePort"], yours["nodePort"])
        for mine, yours in zip(ours.get("ports", ()), theirs.get("ports", ()), strict=False)
        if mine.get("nodePort") and yours.get("nodePort")
    ]
    if ours.get("healthCheckNodePort") and theirs.get("healthCheckNodePort"):
        found.append((ours["healthCheckNodePort"], theirs["healthCheckNodePort"]))
    return found


def _version(address: str) -> int:
    """Return 4 or 6; 0 for what is no address, such as None."""
    with contextlib.suppress(ValueError):
        return ip_address(address).version
    return 0


def _replaced(spec: JsonObject, drawn: dict[object, object]) -> JsonObject:
    changed = copy.deepcopy(spec)
    for field in ("clusterIP", "healthCheckNodePort"):
        if field in changed:
            changed[field] = drawn.get(changed[field], changed[field])
    if "clusterIPs" in changed:
        changed["clusterIPs"] = [drawn.get(each, each) for each in changed["clusterIPs"]]
    for port in changed.get("ports", ()):
        if "nodePort" in port:
            port["nodePort"] = drawn.get(port["nodePort"], port["nodePort"])
    return changed


class _Clusters:
    """Our servers, one for each set of families, and what the storage at hand drew."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        self._servers: dict[tuple[str, ...], Served] = {}
        self._storage = ""
        self._drawn: dict[str, _Drawn] = {}

    def judge(self, case: Case) -> Answers:
        """Send the write of a case."""
        return self._runner.run(self._judge(case))

    def close(self) -> None:
        """Stop all servers."""
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def _judge(self, case: Case) -> Answers:
        given = case.given
        api = await self._server(tuple(given["families"]))
        if given["storage"] != self._storage:
            self._storage, self._drawn = given["storage"], {}
            await _empty(api)
        wanted = given.get("object", {})
        meta = wanted.get("metadata", {})
        namespace = meta.get("namespace") or "default"
        path = f"/api/v1/namespaces/{namespace}/services"
        query = "?dryRun=All" if given["options"].get("dryRun") else ""
        body = self._request(wanted)
        match case.function:
            case "REST.Create":
                reply = await api.call("POST", path + query, body)
            case "REST.Update":
                reply = await api.call("PUT", f"{path}/{given['name']}{query}", body)
            case _:
                reply = await api.call("DELETE", f"{path}/{given['name']}{query}")
                return Answers(_failure(reply), _their_failure(case))
        if reply.status >= 400 or "error" in case.answered:
            if case.function == "REST.Create" and reply.status < 400:
                # The Service of another case may have the name.
                await api.call("DELETE", f"{path}/{meta['name']}")
            return Answers(_failure(reply), _their_failure(case))
        ours, theirs = reply.json, case.answered["object"]
        if case.function == "REST.Create":
            self._drawn[meta["name"]] = _Drawn()
        drawn = self._drawn.setdefault(meta["name"], _Drawn())
        drawn.learn(ours["spec"], theirs["spec"], asked=wanted.get("spec", {}))
        ours["spec"] = drawn.to_theirs(ours["spec"])
        return Answers(_comparable(ours), _comparable(theirs))

    async def _server(self, families: tuple[str, ...]) -> Served:
        if families not in self._servers:
            ranges = tuple(_RANGES[family] for family in families)
            self._servers[families] = await self._stack.enter_async_context(
                serving(
                    self._directory / "-".join(families),
                    allocation=AllocationSettings(service_cidrs=ranges),
                )
            )
            await self._servers[families].call(
                "POST", "/api/v1/namespaces", {"metadata": {"name": "test"}}
            )
        return self._servers[families]

    def _request(self, wanted: JsonObject) -> JsonObject:
        meta = {
            key: value
            for key, value in wanted.get("metadata", {}).items()
            if key not in _OWN_METADATA
        }
        drawn = self._drawn.get(meta.get("name", ""), _Drawn())
        spec = drawn.to_ours(wanted.get("spec", {}))
        return {**wanted, "metadata": meta, "spec": spec}


async def _empty(api: Served) -> None:
    for namespace in ("default", "test"):
        path = f"/api/v1/namespaces/{namespace}/services"
        for service in (await api.get(path))["items"]:
            name = f"{path}/{service['metadata']['name']}"
            if service["metadata"].get("finalizers"):
                service["metadata"].pop("finalizers")
                await api.call("PUT", name, service)
            await api.call("DELETE", name)
            await api.until_gone(name)


def _comparable(service: JsonObject) -> JsonObject:
    meta = {
        key: value
        for key, value in service["metadata"].items()
        if key not in (*_OWN_METADATA, "deletionTimestamp")
    }
    return {**service, "metadata": meta}


def _failure(reply: Reply) -> object:
    if reply.status < 400:
        return "followed"
    status = reply.json
    causes = status.get("details", {}).get("causes", [])
    return status["code"], status["reason"], status["message"], causes


def _their_failure(case: Case) -> object:
    error = case.answered.get("error")
    if error is None:
        return "followed"
    if "status" not in error:
        return error["text"]
    status = error["status"]
    causes = status.get("details", {}).get("causes", [])
    return status["code"], status["reason"], status["message"], causes


def _normalized(case: Case) -> Answers:
    before = read(Service, case.given["before"]) if "before" in case.given else None
    ours = normalize_cluster_ips(read(Service, case.given["after"]), before)
    return Answers(ours, read(Service, case.answered["after"]))


def _patched(case: Case) -> Answers:
    ours = patch_allocated_values(
        read(Service, case.given["after"]), read(Service, case.given["before"])
    )
    return Answers(ours, read(Service, case.answered["after"]))


def _read(case: Case) -> Answers:
    ours = hide_on_read(read(Service, case.given["service"]))
    return Answers(ours, read(Service, case.answered["service"]))


JUDGES: dict[str, dict[str, Judge]] = {
    "servicestorage": {
        "normalizeClusterIPs": _normalized,
        "patchAllocatedValues": _patched,
        "REST.defaultOnReadService": _read,
    },
}


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[_Clusters]:
    """Run servers for the time of a test."""
    running = _Clusters(tmp_path)
    yield running
    running.close()


@pytest.mark.parametrize(("group", "function"), pairs(JUDGES))
def test_services_are_prepared_as_by_kubernetes(group: str, function: str) -> None:
    """What a write leaves out is taken from where the API server takes it."""
    compare(group, function, JUDGES[group][function])


def test_services_are_written_as_by_kubernetes(clusters: _Clusters) -> None:
    """Each write of a Service is followed with the same result or refused with the same words."""
    compare_in_order("servicestorage", _WRITES, clusters.judge)


def test_every_recorded_function_is_compared() -> None:
    """Nothing that is recorded is left out without a reason."""
    check_all_judged({"servicestorage": {**JUDGES["servicestorage"], **dict.fromkeys(_WRITES)}})

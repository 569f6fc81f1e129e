"""ServiceCIDRs become ready, and stay while Services have addresses that only they hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.controllers.service_cidrs import SoleHolder, contains_address
from keepclose.testing.api_server import Reply, Served, serving

RANGES = "/apis/networking.k8s.io/v1/servicecidrs"
SERVICES = "/api/v1/namespaces/default/services"
FINALIZER = "networking.k8s.io/service-cidr-finalizer"


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve with the objects that every cluster has."""
    async with serving(tmp_path / "data", runs_controllers=True) as served:
        yield served


def _condition(reply: Reply) -> tuple[str, str, str]:
    conditions = reply.json.get("status", {}).get("conditions", [])
    for condition in conditions:
        if condition["type"] == "Ready":
            return condition["status"], condition["reason"], condition["message"]
    return "", "", ""


def _range(name: str, *cidrs: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"cidrs": list(cidrs)}}


async def test_a_new_range_becomes_ready(full: Served) -> None:
    """It gets the finalizer of Kubernetes and the condition Ready, with the words of Kubernetes."""
    await full.create(RANGES, _range("more", "10.112.0.0/24"))
    reply = await full.until(f"{RANGES}/more", lambda reply: _condition(reply)[0] == "True")
    assert _condition(reply) == ("True", "", "Kubernetes Service CIDR is ready")
    assert reply.json["metadata"]["finalizers"] == [FINALIZER]
    assert reply.json["status"]["conditions"][0]["lastTransitionTime"]


async def test_an_unused_range_goes(full: Served) -> None:
    """Nothing keeps a range without addresses in use."""
    await full.create(RANGES, _range("more", "10.112.0.0/24"))
    await full.until(f"{RANGES}/more", lambda reply: _condition(reply)[0] == "True")
    assert (await full.call("DELETE", f"{RANGES}/more")).status == 200
    await full.until_gone(f"{RANGES}/more")


async def test_a_range_in_use_stays(tmp_path: Path) -> None:
    """The range of a Service waits for it, says why, and goes when the Service goes."""
    body = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}
    async with serving(tmp_path, runs_controllers=True) as api:
        service = await api.create(SERVICES, body)
        address = service["spec"]["clusterIP"]
        assert (await api.call("DELETE", f"{RANGES}/kubernetes")).status == 200
        reply = await api.until(
            f"{RANGES}/kubernetes", lambda reply: _condition(reply)[0] == "False"
        )
        assert _condition(reply)[1] == "Terminating"
        assert address.startswith("10.96.")
        # Another range that holds all addresses sets the first one free.
        await api.create(RANGES, _range("larger", "10.96.0.0/15"))
        await api.until_gone(f"{RANGES}/kubernetes")
        await api.create(RANGES, _range("smaller", "10.96.0.0/16"))
        await api.call("DELETE", f"{RANGES}/larger")
        await api.until_gone(f"{RANGES}/larger")


async def test_a_range_waits_for_the_last_service(tmp_path: Path) -> None:
    """A deletion of the Service that held a range lets the range go."""
    async with serving(tmp_path) as api:
        spec = {"ports": [{"port": 80}], "clusterIP": "10.96.7.7"}
        await api.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec})
        await api.create(RANGES, _range("narrow", "10.96.7.0/24"))
        # The default range is gone, so that only the new one holds the address.
        await api.call("DELETE", f"{RANGES}/kubernetes")
        conditions = api.server._service_cidrs
        conditions.resume()
        await api.call("DELETE", f"{RANGES}/narrow")
        conditions.resume()
        reply = await api.call("GET", f"{RANGES}/narrow")
        assert _condition(reply)[:2] == ("False", "Terminating")
        await api.call("DELETE", f"{SERVICES}/web")
        conditions.resume()
        assert (await api.call("GET", f"{RANGES}/narrow")).status == 404


@pytest.mark.parametrize(
    ("others", "addresses", "want"),
    [
        pytest.param({}, [], True, id="nothing in use"),
        pytest.param({}, ["10.0.0.5"], False, id="in use"),
        pytest.param({}, ["10.1.0.5"], True, id="another range's address"),
        pytest.param({}, ["10.0.0.0", "10.0.0.255"], True, id="addresses never handed out"),
        pytest.param({"b": ["10.0.0.0/16"]}, ["10.0.0.5"], True, id="within a larger one"),
        pytest.param({"b": ["10.0.0.0/24"]}, ["10.0.0.5"], True, id="a second one of the kind"),
        pytest.param({"b": ["10.0.0.0/25"]}, ["10.0.0.5"], True, id="the address held elsewhere"),
        pytest.param({"b": ["10.0.0.0/25"]}, ["10.0.0.200"], False, id="held here alone"),
        pytest.param({"b": ["fd00::/64"]}, ["10.0.0.5"], False, id="another family"),
    ],
)
def test_when_a_range_may_go(
    others: dict[str, list[str]], addresses: list[str], want: bool
) -> None:
    """A ServiceCIDR may go when each cluster IP in it has another ServiceCIDR."""
    ranges = {
        name: [ip_network(cidr) for cidr in cidrs]
        for name, cidrs in {"a": ["10.0.0.0/24"], **others}.items()
    }
    holder = SoleHolder("a", ranges)
    assert any(holder.holds(ip_address(one)) for one in addresses) is not want


def test_which_addresses_a_range_holds() -> None:
    """The address of the network is none of IPv6's, and the last one is."""
    network = ip_network("fd00::/120")
    assert not contains_address(network, ip_address("fd00::"))
    assert contains_address(network, ip_address("fd00::ff"))

"""What a proxy shows over HTTP."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import msgspec

from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.status import EndpointStatus, ProxyPages, ProxyStatus
from keepclose.testing.api_server import serving
from keepclose.testing.recording_writer import RecordingWriter
from support.proxies import FakeCounters, cluster_of, hinted, plain


async def test_the_pages(tmp_path: Path) -> None:
    """Every page of a proxy that routes two Services."""
    async with serving(tmp_path) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        web = await cluster.add_service()
        await cluster.add_service("idle")
        await cluster.set_endpoints(
            hinted("10.0.0.1", "zone-a", "n1"),
            hinted("10.0.0.2", "zone-b", "n2"),
            hinted("10.0.0.3", "zone-b", "n2", ready=False, serving=True, terminating=True),
        )
        counts = FakeCounters()
        async with cluster.proxied("n1", writer=RecordingWriter(), counts=counts) as proxy:
            await cluster.settle(proxy)
            counts.lead(web.spec.cluster_ip, 80, [42])
            pages = ProxyPages(
                ProxySettings("n1"),
                metrics=proxy.metrics.page,
                refresh=proxy.counters.refresh,
                status=proxy.status,
            )
            port = await pages.start("127.0.0.1", 0)
            try:
                async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                    assert await (await session.get("/proxyMode")).text() == "nftables"
                    assert await (await session.get("/healthz")).text() == "ok"
                    assert (await (await session.get("/configz")).json())["node_name"] == "n1"
                    body = await (await session.get("/metrics")).text()
                    series = (
                        'client_zone="zone-a",endpoint_zone="zone-a",kind="service",'
                        'mode="PreferSameZone",namespace="default",port="http",protocol="TCP",'
                        'service="web"'
                    )
                    assert f"keepclose_flow_connections_total{{{series}}} 42.0" in body
                    answer = await session.get("/debug/services.json?service=web")
                    found = msgspec.json.decode(await answer.read(), type=ProxyStatus)
            finally:
                await pages.stop()
        assert (found.node, found.zone, found.counted) == ("n1", "zone-a", True)
        assert {name: one.service_ports for name, one in found.families.items()} == {
            "IPv4": 2,
            "IPv6": 0,
        }
        [one] = found.services
        assert (one.namespace, one.name, one.connections) == ("default", "web", {"zone-a": 42})
        [port_status] = one.ports
        assert port_status.cluster_ip == web.spec.cluster_ip
        assert (port_status.mode, port_status.internal) == ("PreferSameZone", "1 endpoint")
        assert port_status.endpoints == (
            EndpointStatus("10.0.0.1", 8080, "zone-a", "n1", "ready", used=True),
            EndpointStatus("10.0.0.2", 8080, "zone-b", "n2", "ready", used=False),
            EndpointStatus("10.0.0.3", 8080, "zone-b", "n2", "terminating, serving", used=False),
        )
        assert [reason.code.value for reason in port_status.reasons] == ["SameZone"]


async def test_refusals_in_the_status(tmp_path: Path) -> None:
    """Traffic that is refused or dropped says so."""
    async with serving(tmp_path) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        await cluster.add_service("idle")
        await cluster.add_service(
            "local", type="NodePort", internalTrafficPolicy="Local", externalTrafficPolicy="Local"
        )
        await cluster.set_endpoints(
            plain("10.0.0.1", node="n2"), plain("10.0.0.2", ready=False), service="local"
        )
        async with cluster.proxied("n1", writer=RecordingWriter()) as proxy:
            await cluster.settle(proxy)
            idle, local = proxy.status(namespace="default").services
            assert (idle.ports[0].internal, idle.ports[0].external) == ("reject", "")
            assert (local.ports[0].internal, local.ports[0].external) == ("drop", "drop")
            assert [one.state for one in local.ports[0].endpoints] == ["ready", "not ready"]
            assert proxy.status(namespace="other").services == ()

"""The webhook as a whole: served over TLS, with its view filled from an API server."""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace

from keepclose.demand.settings import DemandOptions, DemandOrigin
from keepclose.heuristics.discovery import find_heuristics
from keepclose.heuristics.process import (
    HeuristicLimits,
    IsolatedHeuristic,
    close_heuristics,
    defer_heuristics,
)
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.errors import ConfigError
from keepclose.kube.requests import ENDPOINT_SLICES, EVENTS, LEASES, SERVICES
from keepclose.kube.transport.retries import Retries
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import Gate, parse_gates
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.demand import DemandSettings
from keepclose.runtime.pages import ListenAddress
from keepclose.runtime.program import ReadyMessage
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, serving
from keepclose.webhook.admission import ClusterView, Webhook
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.process import WEBHOOK_LEASE_NAME, WebhookProcess, serve_webhook
from keepclose.webhook.registration import ServingPair
from keepclose.webhook.scope import HintView
from keepclose.webhook.settings import WebhookSettings
from support.builders import endpoint, endpoint_slice, service
from support.certificates import Authority
from support.controllers import CLOCK, World, world
from support.live.faulty_heuristics import HOLD_VARIABLE

DISTRIBUTION = "keepclose.dev/traffic-distribution"
SUBSETTING = "endpointslice.kubernetes.io/subsetting"
GATES = (
    "TrafficDistributionCustomHeuristics=true,ServiceTrafficDistributionStatus=true,"
    "TopologyAwareSubsetting=true"
)
SETTINGS = ControllerSettings(
    plan=PlannerSettings(gates=parse_gates(GATES), heuristics=find_heuristics()),
    slice_delay_s=0.01,
    retry_delay_s=0.01,
)
ZONES = ("zone-a", "zone-b", "zone-c")


@pytest.fixture
def files(tmp_path: Path) -> WebhookSettings:
    """Make a certificate in files, and settings that use it."""
    authority = Authority()
    pair = authority.issue("webhook", hosts=("127.0.0.1",))
    write_pair(tmp_path, pair.certificate, pair.key, authority.certificate)
    return WebhookSettings(
        host="127.0.0.1",
        port=0,
        certificate_file=str(tmp_path / "tls.crt"),
        key_file=str(tmp_path / "tls.key"),
        ca_file=str(tmp_path / "ca.crt"),
        registers=False,
    )


def write_pair(directory: Path, certificate: bytes, key: bytes, ca: bytes) -> None:
    """Write a certificate to its files."""
    for name, content in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", ca)):
        (directory / name).write_bytes(content)


def ca_of(files: WebhookSettings) -> bytes:
    """Return the authority to trust."""
    return Path(files.ca_file).read_bytes()


class Asked:
    """A webhook as API servers see it."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self.url = f"https://127.0.0.1:{port}"

    async def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page."""
        async with self._session.get(self.url + path) as answer:
            return answer.status, await answer.text()

    async def post(self, body: bytes) -> tuple[int, Any]:
        """Return the status and the JSON value of an answer."""
        async with self._session.post(self.url + "/hints", data=io.BytesIO(body)) as answer:
            text = await answer.text()
            return answer.status, msgspec.json.decode(text) if answer.status == 200 else text

    async def review(self, new: EndpointSlice, old: EndpointSlice | None = None) -> Any:
        """Return the steps of the answer about a slice, None when there are none."""
        request = {
            "uid": "u1",
            "operation": "CREATE" if old is None else "UPDATE",
            "object": new,
            "oldObject": old,
        }
        status, answered = await self.post(msgspec.json.encode({"request": request}))
        assert status == 200
        response = answered["response"]
        assert (response["uid"], response["allowed"]) == ("u1", True)
        patch = response.get("patch")
        return None if patch is None else msgspec.json.decode(base64.b64decode(patch))


@asynccontextmanager
async def trusting(ca: bytes, port: int) -> AsyncIterator[Asked]:
    """Connect as an API server does that was told of the authority."""
    context = ssl.create_default_context(cadata=ca.decode())
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Asked(session, port)


@asynccontextmanager
async def served(view: ClusterView, *, ready: bool = True) -> AsyncIterator[Asked]:
    """Serve a view for the time of the block."""
    authority = Authority()
    pair = authority.issue("webhook", hosts=("127.0.0.1",))
    webhook = Webhook(view, is_ready=lambda: ready, metrics=WebhookMetrics(), clock=CLOCK)
    webhook.load_certificate(ServingPair(pair.certificate, pair.key, authority.certificate))
    port = await webhook.start("127.0.0.1", 0)
    try:
        async with trusting(authority.certificate, port) as asked:
            yield asked
    finally:
        await webhook.stop()


@asynccontextmanager
async def replica(
    directory: Path,
    files: WebhookSettings,
    *,
    settings: ControllerSettings = SETTINGS,
    leader_elect: bool = False,
    clock: Clock = CLOCK,
    demand: DemandOptions | None = None,
) -> AsyncIterator[WebhookProcess]:
    """Run a webhook on the API server of a directory until the end of the block."""
    connection = load_connection_settings(directory / "kubeconfig", env={})
    async with connect(connection, clock=CLOCK, retries=Retries(max_elapsed=0.0)) as client:
        process = WebhookProcess(
            client, settings, files, clock=clock, leader_elect=leader_elect, demand=demand
        )
        task = asyncio.create_task(process.run())
        try:
            async with asyncio.timeout(PATIENCE):
                await process.synced.wait()
            yield process
        finally:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()


async def until(is_so: Callable[[], Any]) -> None:
    """Return when an answer is true."""
    async with asyncio.timeout(PATIENCE):
        # NB: no event tells of what a test waits for here.
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def add_cluster(cluster: World, annotations: dict[str, str], **spec: Any) -> None:
    """Add three nodes, a Service and a slice that another controller packed."""
    for number, zone in enumerate(ZONES):
        await cluster.add_node(f"n{number}", zone)
    await cluster.add_service("web", annotations=annotations, **spec)
    await add_slice(cluster, "web-1", "zone-a", "zone-b")


async def add_slice(cluster: World, name: str, *zones: str, first: int = 1) -> None:
    """Add a slice with a ready endpoint in each of the zones."""
    endpoints = [
        endpoint(f"10.0.0.{first + number}", zone=zone, node_name=f"n{ZONES.index(zone)}")
        for number, zone in enumerate(zones)
    ]
    piece = endpoint_slice(*endpoints, name=name)
    meta = replace(piece.metadata, uid="", owner_references=())
    await cluster.client.create(ENDPOINT_SLICES, replace(piece, metadata=meta))


async def hints(cluster: World) -> list[list[str]]:
    """Return the hinted zones of the endpoints of each slice."""
    return [
        [
            "" if one.hints is None else ",".join(zone.name for zone in one.hints.for_zones)
            for one in piece.endpoints
        ]
        for piece in await cluster.slices("web")
    ]


async def expect_hints(cluster: World, want: Sequence[Sequence[str]]) -> None:
    """Return when the hints are as wanted."""
    found: list[list[str]] = []

    async def is_so() -> bool:
        nonlocal found
        found = await hints(cluster)
        return found == [list(one) for one in want]

    try:
        await until(is_so)
    except TimeoutError:
        assert found == [list(one) for one in want]


async def annotate(cluster: World, **values: str | None) -> None:
    """Set annotations of the Service, or remove them."""
    names = {"distribution": DISTRIBUTION, "subsetting": SUBSETTING}
    patch = {"metadata": {"annotations": {names[key]: value for key, value in values.items()}}}
    await cluster.change(SERVICES, "web", patch)


async def test_slices_are_answered_over_tls() -> None:
    """A slice of a Service that asks comes back with its hints."""
    view = HintView(SETTINGS.plan)
    view.caches.services.put(service("web", annotations={DISTRIBUTION: "PreferSameZone"}))
    async with served(view) as asked:
        assert await asked.get("/healthz") == (200, "ok")
        assert await asked.get("/readyz") == (200, "ok")
        found = await asked.review(endpoint_slice(endpoint(zone="zone-a")))
    value = {"forZones": [{"name": "zone-a"}]}
    assert found == [{"op": "add", "path": "/endpoints/0/hints", "value": value}]


async def test_until_the_view_is_complete_slices_pass() -> None:
    """A replica that has just started is not ready, and holds nothing up."""
    view = HintView(SETTINGS.plan)
    view.caches.services.put(service("web", annotations={DISTRIBUTION: "PreferSameZone"}))
    async with served(view, ready=False) as asked:
        assert await asked.get("/readyz") == (503, "the caches are not complete yet")
        assert await asked.review(endpoint_slice(endpoint(zone="zone-a"))) is None


async def test_what_is_no_review_is_refused() -> None:
    """A body that is no review gets an error, which lets the write through too."""
    async with served(HintView(SETTINGS.plan)) as asked:
        status, text = await asked.post(b"{}")
    assert (status, text) == (400, "the body must be an AdmissionReview")


async def test_a_heuristic_that_breaks_lets_slices_pass() -> None:
    """Whatever a third party's heuristic does, the write is allowed as it is."""

    class Broken:
        def allocate(self, demand: Any) -> Any:
            raise ZeroDivisionError(demand)

    plan = replace(SETTINGS.plan, heuristics={"example.dev/Broken": Broken()})
    view = HintView(plan)
    view.caches.services.put(service("web", annotations={DISTRIBUTION: "example.dev/Broken"}))
    async with served(view) as asked:
        assert await asked.review(endpoint_slice(endpoint(zone="zone-a"))) is None


async def test_a_heuristic_in_a_process_of_its_own_hints_slices() -> None:
    """The review waits for its answer, and one that fails lets the slice pass without hints."""
    view = HintView(
        replace(
            SETTINGS.plan,
            heuristics=defer_heuristics(
                {
                    f"example.dev/{name}": IsolatedHeuristic(
                        f"example.dev/{name}",
                        f"support.live.faulty_heuristics:{name}",
                        limits=limits,
                    )
                    for name, limits in {
                        "stay": HeuristicLimits(allocate_s=60.0),
                        "spins": HeuristicLimits(allocate_s=0.3),
                    }.items()
                }
            ),
        )
    )
    for name in ("stay", "spins"):
        asking = {DISTRIBUTION: f"example.dev/{name}"}
        view.caches.services.put(service(name, annotations=asking))
    async with served(view) as asked:
        piece = endpoint_slice(endpoint(zone="zone-a"), service_name="stay")
        value = {"forZones": [{"name": "zone-a"}]}
        want = [{"op": "add", "path": "/endpoints/0/hints", "value": value}]
        assert await asked.review(piece) == want
        piece = endpoint_slice(endpoint(zone="zone-a"), service_name="spins")
        assert await asked.review(piece) is None
    close_heuristics(view.settings.heuristics)


async def test_a_heuristic_that_fails_is_announced(tmp_path: Path, files: WebhookSettings) -> None:
    """Its Service has no hints, a condition that says why, one Event and a metric."""
    value = "example.dev/Raises"
    heuristic = IsolatedHeuristic(value, "support.live.faulty_heuristics:raises")
    settings = replace(
        SETTINGS, plan=replace(SETTINGS.plan, heuristics={value: heuristic}), most_retries=2
    )
    message = f"{value}: allocate raised ValueError: cannot divide 2 zones"
    async with serving(tmp_path / "api", gates=parse_gates(GATES)) as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: value})

        async def events() -> list[tuple[str, int]]:
            page = await cluster.client.list_all(EVENTS, namespace="default")
            found = [one for one in page.items if one.reason == "HeuristicFailed"]
            return [(one.message, one.count) for one in found]

        async with replica(tmp_path / "api", files, settings=settings) as process:
            await until(events)
            await until(lambda: _is_idle(process))
            assert await hints(cluster) == [["", ""]]
            want = f"{message}; no hints are set, so every node uses all endpoints"
            assert await events() == [(want, 1)]
            said = {one.type: (one.reason, one.message) for one in await cluster.conditions()}
            programmed = said["keepclose.dev/TrafficDistributionProgrammed"]
            assert programmed == ("HeuristicFailed", message)
            labels = {"heuristic": value, "cause": "Raised"}
            name = "keepclose_heuristic_failures_total"
            assert process.metrics.registry.get_sample_value(name, labels)


async def test_hints_stay_while_the_nodes_change_under_an_answer(
    tmp_path: Path, files: WebhookSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer to a question that is outdated is fetched again; no hint is removed meanwhile."""
    value = "example.dev/Waits"
    hold = tmp_path / "hold"
    monkeypatch.setenv(HOLD_VARIABLE, str(hold))
    heuristic = IsolatedHeuristic(
        value, "support.live.faulty_heuristics:waits", limits=HeuristicLimits(allocate_s=600.0)
    )
    settings = replace(SETTINGS, plan=replace(SETTINGS.plan, heuristics={value: heuristic}))
    async with serving(tmp_path / "api", gates=parse_gates(GATES)) as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: value})
        async with replica(tmp_path / "api", files, settings=settings) as process:
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            await until(lambda: _is_idle(process))
            hold.touch()
            await cluster.add_node("n3", "zone-d")

            async def is_asked() -> bool:
                return hold.with_suffix(".asked").exists()

            async def knows_both() -> bool:
                return len(process.view.caches.nodes) == 5

            await until(is_asked)
            await cluster.add_node("n4", "zone-e")
            await until(knows_both)
            hold.unlink()
            await until(lambda: _is_idle(process))
            assert await hints(cluster) == [["zone-a", "zone-b"]]
            written = process.metrics.registry.get_sample_value("keepclose_hint_writes_total")
            assert written == 1


async def test_large_slices_are_answered() -> None:
    """A thousand endpoints before and after are not too many."""
    view = HintView(SETTINGS.plan)
    view.caches.services.put(service("web", annotations={DISTRIBUTION: "PreferSameZone"}))
    many = [
        endpoint(f"10.0.{number // 250}.{number % 250}", zone="zone-a", pod_name="p" * 200)
        for number in range(1000)
    ]
    piece = endpoint_slice(*many)
    async with served(view) as asked:
        assert len(await asked.review(piece, piece)) == 1000


def test_a_key_that_does_not_fit_is_told() -> None:
    """A certificate with the key of another is an error of the settings."""
    one, other = Authority().issue("a"), Authority().issue("b")
    webhook = Webhook(
        HintView(SETTINGS.plan), is_ready=lambda: True, metrics=WebhookMetrics(), clock=CLOCK
    )
    with pytest.raises(ConfigError, match="do not match"):
        webhook.load_certificate(ServingPair(one.certificate, other.key, b""))


async def test_hints_are_set_where_nobody_writes(tmp_path: Path, files: WebhookSettings) -> None:
    """Opting in, another wish, new slices and opting out are followed without the webhook."""
    async with serving(tmp_path / "api", gates=parse_gates(GATES)) as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameZone"})
        async with replica(tmp_path / "api", files) as process:
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            await annotate(cluster, distribution="keepclose.dev/Balanced")
            await add_slice(cluster, "web-2", "zone-a", "zone-a", "zone-c", "zone-c", first=11)
            await expect_hints(
                cluster, [["zone-a", "zone-b"], ["zone-a", "zone-b", *["zone-c"] * 2]]
            )
            await annotate(cluster, distribution=None)
            await expect_hints(cluster, [["", ""], [""] * 4])
            await until(lambda: _is_idle(process))
            assert await cluster.conditions() == ()


async def test_hints_follow_measured_demand(tmp_path: Path, files: WebhookSettings) -> None:
    """Reviews and the leader plan with measured shares; hostile rates change nothing."""
    path = tmp_path / "demand.csv"

    def measure(*rates: str) -> None:
        rows = [f"default,web,zone-{zone},{rate}" for zone, rate in zip("abc", rates, strict=True)]
        new = tmp_path / "new.csv"
        new.write_text("\n".join(["namespace,service,zone,rate", *rows]))
        new.rename(path)

    measure("70", "20", "10")
    options = DemandOptions(
        DemandOrigin.FILE,
        use=DemandSettings(half_life_s=0.01, interval_s=0.0),
        period_s=0.05,
        file=str(path),
    )
    async with serving(tmp_path / "api", gates=parse_gates(GATES)) as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "keepclose.dev/Balanced"})
        await cluster.remove(ENDPOINT_SLICES, "web-1")
        await add_slice(cluster, "web-2", *[zone for zone in ZONES for _ in range(3)], first=11)
        async with (
            replica(tmp_path / "api", files, demand=options) as process,
            trusting(ca_of(files), process.port) as asked,
        ):
            await until(lambda: _has_hints(cluster, {"zone-a": 6, "zone-b": 2, "zone-c": 1}))
            (stored,) = await cluster.slices("web")
            assert await asked.review(stored, stored) is None
            measure("10", "20", "70")
            await until(lambda: _has_hints(cluster, {"zone-a": 1, "zone-b": 2, "zone-c": 6}))
            [_, programmed] = await cluster.conditions()
            assert programmed.message.endswith("the shares of zones are measured by file")
            written = (await cluster.slices("web"))[0].metadata.resource_version
            demand = process.demand
            assert demand is not None
            readings = demand.readings
            measure("nan", "inf", "-1")

            async def is_read() -> bool:
                return demand.readings > readings + 2

            await until(is_read)
            await until(lambda: _is_idle(process))
            assert (await cluster.slices("web"))[0].metadata.resource_version == written
            page = process.metrics.page().decode()
            assert 'keepclose_demand_services{source="measured"} 1.0' in page


async def test_a_new_replica_reviews_nothing_before_demand_was_read(
    tmp_path: Path, files: WebhookSettings
) -> None:
    """It would hint by CPU what the others have hinted by demand; slices pass until then."""
    asked_at, answered = asyncio.Event(), asyncio.Event()
    series = [
        {"metric": {"namespace": "default", "service": "web", "zone": zone}, "value": [0, rate]}
        for zone, rate in zip(ZONES, ("70", "20", "10"), strict=True)
    ]
    body = msgspec.json.encode(
        {"status": "success", "data": {"resultType": "vector", "result": series}}
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked_at.set()
        await answered.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    prometheus = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = prometheus.sockets[0].getsockname()[1]
    options = DemandOptions(
        DemandOrigin.PROMETHEUS,
        prometheus_url=f"http://127.0.0.1:{port}",
        query="sum by (namespace, service, zone) (demand)",
    )
    written = endpoint_slice(
        *(endpoint(f"10.0.0.{number + 1}", zone=ZONES[number // 3]) for number in range(9)),
        name="web-1",
    )
    async with serving(tmp_path / "api", gates=parse_gates(GATES)) as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "keepclose.dev/Balanced"})
        connection = load_connection_settings(tmp_path / "api" / "kubeconfig", env={})
        async with connect(connection, clock=CLOCK, retries=Retries(max_elapsed=0.0)) as client:
            process = WebhookProcess(
                client, SETTINGS, files, clock=CLOCK, leader_elect=False, demand=options
            )
            task = asyncio.create_task(process.run())
            try:
                async with asyncio.timeout(PATIENCE):
                    await asked_at.wait()
                async with trusting(ca_of(files), process.port) as asked:
                    assert not process.synced.is_set()
                    assert await asked.review(written) is None
                    answered.set()
                    async with asyncio.timeout(PATIENCE):
                        await process.synced.wait()
                    patch = await asked.review(written)
                zones = Counter(step["value"]["forZones"][0]["name"] for step in patch)
                assert zones == {"zone-a": 6, "zone-b": 2, "zone-c": 1}
            finally:
                answered.set()
                task.cancel()
                await asyncio.wait((task,))
    prometheus.close()
    await prometheus.wait_closed()


async def _has_hints(cluster: World, want: dict[str, int]) -> bool:
    return Counter(zone for row in await hints(cluster) for zone in row) == want


async def _is_idle(process: WebhookProcess) -> bool:
    await asyncio.sleep(0.05)
    return process.keeper.is_idle


async def test_the_view_follows_the_api_server(tmp_path: Path, files: WebhookSettings) -> None:
    """Reviews are answered by what reflectors brought, once that is complete."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameNode"})
        async with (
            replica(tmp_path / "api", files) as process,
            trusting(ca_of(files), process.port) as asked,
        ):
            found = await asked.review(
                endpoint_slice(endpoint(zone="zone-a", node_name="n0"), name="web-9")
            )
    value = {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "n0"}]}
    assert found == [{"op": "add", "path": "/endpoints/0/hints", "value": value}]


async def test_only_our_hints_are_taken_back(tmp_path: Path, files: WebhookSettings) -> None:
    """Where the field asks for something, its hints stay when the annotation goes."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        spec = {"trafficDistribution": "PreferSameZone"}
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameNode"}, **spec)
        async with replica(tmp_path / "api", files):
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            (piece,) = await cluster.slices("web")
            assert [one.hints and len(one.hints.for_nodes) for one in piece.endpoints] == [1, 1]
            await annotate(cluster, distribution=None)

            async def is_plain() -> bool:
                (piece,) = await cluster.slices("web")
                return all(one.hints and not one.hints.for_nodes for one in piece.endpoints)

            await until(is_plain)
            assert await hints(cluster) == [["zone-a", "zone-b"]]


async def test_services_that_never_asked_are_left_alone(
    tmp_path: Path, files: WebhookSettings
) -> None:
    """Hints of others stay on slices of Services that want nothing of us."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameZone"})
        await cluster.add_service("other")
        piece = endpoint_slice(
            endpoint("10.0.1.1", zone="zone-a", for_zones=("zone-c",)),
            name="other-1",
            service_name="other",
        )
        meta = replace(piece.metadata, uid="", owner_references=())
        await cluster.client.create(ENDPOINT_SLICES, replace(piece, metadata=meta))
        async with replica(tmp_path / "api", files) as process:
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            await until(lambda: _is_idle(process))
            (kept,) = await cluster.slices("other")
            assert kept.endpoints == piece.endpoints


async def test_hints_that_are_removed_are_set_again_after_a_wait(
    tmp_path: Path, files: WebhookSettings
) -> None:
    """What another client writes past the webhook is put right, but not at once."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameZone"})
        async with replica(tmp_path / "api", files) as process:
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            (piece,) = await cluster.slices("web")
            plain = tuple(replace(one, hints=None) for one in piece.endpoints)
            # NB: the wait may begin before we hear that they are removed.
            removed = CLOCK.monotonic()
            await cluster.client.update(ENDPOINT_SLICES, replace(piece, endpoints=plain))
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            assert CLOCK.monotonic() - removed >= 0.9
            assert b"keepclose_hint_losses_total 1.0" in process.metrics.page()


async def test_a_service_that_is_gone_is_forgotten(tmp_path: Path, files: WebhookSettings) -> None:
    """Nothing is written for it, and one of the same name begins like a new one."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameZone"})
        async with replica(tmp_path / "api", files) as process:
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            key = (await _web(cluster)).key
            await cluster.remove(SERVICES, "web")

            async def is_gone() -> bool:
                return process.keeper.explain(key) is None and await _is_idle(process)

            await until(is_gone)
            await cluster.add_service("web", annotations={DISTRIBUTION: "PreferSameNode"})
            await add_slice(cluster, "web-7", "zone-c")

            async def is_hinted() -> bool:
                found = await cluster.slices("web")
                return any(one.hints and one.hints.for_nodes for x in found for one in x.endpoints)

            await until(is_hinted)


async def test_conditions_have_a_name_of_their_own(tmp_path: Path, files: WebhookSettings) -> None:
    """Beside another controller ours say whose they are, and go with the wish."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameZone"})

        async def has_conditions() -> bool:
            return len(await cluster.conditions()) == 2

        async with replica(tmp_path / "api", files):
            await until(has_conditions)
            found = {one.type: (one.status, one.reason) for one in await cluster.conditions()}
    assert found == {
        "keepclose.dev/TrafficDistributionAccepted": ("True", "Accepted"),
        "keepclose.dev/TrafficDistributionProgrammed": ("True", "HintsPopulated"),
    }


async def test_conditions_go_with_the_gate(tmp_path: Path, files: WebhookSettings) -> None:
    """A webhook with the gate off removes its conditions, those of Services that ask or not."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameZone"})
        await cluster.add_service("former")
        names = [f"keepclose.dev/TrafficDistribution{one}" for one in ("Accepted", "Programmed")]
        mine = [{"type": name, "status": "True", "reason": "So"} for name in names]
        theirs = {"type": "TrafficDistributionAccepted", "status": "True", "reason": "So"}
        for service_name in ("web", "former"):
            await cluster.client.patch(
                SERVICES,
                service_name,
                {"status": {"conditions": [*mine, theirs]}},
                namespace=cluster.namespace,
                subresource="status",
            )

        async def are_gone() -> bool:
            found = [await cluster.conditions(name) for name in ("web", "former")]
            return all([one.type for one in each] == [theirs["type"]] for each in found)

        gates = SETTINGS.plan.gates.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)
        without = replace(SETTINGS, plan=replace(SETTINGS.plan, gates=gates))
        async with replica(tmp_path / "api", files, settings=without):
            await until(are_gone)


async def test_what_cannot_be_had_is_said(tmp_path: Path, files: WebhookSettings) -> None:
    """A wish for subsets gets an Event once, and no hints; those of before are taken back."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameZone"})

        async def messages() -> list[str]:
            page = await cluster.client.list_all(EVENTS, namespace="default")
            return [one.message for one in page.items if one.reason == "HintsNotSet"]

        async with replica(tmp_path / "api", files) as process:
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            await annotate(cluster, subsetting="Prefer")
            await until(messages)
            await expect_hints(cluster, [["", ""]])
            await until(lambda: _is_idle(process))
            (message,) = await messages()
            explained = process.keeper.explain((await _web(cluster)).key)
    assert "needs slices of its own for each zone" in message
    assert explained is not None
    assert explained.errors == (message,)


async def _web(cluster: World) -> Any:
    return await cluster.client.get(SERVICES, "web", namespace="default")


async def test_every_replica_answers_and_one_keeps(tmp_path: Path, files: WebhookSettings) -> None:
    """Without the lease a replica answers all the same, and takes over when the other stops."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {})
        ca = ca_of(files)
        new = endpoint_slice(endpoint(zone="zone-a"), name="web-9")
        async with replica(tmp_path / "api", files, leader_elect=True) as first:
            await until(lambda: _has_holder(cluster))
            async with replica(tmp_path / "api", files, leader_elect=True) as second:
                await annotate(cluster, distribution="PreferSameZone")
                await expect_hints(cluster, [["zone-a", "zone-b"]])
                for one in (first, second):
                    async with trusting(ca, one.port) as asked:
                        assert len(await asked.review(new)) == 1
                # NB: a write is counted when its answer comes, after others can see it.
                await until(lambda: _has_written(first))
                assert not await _has_written(second)


async def _has_written(process: WebhookProcess) -> bool:
    return b"keepclose_hint_writes_total 1.0" in process.metrics.page()


async def _has_holder(cluster: World) -> bool:
    page = await cluster.client.list_all(LEASES, namespace="kube-system")
    return any(
        one.metadata.name == WEBHOOK_LEASE_NAME and one.spec.holder_identity for one in page.items
    )


class Hurried(SystemClock):
    """A clock whose long sleeps are short."""

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not for long."""
        await super().sleep(min(seconds, 0.02))


async def test_a_renewed_certificate_is_taken(tmp_path: Path, files: WebhookSettings) -> None:
    """New connections get the certificate that is in the files now; half a pair does no harm."""
    other = Authority()
    renewed = other.issue("webhook", hosts=("127.0.0.1",))
    async with serving(tmp_path / "api"), replica(tmp_path / "api", files, clock=Hurried()) as one:
        write_pair(tmp_path, renewed.certificate, b"", other.certificate)
        async with trusting(other.certificate, one.port) as asked:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await asked.get("/healthz")
        write_pair(tmp_path, renewed.certificate, renewed.key, other.certificate)

        async def is_taken() -> bool:
            async with trusting(other.certificate, one.port) as asked:
                try:
                    return await asked.get("/healthz") == (200, "ok")
                except aiohttp.ClientConnectorCertificateError:
                    return False

        await until(is_taken)


async def test_pages_tell_what_was_decided(tmp_path: Path, files: WebhookSettings) -> None:
    """The process says where it answers, and its pages why a Service is as it is."""
    async with serving(tmp_path / "api") as api, world(api) as cluster:
        await add_cluster(cluster, {DISTRIBUTION: "PreferSameZone"})
        await cluster.add_service("other")
        told: asyncio.Queue[ReadyMessage] = asyncio.Queue()
        task = asyncio.create_task(
            serve_webhook(
                SETTINGS,
                files,
                load_connection_settings(tmp_path / "api" / "kubeconfig", env={}),
                leader_elect=False,
                clock=CLOCK,
                listening=ListenAddress("127.0.0.1", 0),
                on_ready=told.put_nowait,
            )
        )
        try:
            async with asyncio.timeout(PATIENCE):
                ready = await told.get()
            assert ready.url.startswith("https://127.0.0.1:")
            assert ready.text == (
                f"keepclose webhook answers at {ready.url}, pages at {ready.pages}"
            )
            await expect_hints(cluster, [["zone-a", "zone-b"]])
            pages = ready.pages
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{pages}/debug/services/default/web") as answer:
                    shown = await answer.json()
                async with session.get(f"{pages}/debug/services/default/other") as answer:
                    other = await answer.json()
        finally:
            task.cancel()
            await asyncio.wait((task,))
    assert shown["strategy"]["name"] == "PreferSameZone"
    assert shown["writes"]["IPv4"] == {"create": 0, "update": 0, "delete": 0, "unchanged": 1}
    assert other["errors"] == ["the Service is left to the built-in EndpointSlice controller"]

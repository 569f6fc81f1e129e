"""The sources of demand: flow agents, a Prometheus and a file, friendly and hostile."""

from __future__ import annotations

import asyncio
import json
import math
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from keepclose.accounting.flow_files import write_json_lines
from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowKind, FlowTable
from keepclose.demand import sources
from keepclose.demand.file_source import FileSource
from keepclose.demand.prometheus_queries import READY_QUERIES, find_query
from keepclose.demand.rates import parse_rates, rates_of_flows
from keepclose.demand.reader import READ_WITHIN_S
from keepclose.demand.settings import DemandMeasure
from keepclose.demand.sources import (
    AgentSource,
    DemandReadError,
    PrometheusSource,
    ReadErrors,
    TakePage,
    pages_of_addresses,
    pages_of_cluster,
)
from keepclose.demand.store import DemandStore
from keepclose.kube.clock import SystemClock
from keepclose.kube.errors import NotFound
from keepclose.model.meta import NamespacedName
from keepclose.routing.demand import DemandSettings
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.traffic_shares import Shares
from keepclose.testing.fake_clock import FakeClock
from support import builders
from support.certificates import Authority

WEB = NamespacedName("shop", "web")
ZONES = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}


def page(
    counts: dict[str, int], *, at: float, kind: FlowKind = FlowKind.SERVICE, size: int = 100
) -> bytes:
    """Return the page of an agent that has counted connections of shop/web by client zone."""
    table = FlowTable(start=1000.0, end=1000.0 + at)
    for zone, number in counts.items():
        key = FlowKey(kind, "shop", "web", "http", "TCP", zone, "zone-a")
        table.add(key, FlowCounts(connections=number, request_bytes=size * number))
    return "".join(write_json_lines(table)).encode()


class Agents:
    """The agents of a cluster: each has a page, or a reason why it has none."""

    def __init__(self, **pages: bytes | str) -> None:
        self.pages = pages
        self.error: Exception | None = None

    async def read(self, take: TakePage) -> ReadErrors:
        """Read them all."""
        if self.error is not None:
            raise self.error
        errors: dict[str, str] = {}
        for name, answer in self.pages.items():
            why = answer if isinstance(answer, str) else take(name, answer)
            if why:
                errors[name] = why
        return ReadErrors(errors)


async def start(agents: Agents, clock: FakeClock, *, second: Agents | None = None) -> AgentSource:
    """Return a source that has made its first two readings."""
    source = AgentSource(agents.read, clock=clock, kept_s=300.0, zones=lambda: ZONES)
    reading = asyncio.create_task(source.read())
    await clock.run_until_idle()
    agents.pages = (second or agents).pages
    await clock.advance(5.0)
    with_error = await asyncio.gather(reading, return_exceptions=True)
    assert with_error
    return source


def three(at: float, a: int, b: int, c: int) -> dict[str, bytes | str]:
    """Return the pages of three agents, each with the connections of its own zone."""
    counts = zip(ZONES.items(), (a, b, c), strict=True)
    return {node: page({zone: number}, at=at) for (node, zone), number in counts}


async def test_the_first_reading_of_agents_is_the_difference_of_two() -> None:
    """What agents counted in the first seconds gives rates, not what they counted before."""
    clock = FakeClock()
    agents = Agents(**three(10.0, 1000, 1000, 1000))
    source = AgentSource(agents.read, clock=clock, zones=lambda: ZONES)
    task = asyncio.create_task(source.read())
    await clock.run_until_idle()
    agents.pages = three(15.0, 1035, 1010, 1005)
    await clock.advance(5.0)
    reading = await task
    assert reading.rates == {WEB: {"zone-a": 7.0, "zone-b": 2.0, "zone-c": 1.0}}
    assert reading.notes == ()
    assert reading.period_s == pytest.approx(5.0)


async def test_an_agent_that_began_again_counts_from_there() -> None:
    """A counter that fell gives no negative rate."""
    clock = FakeClock()
    agents = Agents(**three(10.0, 1000, 0, 0))
    source = await start(agents, clock, second=Agents(**three(20.0, 1100, 10, 10)))
    agents.pages = three(30.0, 50, 20, 20)
    reading = await source.read()
    assert reading.rates[WEB]["zone-a"] == pytest.approx(5.0)


async def test_a_zone_that_sends_nothing_any_more_has_the_rate_0() -> None:
    """An agent that still has the row of a zone has measured that nothing was added to it."""
    clock = FakeClock()
    agents = Agents(**three(10.0, 0, 0, 0))
    source = await start(agents, clock, second=Agents(**three(20.0, 100, 100, 100)))
    agents.pages = three(30.0, 200, 200, 100)
    assert (await source.read()).rates == {WEB: {"zone-a": 10.0, "zone-b": 10.0, "zone-c": 0.0}}
    agents.pages = three(40.0, 200, 200, 100)
    assert (await source.read()).rates == {WEB: {"zone-a": 0.0, "zone-b": 0.0, "zone-c": 0.0}}


async def test_an_agent_that_does_not_answer_counts_as_before_for_a_while() -> None:
    """The rates of the last answer stay; the reading names the agent and why."""
    clock = FakeClock()
    zones = {**ZONES, "n4": "zone-c"}
    agents = Agents(**three(10.0, 0, 0, 0), n4=page({"zone-c": 0}, at=10.0))
    source = AgentSource(agents.read, clock=clock, kept_s=300.0, zones=lambda: zones)
    task = asyncio.create_task(source.read())
    await clock.run_until_idle()
    agents.pages = {**three(20.0, 100, 100, 100), "n4": page({"zone-c": 100}, at=20.0)}
    await clock.advance(5.0)
    assert (await task).rates[WEB]["zone-c"] == pytest.approx(20.0)
    agents.pages = {**three(30.0, 200, 200, 200), "n4": "refused"}
    reading = await source.read()
    assert reading.rates[WEB]["zone-c"] == pytest.approx(20.0)
    assert reading.notes == ("n4: refused",)
    await clock.advance(301.0)
    agents.pages = {**three(40.0, 300, 300, 300), "n4": "refused"}
    assert (await source.read()).rates[WEB]["zone-c"] == pytest.approx(10.0)


async def test_rates_of_agents_that_are_all_silent_are_as_old_as_they_are() -> None:
    """What was measured before is not measured again, be it of one zone or of all."""
    clock = FakeClock()
    agents = Agents(**three(10.0, 0, 0, 0))
    source = await start(agents, clock, second=Agents(**three(20.0, 100, 100, 100)))
    assert (await source.read()).age_s == 0.0
    await clock.advance(100.0)
    agents.pages = {**three(120.0, 200, 200, 0), "n3": "refused"}
    assert (await source.read()).age_s == pytest.approx(100.0)
    await clock.advance(100.0)
    agents.pages = dict.fromkeys(ZONES, "refused")
    assert (await source.read()).age_s == pytest.approx(200.0)


async def test_agents_at_addresses_are_as_young_as_the_youngest_of_them() -> None:
    """Without their nodes it is not known of which zone one is silent."""
    clock = FakeClock()
    agents = Agents(**three(10.0, 0, 0, 0))
    source = AgentSource(agents.read, clock=clock)
    reading = asyncio.create_task(source.read())
    await clock.run_until_idle()
    agents.pages = three(20.0, 10, 10, 10)
    await clock.advance(5.0)
    assert (await reading).age_s == 0.0
    await clock.advance(10.0)
    agents.pages = {**three(30.0, 20, 20, 20), "n3": "refused"}
    assert (await source.read()).age_s == 0.0
    await clock.advance(10.0)
    agents.pages = dict.fromkeys(ZONES, "refused")
    assert (await source.read()).age_s == pytest.approx(10.0)


async def test_a_zone_whose_agents_are_silent_is_not_taken_for_one_without_clients() -> None:
    """Nothing is measured if less than half of the agents of a zone answer, or it has none."""
    clock = FakeClock()
    agents = Agents(**three(10.0, 0, 0, 0))
    source = await start(agents, clock, second=Agents(**three(20.0, 100, 100, 100)))
    await clock.advance(301.0)
    agents.pages = {**three(400.0, 300, 300, 300), "n3": "connection refused"}
    with pytest.raises(DemandReadError, match="0 of 1 flow agents of zone zone-c answer: connec"):
        await source.read()
    del agents.pages["n3"]
    with pytest.raises(DemandReadError, match="0 of 0 flow agents of zone zone-c"):
        await source.read()


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b"<html><body>login</body></html>", id="HTML"),
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"start":"","end":"","hasBytes":true}\n{"kind":"service"', id="cut off"),
        pytest.param(b"\xff\xfe\x00" * 1000, id="no text"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(
            b'{"start":"","end":"","hasBytes":true}\n{"kind":"service","clientZone":"zone-a",'
            b'"endpointZone":"b","service":"web","namespace":"shop","connections":1e308}',
            id="huge number",
        ),
    ],
)
async def test_a_hostile_page_is_named_and_changes_nothing(hostile: bytes) -> None:
    """The agent is named with what is wrong with its page; its last rates stay."""
    clock = FakeClock()
    agents = Agents(**three(10.0, 0, 0, 0))
    source = await start(agents, clock, second=Agents(**three(20.0, 100, 100, 100)))
    agents.pages = {**three(30.0, 200, 200, 200), "n2": hostile}
    reading = await source.read()
    assert reading.rates[WEB] == pytest.approx({"zone-a": 10.0, "zone-b": 10.0, "zone-c": 10.0})
    assert len(reading.notes) == 1
    assert reading.notes[0].startswith("n2: ")


async def test_the_agent_of_a_node_that_is_not_ready_need_not_answer() -> None:
    """Its pod stays listed as running, and must not end the measurement of the whole cluster."""
    clock = FakeClock()
    agents = Agents(**three(10.0, 0, 0, 0), gone="no route to host")
    second = Agents(**three(20.0, 100, 100, 100), gone="no route to host")
    source = await start(agents, clock, second=second)
    agents.pages = {**three(30.0, 200, 200, 200), "gone": "no route to host"}
    reading = await source.read()
    assert reading.rates == {WEB: {"zone-a": 10.0, "zone-b": 10.0, "zone-c": 10.0}}
    assert reading.notes == ("gone: no route to host",)


async def test_an_agent_without_bytes_is_not_taken_for_one_without_traffic() -> None:
    """Where bytes count, a zone whose agents do not count them is not measured."""
    clock = FakeClock()
    source = AgentSource(
        (agents := Agents(**three(10.0, 0, 0, 0))).read,
        clock=clock,
        measure=DemandMeasure.BYTES,
        zones=lambda: ZONES,
    )
    blind = {
        f"n{number}": answer.replace(b'"hasBytes":true', b'"hasBytes":false')
        for number, answer in enumerate(
            page({"zone-c": count}, at=at) for count, at in ((0, 10.0), (50, 20.0))
        )
    }
    agents.pages["n3"] = blind["n0"]
    reading = asyncio.create_task(source.read())
    await clock.run_until_idle()
    agents.pages = {**three(20.0, 100, 100, 0), "n3": blind["n1"]}
    await clock.advance(5.0)
    with pytest.raises(DemandReadError, match="zone zone-c answer: it counts no bytes, because"):
        await reading


async def test_rows_of_all_agents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose rows are more than the limit leaves is named, and its page is not kept."""
    monkeypatch.setattr("keepclose.demand.sources.MAX_MEASURED_ROWS", 3)
    clock = FakeClock()
    second = Agents(**three(20.0, 2, 2, 2))
    source = await start(Agents(**three(10.0, 1, 1, 1)), clock, second=second)
    many = page({f"zone-{number}": 1 for number in range(3)}, at=30.0)
    agents = Agents(**{**three(30.0, 5, 5, 5), "n3": many})
    source._read_pages = agents.read
    reading = await source.read()
    assert any("more than 3 rows" in note for note in reading.notes)
    assert sum(len(agent.table or ()) for agent in source._agents.values()) <= 3


async def test_agents_that_cannot_be_listed_are_an_error() -> None:
    """An error of the API server, or no agent at all, is a reading that failed."""
    agents = Agents()
    source = AgentSource(agents.read, clock=FakeClock())
    with pytest.raises(DemandReadError, match="no flow agent in the namespace kube-system; "):
        await source.read()
    agents.error = NotFound(404, message="no such namespace")
    with pytest.raises(DemandReadError, match="cannot be listed"):
        await source.read()


def test_only_flows_to_services_from_zones_count() -> None:
    """Pods, egress and clients outside or unknown are no demand; bytes count if they shall."""
    table = FlowTable(start=1000.0, end=1010.0)
    for kind, zone in (
        (FlowKind.SERVICE, "zone-a"),
        (FlowKind.SERVICE, "(outside)"),
        (FlowKind.SERVICE, "(unknown)"),
        (FlowKind.POD, "zone-b"),
    ):
        counts = FlowCounts(connections=20, request_bytes=500, response_bytes=1500)
        table.add(FlowKey(kind, "shop", "web", "http", "TCP", zone, "zone-a"), counts)
    assert rates_of_flows(table, measure=DemandMeasure.CONNECTIONS) == {WEB: {"zone-a": 2.0}}
    assert rates_of_flows(table, measure=DemandMeasure.BYTES) == {WEB: {"zone-a": 200.0}}
    table.end = 0.0
    assert rates_of_flows(table, measure=DemandMeasure.BYTES) == {}


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def http_server(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve one answer to every request, perhaps over TLS, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def answers(body: bytes, status: int = 200) -> Answer:
    """Return what answers with a body."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def vector(*series: tuple[dict[str, str], str]) -> bytes:
    """Return an instant vector as Prometheus encodes it."""
    result = [{"metric": metric, "value": [1000.0, value]} for metric, value in series]
    document = {"status": "success", "data": {"resultType": "vector", "result": result}}
    return json.dumps(document).encode()


def labels(zone: str, **others: str) -> dict[str, str]:
    """Return the labels of a series of shop/web."""
    return {"namespace": "shop", "service": "web", "client_zone": zone, **others}


def prometheus(url: str, name: str = "flows") -> PrometheusSource:
    """Return a source that asks a ready query."""
    nodes = {"n1": "zone-a", "n2": "zone-b"}
    return PrometheusSource(url, find_query(name, {}), zones=lambda: nodes)


async def test_prometheus_answers_rates() -> None:
    """The query is sent as it is, and series become rates of Services by zone."""
    asked: list[str] = []
    body = vector((labels("zone-a"), "7"), (labels("zone-b"), "2.5"), ({"service": "x"}, "1"))

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.extend(parse_qs(urlsplit(request.path).query)["query"])
        answers(body)(request)

    with http_server(answer) as url:
        reading = await prometheus(url).read()
    assert reading.rates == {WEB: {"zone-a": 7.0, "zone-b": 2.5}}
    assert asked == [READY_QUERIES["flows"].text]


async def test_the_zone_of_a_series_may_be_that_of_its_node() -> None:
    """Meshes have no zone: the node's counts, and several series of a zone are summed."""
    istio = {"destination_service_namespace": "shop", "destination_service_name": "web"}
    body = vector(
        ({**istio, "node": "n1"}, "3"),
        ({**istio, "node": "n1", "pod": "other"}, "4"),
        ({**istio, "node": "n2"}, "2"),
        ({**istio, "node": "gone"}, "9"),
    )
    with http_server(answers(body)) as url:
        reading = await prometheus(url, "istio").read()
    assert reading.rates == {WEB: {"zone-a": 7.0, "zone-b": 2.0}}


async def test_nodes_are_read_on_the_event_loop() -> None:
    """The zones of nodes are taken before the thread starts, so that no old ones are stored."""
    threads: list[threading.Thread] = []

    def zones() -> dict[str, str]:
        threads.append(threading.current_thread())
        return {"n1": "zone-a"}

    body = vector(({"namespace": "shop", "service": "web", "node": "n1"}, "3"))
    with http_server(answers(body)) as url:
        source = PrometheusSource(url, find_query("sum(x)", {}), zones=zones)
        assert (await source.read()).rates == {WEB: {"zone-a": 3.0}}
    assert threads == [threading.current_thread()]


async def test_values_without_sense_stay_with_their_service() -> None:
    """NaN, infinite and negative values are passed on for the Service alone, to be rejected."""
    other = {"namespace": "shop", "service": "cart", "client_zone": "zone-a"}
    body = vector(
        (labels("zone-a"), "NaN"),
        (labels("zone-b"), "+Inf"),
        (labels("zone-c"), "-1e308"),
        (other, "5"),
    )
    with http_server(answers(body)) as url:
        rates = (await prometheus(url).read()).rates
    assert rates[NamespacedName("shop", "cart")] == {"zone-a": 5.0}
    assert math.isnan(rates[WEB]["zone-a"])
    assert rates[WEB]["zone-b"] == math.inf


async def test_a_hundred_thousand_zones_are_read() -> None:
    """Many zones are no error; the decision reads only those of the cluster."""
    body = vector(*((labels(f"z{number}"), "1") for number in range(100_000)))
    with http_server(answers(body)) as url:
        assert len((await prometheus(url).read()).rates[WEB]) == 100_000


async def test_an_answer_without_series_has_a_note() -> None:
    """No series is no error, but the log says so with the address."""
    with http_server(answers(vector())) as url:
        reading = await prometheus(url).read()
    assert reading.rates == {}
    assert url in reading.notes[0]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        pytest.param(b"<html>login</html>", 200, "no answer of Prometheus", id="HTML"),
        pytest.param(b"gone", 503, "status 503", id="an error page"),
        pytest.param(b"{}", 200, "no answer of Prometheus", id="other JSON"),
        pytest.param(
            b'{"status":"error","errorType":"bad_data","error":"parse error"}',
            400,
            "bad_data: parse error",
            id="a bad query",
        ),
        pytest.param(
            b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
            200,
            "the answer is matrix",
            id="a matrix",
        ),
        pytest.param(
            b'{"status":"success","data":{"resultType":"vector","result":[{"metric":'
            b'{"a":"b","a":7},"value":[0,"1"]}]}}',
            200,
            "no answer of Prometheus",
            id="labels that are no texts",
        ),
        pytest.param(b"[" * 200_000, 200, "no answer of Prometheus", id="deep"),
    ],
)
async def test_what_is_no_prometheus_is_an_error(body: bytes, status: int, message: str) -> None:
    """The error names the address and what came instead."""
    with http_server(answers(body, status)) as url:
        with pytest.raises(DemandReadError, match=message) as raised:
            await prometheus(url).read()
        assert url in str(raised.value)


async def test_a_prometheus_may_ask_for_a_token_behind_an_authority_of_its_own(
    tmp_path: Path,
) -> None:
    """A renewed token is sent; without the authority nothing is sent; no error shows a token."""
    authority = Authority()
    pair = authority.issue("prometheus", hosts=["127.0.0.1"])
    for name, content in (("tls", pair.certificate + pair.key), ("ca", authority.certificate)):
        (tmp_path / name).write_bytes(content)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls")
    sent: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        sent.append(request.headers["Authorization"])
        is_right = request.headers["Authorization"] == "Bearer second-secret"
        answers(vector((labels("zone-a"), "7")), 200 if is_right else 401)(request)

    token = tmp_path / "token"
    token.write_text("first-secret\n")
    query = find_query("flows", {})
    with http_server(answer, tls) as url:
        source = PrometheusSource(
            url, query, zones=dict, token_file=str(token), ca_file=str(tmp_path / "ca")
        )
        token.write_text("second-secret\n")
        assert (await source.read()).rates == {WEB: {"zone-a": 7.0}}
        assert sent == ["Bearer second-secret"]
        stranger = PrometheusSource(url, query, zones=dict, token_file=str(token))
        with pytest.raises(DemandReadError, match="certificate"):
            await stranger.read()
        assert len(sent) == 1
        for content in (b"first-secret\nsecond line\n", b"", b"first-secret\xff"):
            token.write_bytes(content)
            with pytest.raises(DemandReadError, match="--demand-token-file") as raised:
                await source.read()
            assert "secret" not in str(raised.value)
        token.write_text("second-secret")
        (tmp_path / "ca").write_text("none")
        with pytest.raises(DemandReadError, match="--demand-ca-file"):
            await source.read()


async def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer beyond the limit is not read to its end, which it may not have."""
    monkeypatch.setattr(sources, "MAX_DEMAND_BYTES", 1 << 20)

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while True:
                request.wfile.write(b" " * 65536)
        except OSError:
            pass

    with (
        http_server(endless) as url,
        pytest.raises(DemandReadError, match="more than 1,048,576 bytes"),
    ):
        await prometheus(url).read()


async def test_a_slow_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then is given up, and the event loop never waits."""
    monkeypatch.setattr(sources, "EXCHANGE_WITHIN_S", 0.3)
    is_over = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while not is_over.wait(0.05):
                request.wfile.write(b" ")
        except OSError:
            pass

    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.create_task(count())
    with http_server(drip) as url:
        try:
            with pytest.raises(DemandReadError, match="it takes longer than"):
                await prometheus(url).read()
        finally:
            is_over.set()
            counting.cancel()
    assert turns > 0


async def test_agents_at_addresses_are_read() -> None:
    """Agents at addresses are read at /flows; one that does not answer is named by its address."""
    body = page({"zone-a": 5}, at=10.0)
    taken: dict[str, bytes] = {}

    def take(name: str, content: bytes) -> str:
        taken[name] = content
        return ""

    with http_server(answers(body)) as url, http_server(answers(b"", 404)) as other:
        errors = (await pages_of_addresses((url, other))(take)).by_agent
    assert taken == {f"{url}/flows": body}
    (name,) = errors
    assert name == f"{other}/flows"
    assert "404" in errors[name]


class Server:
    """An API server that lists two agents, one of which answers."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def raw(self, method: str, path: str, **_: object) -> bytes:
        """Answer a request."""
        assert method == "GET"
        if path == "/api/v1/pods":
            pods = [
                {
                    "metadata": {"name": f"flows-{node}", "namespace": namespace},
                    "spec": {"nodeName": node},
                    "status": {"phase": "Running"},
                }
                for node, namespace in (
                    ("n1", "kube-system"),
                    ("n2", "kube-system"),
                    ("n3", "tenant"),
                )
            ]
            return json.dumps({"items": pods}).encode()
        if "flows-n1:10247/proxy/flows" in path:
            return self._body
        raise NotFound(404, message="no such pod")


async def test_agents_of_a_cluster_are_found_by_label() -> None:
    """Agents are named by their nodes; one that cannot be reached is named with the reason."""
    body = page({"zone-a": 5}, at=10.0)
    taken: dict[str, bytes] = {}

    def take(name: str, content: bytes) -> str:
        assert threading.current_thread() is not threading.main_thread()
        taken[name] = content
        return ""

    server: Any = Server(body)
    errors, notes = await pages_of_cluster(server, "kube-system", clock=FakeClock())(take)
    assert taken == {"n1": body}
    assert list(errors) == ["n2"]
    assert "no such pod" in errors["n2"]
    (note,) = notes
    assert "tenant/flows-n3" in note
    assert note.endswith("--demand-agent-namespace")


async def test_an_agent_that_hangs_does_not_end_the_reading() -> None:
    """Its page is given up, and all others count, also in the first reading, which takes two."""

    class Hanging(Server):
        async def raw(self, method: str, path: str, **options: object) -> bytes:
            if "flows-n2" in path:
                await asyncio.Event().wait()
            return await super().raw(method, path, **options)

    clock = FakeClock()
    server: Any = Hanging(page({"zone-a": 5}, at=10.0))
    read_pages = pages_of_cluster(server, "kube-system", clock=clock)
    read = asyncio.ensure_future(read_pages(lambda _name, _page: ""))
    await clock.advance(2 * sources.EXCHANGE_WITHIN_S)
    errors, _ = await asyncio.wait_for(read, 30)
    assert errors == {"n2": "its page takes longer than 20 s"}
    assert 2 * sources.EXCHANGE_WITHIN_S + sources.FIRST_GAP_S < READ_WITHIN_S


async def test_agents_that_are_not_read_are_in_the_notes() -> None:
    """What was found and not read is said with the reading, in plain text and a few lines."""
    agents = Agents(**three(10.0, 0, 0, 0))
    clock = FakeClock()
    source = await start(agents, clock, second=Agents(**three(20.0, 100, 100, 100)))

    async def read(take: TakePage) -> ReadErrors:
        errors, _ = await agents.read(take)
        return ReadErrors(errors, ("n1 has two agents\n", *map(str, range(100))))

    source._read_pages = read
    notes = (await source.read()).notes
    assert notes[0].startswith("n1 has two agents")
    assert all(note.isprintable() for note in notes)
    assert len(notes) < 10


CSV = "namespace,service,zone,rate\nshop,web,zone-a,70\nshop,web,zone-b,20.5\n"


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """CSV or JSON, with the time of the change as the time of the measurement."""
    path = tmp_path / "demand"
    path.write_text(CSV)
    clock = SystemClock()
    source = FileSource(str(path), clock=clock)
    assert (await source.read()).rates == {WEB: {"zone-a": 70.0, "zone-b": 20.5}}
    path.write_text('{"shop/web": {"zone-c": 5}}')
    hour_ago = clock.now() - 3600.0
    os.utime(path, (hour_ago, hour_ago))
    reading = await source.read()
    assert reading.rates == {WEB: {"zone-c": 5.0}}
    assert reading.age_s == pytest.approx(3600.0, abs=60.0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(CSV.replace("\n", "\r\n"), id="lines of Windows"),
        pytest.param(CSV.replace("\n", "\r"), id="lines of an old Macintosh"),
        pytest.param("\ufeff" + CSV, id="a byte order mark"),
        pytest.param("\n \n,,,\n" + CSV, id="blank records above the header"),
        pytest.param(CSV.replace("\n", "\n,,,\n , ,\t,\n\n", 1), id="records of commas"),
        pytest.param(CSV + '"","","",""\r\n""\r\n', id="records of quotes"),
        pytest.param('\ufeff{"shop/web": {"zone-a": 70, "zone-b": 20.5}}', id="JSON with a mark"),
    ],
)
def test_files_of_spreadsheets_are_read(text: str) -> None:
    """Blank records count as none, however they are written."""
    assert parse_rates(text.encode(), name="f").rates == {WEB: {"zone-a": 70.0, "zone-b": 20.5}}


def test_bytes_that_are_no_text_are_named_by_their_line() -> None:
    """The error of a file that is no UTF-8 has the file and the line."""
    with pytest.raises(ValueError, match="f, line 3: it is no text in UTF-8"):
        parse_rates(b"namespace,service,zone,rate\nshop,web,a,1\nshop,w\xffb,a,1\n", name="f")


async def test_a_file_of_the_future_is_an_error(tmp_path: Path) -> None:
    """A file whose time is well ahead of the clock would never be stale."""
    path = tmp_path / "rates.json"
    path.write_text('{"shop/web": {"zone-a": 1}}')
    clock = SystemClock()
    os.utime(path, (clock.now() + 3600, clock.now() + 3600))
    with pytest.raises(DemandReadError, match="in the future"):
        await FileSource(str(path), clock=clock).read()


async def test_a_file_that_is_gone_or_endless_is_an_error(tmp_path: Path) -> None:
    """The error names the option and the path; a pipe or a device is no file."""
    for path in (tmp_path / "missing", tmp_path, Path("/dev/zero")):
        with pytest.raises(DemandReadError, match="--demand-file"):
            await FileSource(str(path), clock=SystemClock()).read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "it is empty", id="empty"),
        pytest.param("a,b\n1,2\n", "columns must be namespace,service,zone,rate", id="columns"),
        pytest.param("a,b\n1,2\n", 'line 1: .* but are "a,b"', id="columns there"),
        pytest.param('{"a":' * 100_000, "f: ", id="deep"),
        pytest.param('{"shop/web": {"a": 7}', "expected", id="cut off"),
    ],
)
def test_a_file_without_rates_is_an_error(text: str, message: str) -> None:
    """Other columns and broken JSON are errors that name the file."""
    with pytest.raises(ValueError, match=message):
        parse_rates(text.encode(), name="f")


API = NamespacedName("shop", "api")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        pytest.param("shop,web,zone-c,x", 'line 5, column rate: "x" is no number', id="rate"),
        pytest.param("shop,web,zone-c,", 'line 5, column rate: "" is no number', id="no rate"),
        pytest.param(
            "shop,web,zone-a,1", 'line 5, column zone: "zone-a" is there twice', id="twice"
        ),
        pytest.param("shop,web,,1", "line 5, column zone: it is empty", id="no zone"),
        pytest.param("shop,web,zone-c", "line 5: 3 cells for 4 columns", id="few cells"),
        pytest.param("shop,web,zone-c,1,2", "line 5: 5 cells for 4 columns", id="many cells"),
    ],
)
def test_a_bad_cell_rejects_its_service_alone(row: str, why: str) -> None:
    """The error names line and column; rows of other Services count, before and after it."""
    text = f"{CSV}shop,api,zone-a,1\n{row}\nshop,web,zone-d,3\nshop,api,zone-b,2\n"
    rates, rejected, notes = parse_rates(text.encode(), name="f")
    assert rates == {API: {"zone-a": 1.0, "zone-b": 2.0}}
    assert rejected == {WEB: why}
    assert notes == (f"f, {why}; the rates of shop/web are not used",)


def test_a_row_without_a_service_is_left_out() -> None:
    """The log names it, and rates of all Services are used."""
    rates, rejected, notes = parse_rates(f"{CSV},web,zone-c,1\nshop\n".encode(), name="f")
    assert rates == {WEB: {"zone-a": 70.0, "zone-b": 20.5}}
    assert rejected == {}
    assert notes == (
        "f, line 4, column namespace: it is empty; the row is not used",
        "f, line 5, column service: it is empty; the row is not used",
    )


def test_a_bad_value_of_json_rejects_its_service_alone() -> None:
    """A text in place of a rate, or a list in place of zones."""
    text = '{"shop/web": {"a": "7"}, "shop/api": {"a": 1}, "web": {"a": 1}, "a/b": []}'
    rates, rejected, notes = parse_rates(text.encode(), name="f")
    assert rates == {API: {"a": 1.0}}
    assert set(rejected) == {WEB, NamespacedName("a", "b")}
    assert "Expected `float`" in rejected[WEB]
    assert 'f, "web" is no NAMESPACE/SERVICE; the row is not used' in notes


def test_many_bad_cells_are_a_few_plain_notes() -> None:
    """A file in which all is wrong does not fill the log, and no cell changes a terminal."""
    bad = "".join(f"shop,web-{number}\x1b[2J,zone-a,\x1b[2J\n" for number in range(1000))
    notes = parse_rates(f"{CSV}{bad}".encode(), name="f").notes
    assert len(notes) == 4
    assert notes[-1] == "f: 1,000 Services have errors; the first are logged"
    assert all(note.isprintable() for note in notes)


async def test_a_rejected_service_keeps_its_shares_and_says_why(tmp_path: Path) -> None:
    """The file is read on, the error is noted for the log and is a reason of the Service."""
    path = tmp_path / "rates.csv"
    path.write_text(CSV)
    source = FileSource(str(path), clock=SystemClock())
    store = DemandStore(
        DemandSettings(least_rate=0.0),
        source="file",
        by_cpu=lambda: Shares({"zone-a": 0.5, "zone-b": 0.5}),
        now=lambda: 0.0,
    )
    web = builders.service("web", namespace="shop")
    store.receive(await source.read())
    before = store.shares_of(web).by_zone
    path.write_text(f"{CSV}shop,web,zone-c,many\nshop,api,zone-a,1\n")
    for _ in range(2):
        reading = await source.read()
        assert reading.rates == {API: {"zone-a": 1.0}}
        assert reading.notes == (
            f'{path}, line 4, column rate: "many" is no number; the rates of shop/web are not used',
        )
    store.receive(reading)
    store.advance([WEB])
    shares = store.shares_of(web)
    assert shares.by_zone == before
    rejected = [one for one in shares.reasons if one.code is ReasonCode.SAMPLE_REJECTED]
    assert 'line 4, column rate: "many" is no number' in rejected[0].message


@pytest.mark.parametrize(
    ("text", "fields"),
    [("istoi", {}), ("", {}), ("flows", {"pod": "x"}), ("flows", {"zone": 'a"}'})],
)
def test_a_query_that_cannot_work_is_refused(text: str, fields: dict[str, str]) -> None:
    """A misspelt name is no query, and labels need a known field and a valid name."""
    with pytest.raises(ValueError, match="--demand-"):
        find_query(text, fields)
    assert find_query("sum by (x) (rate(y[1m]))", {"zone": "x"}).labels == {"zone": "x"}

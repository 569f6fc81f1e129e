"""The server of the dashboard: who may ask, what is sent, and what may be written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.cli.dashboard.feed import MAX_STREAMS, Feed, TooManyStreamsError
from keepclose.cli.dashboard.serving import is_loopback
from keepclose.cli.dashboard.web_guard import SECURITY_HEADERS
from keepclose.cli.dashboard.web_pages import STATIC_FILES
from support.dashboards import (
    SERVICE_PATH,
    SLICE_PATH,
    Dashboard,
    served_dashboard,
    service_object,
    slice_object,
)

WEB: dict[str, Any] = {"namespace": "default", "name": "web"}
EVENT_PATH = "/api/v1/namespaces/default/events"


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Dashboard]:
    """Serve a dashboard that only reads."""
    async with served_dashboard(tmp_path) as made:
        yield made


@pytest.fixture
async def writable(tmp_path: Path) -> AsyncIterator[Dashboard]:
    """Serve a dashboard that may change Services."""
    async with served_dashboard(tmp_path, allows_writes=True) as made:
        yield made


async def test_every_answer_forbids_storing_framing_and_foreign_scripts(shown: Dashboard) -> None:
    """Pages, files, data, the stream and errors have the same headers."""
    paths = ["/", "/nothing", "/api/service", *(f"/static/{name}" for name in STATIC_FILES)]
    for path in paths:
        reply = await shown.ask(path)
        assert {name: reply.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    own = {"Authorization": f"Bearer {shown.token}"}
    async with shown.session.get(f"{shown.root}/api/stream", headers=own) as response:
        assert response.headers["Content-Security-Policy"] == policy


async def test_the_page_has_no_script_or_style_in_its_text(shown: Dashboard) -> None:
    """Everything comes from the files of the package, and nothing from elsewhere."""
    text = (await shown.ask("/")).body.decode()
    assert "<style" not in text
    assert " style=" not in text
    assert text.count("<script") == text.count('<script type="module" src="/static/')
    for name in STATIC_FILES:
        body = (await shown.ask(f"/static/{name}")).body.decode()
        assert "https://" not in body
        assert "innerHTML" not in body


async def test_data_needs_the_token(shown: Dashboard) -> None:
    """Without it no data are sent, and nothing is said about them."""
    token = shown.token
    wrong = ("Bearer", "Bearer x", f"Basic {token}", f"Bearer {token}x", f"Bearer {token[:-1]}")
    for given in ({}, *({"Authorization": text} for text in (*wrong, "Bearer ä"))):
        for path in ("/api/stream", "/api/service", "/api/preview", "/api/mechanism", "/api/none"):
            assert (await shown.ask(path, headers=given, **WEB)).status == 401, (given, path)
    assert (await shown.ask("/api/service", **WEB)).status == 200


async def test_a_token_in_the_address_is_none(shown: Dashboard) -> None:
    """Addresses end up in logs."""
    reply = await shown.ask("/api/service", headers={}, token=shown.token, **WEB)
    assert reply.status == 401


async def test_a_name_of_another_page_is_refused(shown: Dashboard) -> None:
    """A page whose name was rebound to this address sends its own name as Host."""
    hosts = {
        "evil.example": 403,
        "localhost.evil.example": 403,
        "127.0.0.1.evil.example:7070": 403,
        "[bad": 403,
        "localhost:1": 200,
        "127.0.0.1": 200,
        "[::1]:7070": 200,
    }
    for host, want in hosts.items():
        headers = {"Authorization": f"Bearer {shown.token}", "Host": host}
        for path in ("/", "/static/app.js", "/api/service"):
            assert (await shown.ask(path, headers=headers, **WEB)).status == want, (host, path)


async def test_requests_of_other_pages_are_refused(shown: Dashboard) -> None:
    """Even with the token."""
    host = shown.root.removeprefix("http://")
    for origin in ("http://evil.example", "null", f"https://{host}", f"http://{host}.x"):
        headers = {"Authorization": f"Bearer {shown.token}", "Origin": origin}
        reply = await shown.ask("/api/service", headers=headers, **WEB)
        want = {"error": "this request comes from another page"}
        assert (reply.status, reply.json) == (403, want), origin


async def test_a_page_says_where_traffic_goes_and_why(shown: Dashboard) -> None:
    """The figures are those of the slices."""
    page = (await shown.ask("/api/service", **WEB)).json
    assert (page["mechanism"], page["state"]) == ("PreferSameZone", "in zone")
    assert page["source"] == "spec.trafficDistribution"
    assert page["traffic"]["inZone"] == 1.0
    assert [each["name"] for each in page["choices"]][:2] == ["none", "PreferSameZone"]
    assert page["flow"] == "as asked"
    assert "PreferSameZone governs" in page["reasons"][0]["message"]
    assert (await shown.ask("/api/service", namespace="default", name="no")).status == 404


async def test_a_preview_writes_nothing(shown: Dashboard) -> None:
    """It is a trial in memory."""
    before = await shown.api.get(f"{SERVICE_PATH}/web")
    preview = (await shown.ask("/api/preview", mechanism="none", **WEB)).json
    assert preview["effect"].startswith("in zone 100 -> 33 %")
    assert await shown.api.get(f"{SERVICE_PATH}/web") == before
    assert (await shown.ask("/api/preview", mechanism="best", **WEB)).status == 400
    assert (
        await shown.ask("/api/preview", mechanism="Auto", namespace="x", name="y")
    ).status == 404


async def test_a_stream_begins_with_all_and_goes_on_with_changes(shown: Dashboard) -> None:
    """A second Service and an Event arrive alone; the first Service is not sent again."""
    async with shown.stream() as stream:
        first = await stream.next()
        assert first["services"]["default/web"]["row"]["state"] == "in zone"
        assert [zone["zone"] for zone in first["zones"][""]] == ["zone-a", "zone-b", "zone-c"]
        assert first["status"][""] == {
            "cluster": shown.api.url,
            "isComplete": True,
            "problem": "",
            "allowsWrites": False,
        }
        await shown.api.create(SERVICE_PATH, service_object("cart"))
        message = await stream.next()
        while "services" not in message:
            message = await stream.next()
        assert list(message["services"]) == ["default/cart"]
        assert "zones" not in message
        event = {
            "metadata": {"name": "e1", "namespace": "default"},
            "involvedObject": {"kind": "Service", "namespace": "default", "name": "web"},
            "reason": "TopologyAwareHintsDisabled",
            "message": "a\x1bb",
            "type": "Warning",
            "source": {"component": "test"},
        }
        await shown.api.create(EVENT_PATH, event)
        (got,) = await stream.until("events", "")
        assert (got["service"], got["message"], got["isWarning"]) == (
            "default/web",
            r"a\x1bb",
            True,
        )


async def test_only_what_changes_is_sent(shown: Dashboard) -> None:
    """A slice that loses a hint changes one row; a Service that goes is null."""
    async with shown.stream() as stream:
        await stream.next()
        zones = {"10.0.0.1": "zone-a", "10.0.0.2": "zone-b", "10.0.0.3": "zone-c!"}
        await shown.api.call("PUT", f"{SLICE_PATH}/web-1", slice_object("web-1", zones))
        value = await stream.until("services", "default/web")
        assert value["row"]["state"] == "falling back"
        assert await shown.api.call("DELETE", f"{SERVICE_PATH}/web")
        assert await stream.until("services", "default/web") is None


async def test_a_node_that_is_not_ready_sends_nothing(shown: Dashboard) -> None:
    """All rows are measured again, because each node counts."""
    status = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    async with shown.stream() as stream:
        await stream.next()
        for number in (1, 2):
            await shown.api.call(
                "PATCH",
                f"/api/v1/nodes/zone-c-{number}/status",
                status,
                type="application/merge-patch+json",
            )
        while True:
            value = await stream.until("services", "default/web")
            if len(value["row"]["arcs"]) == 2:
                break


async def test_streams_are_bounded(shown: Dashboard) -> None:
    """One too many is refused, and a closed one makes room."""
    async with AsyncExitStack() as stack:
        for _ in range(MAX_STREAMS):
            await stack.enter_async_context(shown.stream())
        assert (await shown.ask("/api/stream")).status == 503
    for _ in range(1000):
        async with shown.session.get(
            f"{shown.root}/api/stream", headers={"Authorization": f"Bearer {shown.token}"}
        ) as response:
            if response.status == 200:
                return
        await asyncio.sleep(0.01)
    pytest.fail("closed streams still count")


async def test_a_dashboard_that_only_reads_writes_nothing(shown: Dashboard) -> None:
    """The refusal says how to allow it."""
    body = {**WEB, "mechanism": "none", "resourceVersion": "1"}
    reply = await shown.ask("/api/mechanism", method="POST", body=body)
    assert reply.status == 403
    assert "--allow-writes" in reply.json["error"]


async def test_a_write_sets_the_mechanism_that_was_previewed(writable: Dashboard) -> None:
    """The patch is made by the server, for the version that the user saw."""
    service = (await writable.ask("/api/service", **WEB)).json
    version = service["resourceVersion"]
    body = {**WEB, "mechanism": "PreferSameNode", "resourceVersion": version}
    assert (await writable.ask("/api/mechanism", method="POST", body=body)).status == 200
    stored = await writable.api.get(f"{SERVICE_PATH}/web")
    assert stored["spec"]["trafficDistribution"] == "PreferSameNode"
    managers = [entry["manager"] for entry in stored["metadata"]["managedFields"]]
    assert "keepclose-dashboard" in managers
    reply = await writable.ask("/api/mechanism", method="POST", body=body)
    assert reply.status == 409


async def test_a_write_of_anything_else_is_refused(writable: Dashboard) -> None:
    """A browser names a mechanism and never sends a patch."""
    bodies: tuple[object, ...] = (
        {**WEB, "mechanism": "none"},
        {**WEB, "mechanism": "best", "resourceVersion": "1"},
        {**WEB, "mechanism": "none", "resourceVersion": "1", "patch": {"spec": {}}},
        [],
    )
    for body in bodies:
        assert (await writable.ask("/api/mechanism", method="POST", body=body)).status == 400


async def test_a_write_without_an_origin_is_refused(writable: Dashboard) -> None:
    """Browsers send one with each POST."""
    headers = {"Authorization": f"Bearer {writable.token}"}
    body = {**WEB, "mechanism": "none", "resourceVersion": "1"}
    reply = await writable.ask("/api/mechanism", method="POST", body=body, headers=headers)
    assert reply.status == 403


async def test_a_write_whose_gate_is_off_is_refused(writable: Dashboard) -> None:
    """It would have no effect."""
    version = (await writable.ask("/api/service", **WEB)).json["resourceVersion"]
    body = {**WEB, "mechanism": "Balanced", "resourceVersion": version}
    reply = await writable.ask("/api/mechanism", method="POST", body=body)
    assert reply.status == 409
    assert "feature gate" in reply.json["error"]


async def test_a_large_request_is_refused(writable: Dashboard) -> None:
    """A body has a few names."""
    body = {**WEB, "mechanism": "x" * 100_000, "resourceVersion": "1"}
    assert (await writable.ask("/api/mechanism", method="POST", body=body)).status == 413


async def test_files_beside_the_static_ones_are_not_served(shown: Dashboard) -> None:
    """Names are looked up in a list, and no path is opened."""
    for name in ("../web_pages.py", "..%2fweb_pages.py", "index.html", "%2e%2e/feed.py"):
        assert (await shown.ask(f"/static/{name}")).status in (400, 404)


def test_a_feed_sends_the_latest_of_each_value_once() -> None:
    """A slow browser skips what is out of date."""
    feed = Feed()
    feed.publish("services", "a", 1)
    stream = feed.open_stream()
    assert msgspec.json.decode(stream.take()) == {"services": {"a": 1}}
    for value in (2, 3, 3):
        feed.publish("services", "a", value)
    feed.publish("services", "b", 1)
    feed.publish("services", "b", None)
    assert msgspec.json.decode(stream.take()) == {"services": {"a": 3, "b": None}}
    assert not feed.publish("services", "a", 3)
    assert msgspec.json.decode(stream.take()) == {}
    stream.close()
    stream.close()
    assert len(feed) == 0


def test_a_feed_has_a_limit_of_streams() -> None:
    """Each window costs a connection."""
    feed = Feed()
    streams = [feed.open_stream() for _ in range(MAX_STREAMS)]
    with pytest.raises(TooManyStreamsError):
        feed.open_stream()
    streams[0].close()
    feed.open_stream()


@pytest.mark.parametrize(
    ("host", "want"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - not bound
        ("10.0.0.1", False),
        ("example.com", False),
    ],
)
def test_only_loopback_needs_no_warning(host: str, *, want: bool) -> None:
    """Every other address may be reached from elsewhere."""
    assert is_loopback(host) is want

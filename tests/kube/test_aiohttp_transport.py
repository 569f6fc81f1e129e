"""Tests of the transport against real servers: plain, TLS, broken, slow and gone."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import msgspec
import pytest
from aiohttp import web

from keepclose.kube.auth.credentials import Proof, StoredCredentials
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import ConnectionSettings, ConnectionUser, connect
from keepclose.kube.errors import (
    BrokenStream,
    ConfigError,
    ConnectionLost,
    ConnectionRefused,
    Expired,
    TimedOut,
    TlsError,
    TooManyRequests,
    TransportError,
    Unauthorized,
)
from keepclose.kube.requests import NODES, PODS
from keepclose.kube.transport.aiohttp_transport import AioTransport, ServerAddress
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest
from support.builders import node, pod
from support.certificates import Authority, Pair
from support.ports import reserved_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANONYMOUS = ConnectionUser()
AUTHORITY = Authority()
SERVER_PAIR = AUTHORITY.issue("server", hosts=["localhost", "127.0.0.1"])


@asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve every path with a handler; give the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def talking(conversation: Conversation) -> AsyncIterator[int]:
    """Serve raw bytes; give the port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await conversation(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def server_context(
    folder: Path, pair: Pair = SERVER_PAIR, *, client: bytes = b""
) -> ssl.SSLContext:
    """Return the context of a server; with a client authority it demands certificates."""
    for name, data in (("cert.pem", pair.certificate), ("key.pem", pair.key)):
        (folder / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client.decode())
    return context


def count_sockets_to(port: int) -> int:
    """Return how many sockets of this process are connected to the port."""
    count = 0
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError, IndexError):
            one = socket.socket(fileno=int(path.name))
            try:
                count += one.getpeername()[1] == port
            finally:
                # Somebody else owns it.
                one.detach()
    return count


def plain(port: int, user: ConnectionUser = ANONYMOUS, *, timeout: float = 60.0) -> Client:
    """Return a client of a server without TLS, that tries once."""
    settings = ConnectionSettings(ServerAddress(f"http://127.0.0.1:{port}"), user)
    return connect(settings, clock=SystemClock(), retries=Retries(max_elapsed=0), timeout=timeout)


def secure(
    port: int, user: ConnectionUser = ANONYMOUS, *, host: str = "127.0.0.1", **server: object
) -> Client:
    """Return a client of a server with TLS, that tries once and trusts our authority."""
    found = {"authority": AUTHORITY.certificate, **server}
    settings = ConnectionSettings(ServerAddress(f"https://{host}:{port}", **found), user)  # type: ignore[arg-type]
    return connect(settings, clock=SystemClock(), retries=Retries(max_elapsed=0))


async def test_a_request_arrives_whole() -> None:
    """Method, path, query, headers, token and body reach the server as they were meant."""
    seen: list[object] = []

    async def handle(request: web.Request) -> web.Response:
        seen.extend([request.method, request.raw_path, await request.read()])
        seen.extend(request.headers[h] for h in ("Authorization", "User-Agent", "Content-Type"))
        return web.Response(body=msgspec.json.encode(node()), headers={"X-Odd": "1"})

    async with serving(handle) as port, plain(port, ConnectionUser(token="t")) as client:  # noqa: S106
        await client.patch(NODES, "n1", {"a": "ü"}, field_manager="a b&c")
    assert seen == [
        "PATCH",
        "/api/v1/nodes/n1?fieldManager=a+b%26c",
        '{"a":"ü"}'.encode(),
        "Bearer t",
        "keepclose/0.1.0",
        "application/merge-patch+json",
    ]


async def test_a_large_body_arrives_whole() -> None:
    """A body of megabytes comes with its length, and nobody is warned of it."""
    seen: list[tuple[int, str | None]] = []

    async def handler(request: web.Request) -> web.Response:
        size = 0
        async for chunk in request.content.iter_any():
            size += len(chunk)
        seen.append((size, request.headers.get("Content-Length")))
        return web.json_response({})

    async with serving(handler) as port, plain(port) as client:
        await client.raw("POST", "/", body=b"x" * (3 << 20))
    assert seen == [(3 << 20, str(3 << 20))]


async def test_an_answer_is_read_as_it_is() -> None:
    """Status, headers in any case, and body come back; a prefix of the server's URL is kept."""

    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=request.path, status=418, headers={"Retry-After": "5"})

    async with serving(handle) as port:
        transport = AioTransport(
            ServerAddress(f"http://127.0.0.1:{port}/k8s/c/"),
            credentials=StoredCredentials(),
            clock=SystemClock(),
        )
        response = await transport.send(ApiRequest("GET", "/version"))
        assert (response.status, response.headers["retry-AFTER"]) == (418, "5")
        assert await response.read() == b"/k8s/c/version"
        await response.close()
        await transport.close()
        await transport.close()
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await transport.send(ApiRequest("GET", "/version"))


async def test_chunks_are_iterated_over() -> None:
    """A body read as it arrives is the same in the end."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await stream(request, b"ab", b"c" * 100_000)

    async with serving(handle) as port:
        transport = AioTransport(
            ServerAddress(f"http://127.0.0.1:{port}"),
            credentials=StoredCredentials(),
            clock=SystemClock(),
        )
        response = await transport.send(ApiRequest("GET", "/x", streaming=True))
        assert b"".join([chunk async for chunk in response.chunks()]) == b"ab" + b"c" * 100_000
        await response.close()
        await transport.close()


async def test_a_token_that_cannot_be_sent_does_not_show() -> None:
    """A line break in a token is told, the token is not, and nothing is repeated."""
    async with (
        serving(answer_node) as port,
        plain(port, ConnectionUser(token="sec\nret")) as client,  # noqa: S106
    ):
        with pytest.raises(BrokenStream) as raised:
            await client.get(NODES, "n1")
    assert "check the token for line breaks" in str(raised.value)
    assert "sec" not in str(raised.value)


async def test_redirects_are_not_followed() -> None:
    """Our credentials stay with the server that they are for."""
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with serving(handle) as port, plain(port) as client:
        with pytest.raises(Exception, match="302: Found"):
            await client.raw("GET", "/version")
    assert seen == ["/version"]


async def test_a_refused_connection_says_what_to_check() -> None:
    """Nobody listens: the error names the server and the fix, and that nothing was sent."""
    with reserved_port() as port:
        async with plain(port) as client:
            with pytest.raises(ConnectionRefused) as raised:
                await client.get(NODES, "n1")
    assert str(raised.value) == (
        f"127.0.0.1:{port}: connection refused; check that the server runs and the port is right"
    )
    assert raised.value.sent is False


async def test_a_server_that_comes_back_is_found_again() -> None:
    """With patience a request outlives a server that is not there yet."""
    retries = Retries(first=0.02, cap=0.05, max_elapsed=60, random=Random(1))
    with reserved_port() as port:
        settings = ConnectionSettings(ServerAddress(f"http://127.0.0.1:{port}"))
        client = connect(settings, clock=SystemClock(), retries=retries)
        asked = asyncio.create_task(client.create(NODES, node("n1")))
        await asyncio.sleep(0.05)

        async def handle(request: web.Request) -> web.Response:
            return web.Response(body=await request.read())

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        assert await asked == node("n1")
        await client.close()
        await runner.cleanup()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_a_connection_that_breaks_is_lost(method: str) -> None:
    """The server hangs up before it answers, and nothing below the client asks it again."""
    asked: list[int] = []

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        writer.close()

    async with talking(hang_up) as port, plain(port) as client:
        with pytest.raises(ConnectionLost, match="the server closed the connection"):
            await client.raw(method, "/x")
    assert asked == [1]


async def test_half_an_answer_is_lost() -> None:
    """The server promises more bytes than it sends."""

    async def promise(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()

    async with talking(promise) as port, plain(port) as client:
        with pytest.raises(ConnectionLost, match="the answer was cut off"):
            await client.create(NODES, node())


async def test_what_is_no_http_is_not_the_api() -> None:
    """Another protocol answers."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP ready\r\n")
        await writer.drain()

    async with talking(greet) as port, plain(port) as client:
        with pytest.raises(BrokenStream, match="check that the server is a Kubernetes API server"):
            await client.create(NODES, node())


@pytest.mark.parametrize("after", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
async def test_a_slow_answer_times_out(after: bytes) -> None:
    """The limit holds for the headers and for the body."""

    async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(after)
        await writer.drain()
        await reader.read()

    async with talking(linger) as port, plain(port, timeout=0.05) as client:
        with pytest.raises(TimedOut, match="no answer in time"):
            await client.get(NODES, "n1")


async def test_patience_with_a_busy_server() -> None:
    """A 429 with Retry-After is waited for, then the answer comes; without patience it raises."""
    asked: list[float] = []

    async def handle(_: web.Request) -> web.Response:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) % 2:
            return web.Response(status=429, text="busy", headers={"Retry-After": "1"})
        return web.Response(body=msgspec.json.encode(node()))

    async with serving(handle) as port:
        settings = ConnectionSettings(ServerAddress(f"http://127.0.0.1:{port}"))
        async with connect(settings, clock=SystemClock()) as client:
            assert await client.get(NODES, "n1") == node()
        assert asked[1] - asked[0] >= 0.99
        async with plain(port) as client:
            with pytest.raises(TooManyRequests) as raised:
                await client.get(NODES, "n1")
    assert raised.value.retry_after == 1.0


class Renewing:
    """Credentials whose token is another one after each 401."""

    def __init__(self, *, tokens: int) -> None:
        self.left = tokens
        self.used = 1

    async def proof(self) -> Proof:
        """Show the token of this turn."""
        return Proof(f"Bearer t{self.used}")

    def forget(self) -> bool:
        """Go to the next token, if there is one."""
        self.used += 1
        self.left -= 1
        return self.left > 0


@pytest.mark.parametrize(
    ("tokens", "want_seen", "want_ok"),
    [
        pytest.param(1, ["t1"], False, id="nothing new to show"),
        pytest.param(2, ["t1", "t2"], True, id="the second is right"),
    ],
)
async def test_a_401_is_answered_with_new_credentials_once(
    tokens: int, want_seen: list[str], want_ok: bool
) -> None:
    """Credentials that can be renewed are, and the request is sent again with its body."""
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"].removeprefix("Bearer "))
        if seen[-1] != "t2":
            return web.Response(status=401, text="who?")
        return web.Response(body=await request.read())

    async with serving(handle) as port:
        transport = AioTransport(
            ServerAddress(f"http://127.0.0.1:{port}"),
            credentials=Renewing(tokens=tokens),
            clock=SystemClock(),
        )
        async with Client(transport, clock=SystemClock()) as client:
            if want_ok:
                assert await client.create(NODES, node()) == node()
            else:
                with pytest.raises(Unauthorized, match=r"who\?"):
                    await client.create(NODES, node())
    assert seen == want_seen


async def test_a_401_that_stays_is_raised_after_one_more_try() -> None:
    """A server that never is content is asked twice, not for ever."""
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(status=401)

    async with serving(handle) as port:
        transport = AioTransport(
            ServerAddress(f"http://127.0.0.1:{port}"),
            credentials=Renewing(tokens=99),
            clock=SystemClock(),
        )
        async with Client(transport, clock=SystemClock()) as client:
            with pytest.raises(Unauthorized):
                await client.get(NODES, "n1")
    assert seen == ["Bearer t1", "Bearer t2"]


EVENT = msgspec.json.encode({"type": "ADDED", "object": pod("a")}) + b"\n"


async def stream(request: web.Request, *chunks: bytes) -> web.StreamResponse:
    """Answer with a stream of chunks and end it."""
    response = web.StreamResponse()
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response


async def watched(client: Client, **options: float) -> tuple[int, Exception | None]:
    """Return how many events a watch gave, and what ended it unless that was the server."""
    count = 0
    try:
        async with client.watch(PODS, **options) as events:  # type: ignore[arg-type]
            async for event in events:
                assert event.object == pod("a")
                count += 1
    except TransportError as error:
        return count, error
    return count, None


async def test_a_watch_ends_when_the_server_ends_it() -> None:
    """A stream of many events, cut at odd places, is read to its end."""
    data = EVENT * 2000

    async def handle(request: web.Request) -> web.StreamResponse:
        return await stream(request, data[:777], data[777:100_001], data[100_001:])

    async with serving(handle) as port, plain(port) as client:
        assert await watched(client) == (2000, None)


async def test_a_watch_that_is_cut_is_a_lost_connection() -> None:
    """Between two lines or in one: a stream without its end is no clean one."""
    for rest in (b"", EVENT[:20]):

        async def cut(
            _: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes = rest
        ) -> None:
            body = EVENT * 2 + rest
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%b\r\n" % (len(body), body))
            await writer.drain()

        async with talking(cut) as port, plain(port) as client:
            count, error = await watched(client)
            assert (count, type(error)) == (2, ConnectionLost)
            assert str(error) == f"127.0.0.1:{port}: the answer was cut off"


async def test_half_a_line_at_a_clean_end_is_a_lost_connection() -> None:
    """A server that ends its stream in the middle of a line has lost something."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await stream(request, EVENT + EVENT[:20])

    async with serving(handle) as port, plain(port) as client:
        count, error = await watched(client)
    assert (count, type(error)) == (1, ConnectionLost)
    assert str(error) == (
        "watch of /api/v1/pods: the watch was cut in the middle of a line; watch again"
    )


async def test_a_watch_has_no_limit_but_silence() -> None:
    """The timeout of requests does not end a watch, silence beyond its own limit does."""
    gone = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(3):
            await response.write(EVENT)
            await asyncio.sleep(0.4)
        await gone.wait()
        return response

    # NB: the limits are so long that a busy machine begins and goes on to answer within them.
    async with serving(handle) as port, plain(port, timeout=1.0) as client:
        count, error = await watched(client, idle_timeout=2.0)
        gone.set()
    assert (count, type(error)) == (3, TimedOut)


async def test_a_watch_of_an_old_version_is_expired() -> None:
    """410 as a status and as an event are the same error."""
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    answers = [
        web.Response(status=410, body=msgspec.json.encode(status)),
        web.Response(body=msgspec.json.encode({"type": "ERROR", "object": status}) + b"\n"),
    ]

    async def handle(_: web.Request) -> web.Response:
        return answers.pop()

    async with serving(handle) as port, plain(port) as client:
        for _ in range(2):
            with pytest.raises(Expired, match="too old"):
                await watched(client)
    assert answers == []


async def answer_node(_: web.Request) -> web.Response:
    """Answer with a node, whatever is asked."""
    return web.Response(body=msgspec.json.encode(node()))


async def test_a_server_of_our_authority_is_trusted(tmp_path: Path) -> None:
    """By name and by address."""
    async with serving(answer_node, tls=server_context(tmp_path)) as port:
        for host in ("127.0.0.1", "localhost"):
            async with secure(port, host=host) as client:
                assert await client.get(NODES, "n1") == node()


async def test_a_watch_left_midway_leaves_no_connection(tmp_path: Path) -> None:
    """A client that is closed right after a watch has no socket left, although the server has."""
    left = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b" \n")
        await left.wait()
        return response

    async with serving(handler, tls=server_context(tmp_path)) as port:
        client = secure(port)
        async with client.watch(PODS):
            pass
        await client.close()
        count = count_sockets_to(port)
        left.set()
    assert count == 0


async def test_whom_we_do_not_trust_we_do_not_ask(tmp_path: Path) -> None:
    """Another authority, another name, an expired certificate: each with its fix."""
    async with serving(answer_node, tls=server_context(tmp_path)) as port:
        async with secure(port, authority=Authority("other").certificate) as client:
            with pytest.raises(TlsError, match="check certificate-authority"):
                await client.get(NODES, "n1")
        async with secure(port, server_name="other.example") as client:
            with pytest.raises(TlsError, match=r"mismatch.*set tls-server-name"):
                await client.get(NODES, "n1")
        async with secure(port, authority=b"", insecure=True) as client:
            assert await client.get(NODES, "n1") == node()
    old = AUTHORITY.issue("old", hosts=["127.0.0.1"], days=-1)
    async with (
        serving(answer_node, tls=server_context(tmp_path, old)) as port,
        secure(port) as client,
    ):
        with pytest.raises(TlsError, match="certificate has expired; renew the server's"):
            await client.get(NODES, "n1")


async def test_the_server_s_name_can_be_told(tmp_path: Path) -> None:
    """tls-server-name is what the certificate is checked for."""
    pair = AUTHORITY.issue("kubernetes", hosts=["kubernetes.default"])
    async with serving(answer_node, tls=server_context(tmp_path, pair)) as port:
        async with secure(port) as client:
            with pytest.raises(TlsError):
                await client.get(NODES, "n1")
        async with secure(port, server_name="kubernetes.default") as client:
            assert await client.get(NODES, "n1") == node()


async def test_a_client_certificate_opens_the_door(tmp_path: Path) -> None:
    """A server that demands certificates knows us by ours, from data and from files."""
    names: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        names.append(dict(part[0] for part in peer["subject"])["commonName"])
        return await answer_node(request)

    clients = Authority("clients")
    pair = clients.issue("ann")
    context = server_context(tmp_path, client=clients.certificate)
    (tmp_path / "me.pem").write_bytes(pair.certificate)
    (tmp_path / "me.key").write_bytes(pair.key)
    files = ConnectionUser(certificate_file=f"{tmp_path}/me.pem", key_file=f"{tmp_path}/me.key")
    async with serving(handle, tls=context) as port:
        for user in (ConnectionUser(certificate=pair.certificate, key=pair.key), files):
            async with secure(port, user) as client:
                assert await client.get(NODES, "n1") == node()
    assert names == ["ann", "ann"]


def refuse_one(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Shake hands with one client and hang up when that fails, after saying why."""
    connection, _ = listener.accept()
    connection.settimeout(10)
    # NB: a failed handshake closes its socket, and one closed with bytes unread is reset: the
    # client would never hear why.
    with connection.dup() as spare:
        spare.settimeout(10)
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)
        spare.shutdown(socket.SHUT_WR)
        while spare.recv(4096):
            pass


@pytest.mark.parametrize(
    ("pair", "want"),
    [
        pytest.param(None, "the server asks for a client certificate; name one", id="none"),
        pytest.param(
            Authority("others").issue("eve"),
            "the server does not trust our client certificate",
            id="one of another authority",
        ),
        pytest.param(
            AUTHORITY.issue("old", days=-1), "our client certificate has expired", id="an old one"
        ),
    ],
)
async def test_a_client_certificate_that_does_not_open_the_door(
    tmp_path: Path, pair: Pair | None, want: str
) -> None:
    """Why the server refuses us is told, as it says it in TLS."""
    user = ANONYMOUS if pair is None else ConnectionUser(certificate=pair.certificate, key=pair.key)
    context = server_context(tmp_path, client=AUTHORITY.certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = asyncio.create_task(asyncio.to_thread(refuse_one, listener, context))
        async with secure(listener.getsockname()[1], user) as client:
            with pytest.raises(TlsError, match=want):
                await client.get(NODES, "n1")
        await refusing


async def test_a_replaced_certificate_is_shown_at_once(tmp_path: Path) -> None:
    """After a 401 the files are read again and the next connection shows the new certificate."""
    names: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        names.append(dict(part[0] for part in peer["subject"])["commonName"])
        if names[-1] == "old":
            for name, data in (("me.pem", new.certificate), ("me.key", new.key)):
                (tmp_path / name).write_bytes(data)
            return web.Response(status=401)
        return await answer_node(request)

    old, new = AUTHORITY.issue("old"), AUTHORITY.issue("new")
    (tmp_path / "me.pem").write_bytes(old.certificate)
    (tmp_path / "me.key").write_bytes(old.key)
    user = ConnectionUser(certificate_file=f"{tmp_path}/me.pem", key_file=f"{tmp_path}/me.key")
    context = server_context(tmp_path, client=AUTHORITY.certificate)
    async with serving(handle, tls=context) as port, secure(port, user) as client:
        assert await client.get(NODES, "n1") == node()
    assert names == ["old", "new"]


async def test_tls_to_a_server_without_it(tmp_path: Path) -> None:
    """HTTPS to a plain port, and the other way round, are told for what they are."""
    async with serving(answer_node) as port, secure(port) as client:
        with pytest.raises(TlsError, match="the server does not speak TLS; use http://"):
            await client.get(NODES, "n1")
    async with serving(answer_node, tls=server_context(tmp_path)) as port, plain(port) as client:
        with pytest.raises(TransportError):
            await client.get(NODES, "n1")


async def test_bad_certificates_are_told_at_the_first_request() -> None:
    """What the settings hold is judged when it is needed, with the file that it came from."""
    server = ServerAddress("https://127.0.0.1:1", authority=b"nonsense", source="/kc")
    async with connect(ConnectionSettings(server), clock=SystemClock()) as client:
        with pytest.raises(ConfigError, match="/kc: certificate-authority: holds no certificate"):
            await client.get(NODES, "n1")


async def test_a_proxy_is_used() -> None:
    """Requests for another server go to the proxy, as they stand."""
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return await answer_node(request)

    async with serving(handle) as port:
        server = ServerAddress("http://api.example", proxy=f"http://127.0.0.1:{port}")
        async with connect(ConnectionSettings(server), clock=SystemClock()) as client:
            assert await client.get(NODES, "n1") == node()
    assert seen == ["http://api.example/api/v1/nodes/n1"]
    with reserved_port() as port:
        server = ServerAddress("http://api.example", proxy=f"http://ann:hidden@127.0.0.1:{port}")
        assert repr(server) == "Server('http://api.example')"
        settings = ConnectionSettings(server)
        async with connect(settings, clock=SystemClock(), retries=Retries(max_elapsed=0)) as client:
            with pytest.raises(
                ConnectionRefused, match=r"api.example:80: the proxy http://127"
            ) as raised:
                await client.get(NODES, "n1")
    assert "hidden" not in str(raised.value)


async def test_a_name_that_does_not_exist() -> None:
    """A host that nobody knows is told as such."""
    server = ServerAddress("http://nobody.invalid:6443")
    settings = ConnectionSettings(server)
    async with connect(settings, clock=SystemClock(), retries=Retries(max_elapsed=0)) as client:
        with pytest.raises(ConnectionRefused, match=r"nobody\.invalid:6443: no such host"):
            await client.get(NODES, "n1")

"""The certificate of a webhook."""

from __future__ import annotations

import asyncio
import base64
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.client import Client
from keepclose.kube.errors import AlreadyExists, ApiError, ConfigError, NotFound
from keepclose.kube.requests import SECRETS
from keepclose.model.meta import NamespacedName
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.webhook.registration import (
    LIFETIME,
    RENEWED_BEFORE,
    ServingPair,
    ensure_pair,
    is_good,
    load_pair,
    make_pair,
    read_pair,
)

NOW = 1_700_000_000.0
HOSTS = ("hooks.net.svc", "hooks.net.svc.cluster.local")
PAIR = make_pair(HOSTS, now=NOW)
KEY = NamespacedName("net", "keepclose-webhook-tls")


@pytest.mark.parametrize(
    ("pair", "hosts", "now", "want"),
    [
        pytest.param(PAIR, HOSTS, NOW, True, id="one that was just made"),
        pytest.param(PAIR, ("other.net.svc",), NOW, False, id="for another name"),
        pytest.param(
            PAIR,
            HOSTS,
            NOW + (LIFETIME - RENEWED_BEFORE).total_seconds() + 1,
            False,
            id="near its end",
        ),
        pytest.param(ServingPair(b"x", b"y", b"z"), HOSTS, NOW, False, id="no certificate"),
        pytest.param(
            PAIR._replace(key=make_pair(HOSTS, now=NOW).key), HOSTS, NOW, False, id="another key"
        ),
        pytest.param(
            make_pair(("10.0.0.1", "::1"), now=NOW), ("10.0.0.1", "::1"), NOW, True, id="addresses"
        ),
    ],
)
def test_which_pairs_are_good(
    pair: ServingPair, hosts: tuple[str, ...], now: float, *, want: bool
) -> None:
    """A pair is used as long as it is whole, for the right names and not near its end."""
    assert is_good(pair, hosts, now=now) is want


async def test_a_client_trusts_the_pair() -> None:
    """A client that trusts the authority accepts the certificate, and no other client does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, make_pair(("127.0.0.1",), now=time.time()))
    pair = make_pair(("127.0.0.1",), now=time.time())
    load_pair(context, pair)
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context
    )
    port = server.sockets[0].getsockname()[1]
    try:
        trusting = ssl.create_default_context(cadata=pair.ca.decode())
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.close()
        other = ssl.create_default_context(cadata=PAIR.ca.decode())
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=other)
    finally:
        server.close()
        await server.wait_closed()


class Stand:
    """A cluster in memory that may hold a Secret."""

    def __init__(self) -> None:
        self.clock = FakeClock(now=NOW)
        self.cluster = FakeCluster(self.clock)
        self.client = Client(self.cluster, clock=self.clock)

    async def keep(self, *, hosts: tuple[str, ...] = HOSTS) -> ServingPair:
        """Ask for the pair."""
        return await ensure_pair(self.client, namespace="net", hosts=hosts, now=NOW)

    @property
    def stored(self) -> dict[str, Any]:
        """The Secret."""
        return self.cluster.objects(SECRETS)[KEY]


def test_half_a_pair_leaves_the_one_that_serves() -> None:
    """After a certificate without its key is refused, handshakes go on with the pair before."""
    pair, other = make_pair(HOSTS, now=time.time()), make_pair(HOSTS, now=time.time())
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(serving, pair)
    with pytest.raises(ConfigError):
        load_pair(serving, other._replace(key=pair.key))
    asking = ssl.create_default_context(cadata=pair.ca.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = asking.wrap_bio(to_client, to_server, server_hostname=HOSTS[0])
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.getpeercert()


@pytest.mark.parametrize(("error", "want_creates"), [(NotFound(404), 1), (AlreadyExists(409), 5)])
async def test_a_pair_that_cannot_be_stored_is_an_error(
    monkeypatch: pytest.MonkeyPatch, error: ApiError, want_creates: int
) -> None:
    """The caller logs it and tries again after a pause; it is no loop of requests."""
    stand = Stand()
    creates: list[object] = []

    async def refuse(*_: object, **__: object) -> None:
        creates.append(error)
        raise error

    monkeypatch.setattr(stand.client, "create", refuse)
    with pytest.raises(type(error)):
        await stand.keep()
    assert len(creates) == want_creates


async def test_all_replicas_have_the_same_pair() -> None:
    """The first replica makes it, later ones read it."""
    stand = Stand()
    first, second = await asyncio.gather(stand.keep(), stand.keep())
    assert first == second == await stand.keep()
    assert stand.stored["type"] == "kubernetes.io/tls"
    assert base64.b64decode(stand.stored["data"]["tls.crt"]) == first.certificate


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"tls.crt": "!", "tls.key": "", "ca.crt": ""}, id="no base64"),
        pytest.param(None, id="no data at all"),
    ],
)
async def test_a_secret_that_is_no_use_is_replaced(data: dict[str, str] | None) -> None:
    """What else stands in the Secret stays."""
    stand = Stand()
    meta = {"name": KEY.name, "namespace": KEY.namespace, "labels": {"a": "b"}}
    stand.cluster.put(SECRETS, {"metadata": meta, "data": data})
    pair = await stand.keep()
    assert base64.b64decode(stand.stored["data"]["ca.crt"]) == pair.ca
    assert stand.stored["metadata"]["labels"] == {"a": "b"}


async def test_another_name_makes_another_pair() -> None:
    """A webhook that is reached elsewhere needs a certificate for that."""
    stand = Stand()
    first = await stand.keep()
    assert (await stand.keep(hosts=("10.0.0.1",))) != first


def test_files_are_read(tmp_path: Path) -> None:
    """Without a file for the authority the certificate vouches for itself."""
    names = [str(tmp_path / name) for name in ("tls.crt", "tls.key", "ca.crt")]
    for name, content in zip(names, PAIR, strict=True):
        Path(name).write_bytes(content)
    assert read_pair(*names) == PAIR
    assert read_pair(names[0], names[1], "").ca == PAIR.certificate
    with pytest.raises(ConfigError, match=r"nowhere\.crt"):
        read_pair(str(tmp_path / "nowhere.crt"), names[1], "")


def test_without_the_package_it_is_named() -> None:
    """Where the package that makes certificates was left out, the error says which it is."""
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from keepclose.webhook.registration import make_pair\n"
        "from keepclose.kube.errors import ConfigError\n"
        "try: make_pair(('a',), now=0.0)\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install cryptography." in done.stdout

"""When a node tells the cluster what it has put into effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.connection import connect
from keepclose.kube.requests import CONFIG_MAPS
from keepclose.kube.transport.retries import Retries
from keepclose.model.acknowledgements import (
    MAX_EXCEPTIONS,
    NodeAcknowledgement,
    parse_acknowledgement,
)
from keepclose.model.meta import NamespacedName
from keepclose.proxy.acknowledgement import Acknowledger, Progress, reached_version
from keepclose.testing.api_server import PATIENCE, Served, serving
from support.proxies import CLOCK, ProxyCluster, cluster_of


@pytest.mark.parametrize(
    ("families", "want"),
    [
        pytest.param([], 0, id="no family"),
        pytest.param([Progress(0, 0), Progress(0, 0)], 0, id="nothing with hints"),
        pytest.param([Progress(7, 7), Progress(0, 0)], 7, id="one family has nothing"),
        pytest.param([Progress(7, 7), Progress(9, 9)], 9, id="both are through"),
        pytest.param([Progress(12, 7), Progress(9, 9)], 7, id="one is behind"),
        pytest.param([Progress(12, 7), Progress(13, 5)], 5, id="both are behind"),
    ],
)
def test_the_version_that_is_reached(families: list[Progress], want: int) -> None:
    """A family with something unwritten holds the version back; one without does not."""
    assert reached_version(families) == want


class Speaker:
    """An acknowledger, and what it is to say."""

    def __init__(self, cluster: ProxyCluster) -> None:
        self.cluster = cluster
        self.wanted: NodeAcknowledgement | None = None
        self.acknowledger: Acknowledger

    async def say(self, version: int, **exceptions: str) -> None:
        """Have something said, and wait until the server has it."""
        keys = {NamespacedName("default", name): why for name, why in exceptions.items()}
        before = self.acknowledger.writes
        self.wanted = NodeAcknowledgement("n1", version, keys)
        self.acknowledger.trigger()
        async with asyncio.timeout(PATIENCE):
            while self.acknowledger.writes == before:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def said(self) -> NodeAcknowledgement | None:
        """Return what the server has."""
        found = await self.cluster.client.get(
            CONFIG_MAPS, "keepclose-ack-n1", namespace="kube-system"
        )
        return parse_acknowledgement(found)


@asynccontextmanager
async def speaking(api: Served, cluster: ProxyCluster) -> AsyncIterator[Speaker]:
    """Run an acknowledger that may speak at any time."""
    speaker = Speaker(cluster)
    connection = load_connection_settings(api.server.settings.data_dir / "kubeconfig", env={})
    async with connect(connection, clock=CLOCK, retries=Retries(max_elapsed=0.0)) as client:
        speaker.acknowledger = Acknowledger(
            client,
            read=lambda: speaker.wanted,
            owner=lambda: None,
            every_s=0.0,
            clock=CLOCK,
        )
        task = asyncio.create_task(speaker.acknowledger.run())
        try:
            yield speaker
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_only_news_are_written(tmp_path: Path) -> None:
    """The object is made, then changed; what was said already is not said again."""
    async with serving(tmp_path) as api, cluster_of(api) as cluster:
        async with speaking(api, cluster) as speaker:
            speaker.acknowledger.trigger()
            await speaker.say(5)
            assert await speaker.said() == NodeAcknowledgement("n1", 5)
            speaker.acknowledger.trigger()
            await speaker.say(7, odd="ZoneHintMissing")
            want = {NamespacedName("default", "odd"): "ZoneHintMissing"}
            assert await speaker.said() == NodeAcknowledgement("n1", 7, want)
            # A version that was reached stays so, even if its slices are gone.
            await speaker.say(3)
            assert await speaker.said() == NodeAcknowledgement("n1", 7)
            assert speaker.acknowledger.writes == 3
        async with speaking(api, cluster) as restarted:
            await restarted.say(9)
            assert await restarted.said() == NodeAcknowledgement("n1", 9)


async def test_too_much_to_say(tmp_path: Path) -> None:
    """What no object can hold is not said in part: the node then says nothing."""
    async with (
        serving(tmp_path) as api,
        cluster_of(api) as cluster,
        speaking(api, cluster) as speaker,
    ):
        many = {f"service-{number:05d}": "NodeWithoutZone" for number in range(25_000)}
        await speaker.say(5, **many)
        assert await speaker.said() == NodeAcknowledgement("n1", 0)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param("s", MAX_EXCEPTIONS + 1, id="too many for a controller"),
        pytest.param("s" * 55, MAX_EXCEPTIONS, id="too long for an object"),
    ],
)
async def test_what_cannot_be_said_whole_is_not_written(
    tmp_path: Path, name: str, number: int
) -> None:
    """One exception more than a controller takes is as good as an object that is too large."""
    async with (
        serving(tmp_path) as api,
        cluster_of(api) as cluster,
        speaking(api, cluster) as speaker,
    ):
        await speaker.say(5, **{f"{name}{place}": "x" for place in range(number)})
        found = await cluster.client.get(CONFIG_MAPS, "keepclose-ack-n1", namespace="kube-system")
        assert (found.data["programmed"], found.data["exceptions"]) == ("0", "")

"""Requests for trouble in plain values, on our own API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.errors import ConnectionRefused
from keepclose.lab.access import LabRefusal
from keepclose.lab.faults.handlers import HANDLERS
from keepclose.lab.faults.injector import FaultInjector
from keepclose.system.namespaces import NetworkError
from support.lab.faultbed import Bed, NotedLinks, troubled


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    """Run a lab with packets."""
    async with troubled(tmp_path / "data") as found:
        yield found


class Asker:
    """Asks like a command does, and keeps what was told on the way."""

    def __init__(self, troubles: FaultInjector) -> None:
        self._troubles = troubles
        self.told: list[dict[str, Any]] = []
        self.on_told: Callable[[], None] = lambda: None

    async def __call__(self, do: str, **params: Any) -> dict[str, Any]:
        """Return the answer."""

        def hear(news: dict[str, Any]) -> None:
            self.told.append(news)
            self.on_told()

        return await HANDLERS[do](self._troubles, params, hear)


async def test_answers(bed: Bed) -> None:
    """Each request is answered with what changed."""
    await bed.deploy(4)
    ask = Asker(bed.troubles)
    bed.ways["n1"].stays_away = True
    ask.on_told = bed.ways["n1"].come_back
    pod = f"default/{bed.ready('n1')[0]}"
    assert await ask("fail", name="n1") == {
        "nodes": ["n1"],
        "changed": ["n1"],
        "unready": [pod],
        "is_noticed": True,
    }
    assert await ask("heal", name="n1") == {"healed": {"n1": ["fail"]}, "away": []}
    assert ask.told == [{"waiting": ["n1"]}]
    assert await ask("partition", name="n2") == {
        "nodes": ["n2"],
        "changed": ["n2"],
        "unready": [],
        "is_noticed": False,
    }
    assert (await ask("partition", name="n2", notice=True))["is_noticed"] is True
    assert await ask("cordon", name="n3") == {"node": "n3", "changed": True}
    assert await ask("uncordon", name="n3") == {"node": "n3", "changed": True}
    moved = {"node": "n3", "before": "zone-b", "zone": "", "changed": True}
    assert await ask("relabel", name="n3", zone="-") == moved
    assert await ask("relabel", name="n3", zone="zone-b") == moved | {
        "before": "",
        "zone": "zone-b",
    }
    nodes = (await ask("status"))["nodes"]
    assert nodes[1] == {
        "node": "n2",
        "zone": "zone-a",
        "ownZone": "zone-a",
        "state": "partitioned",
        "isNoticed": True,
        "isCordoned": False,
        "pods": 1,
        "readyPods": 0,
        "words": "cut off, noticed",
    }
    assert await ask("heal") == {"healed": {"n2": ["partition"]}, "away": []}


async def test_a_drain_tells_of_each_pod(bed: Bed) -> None:
    """The pods that are gone are told one by one, and all of them at the end."""
    await bed.deploy(8)
    ask = Asker(bed.troubles)
    pods = {f"default/{name}" for name in bed.ready("n1")}
    done = await ask("drain", name="n1", timeout=20)
    assert {one["gone"] for one in ask.told} == pods
    assert (set(done["evicted"]), done["kept"]) == (pods, [])


@pytest.mark.parametrize(
    ("params", "want"),
    [
        pytest.param({}, "name a node", id="no name"),
        pytest.param({"name": 7}, "invalid request: Expected `str`, got `int`", id="a number"),
        pytest.param({"name": "n1", "timeout": -1}, "invalid request", id="before the start"),
    ],
)
async def test_bad_requests(bed: Bed, params: dict[str, Any], want: str) -> None:
    """What cannot be read is refused with code 2."""
    with pytest.raises(LabRefusal, match=want) as refusal:
        await Asker(bed.troubles)("drain", **params)
    assert refusal.value.code == 2


async def test_a_zone_that_is_no_label(bed: Bed) -> None:
    """What the API server finds invalid comes with its words and code 2."""
    with pytest.raises(LabRefusal, match="a valid label must be") as refusal:
        await Asker(bed.troubles)("relabel", name="n1", zone="no/zone")
    assert refusal.value.code == 2


class StuckLinks(NotedLinks):
    """A network that refuses."""

    def cut(self, node: str) -> None:
        """Refuse."""
        raise NetworkError(f"{node}: no such link")


async def test_links_that_cannot_be_cut(bed: Bed) -> None:
    """What the kernel refuses is told with code 1."""
    bed.underlay = StuckLinks()
    with pytest.raises(LabRefusal, match="n1: no such link") as refusal:
        await Asker(bed.troubles)("partition", name="n1")
    assert refusal.value.code == 1


class LostServer:
    """An injector whose API server is gone."""

    async def states(self) -> list[Any]:
        """Fail."""
        raise ConnectionRefused("127.0.0.1:1", "connection refused")


async def test_no_api_server() -> None:
    """An API server that does not answer is told with code 4."""
    lost: Any = LostServer()
    with pytest.raises(LabRefusal, match="the request to the API server failed: 127") as refusal:
        await Asker(lost)("status")
    assert refusal.value.code == 4

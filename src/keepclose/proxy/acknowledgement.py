"""Tells the cluster what this node has put into effect: one small ConfigMap, now and then.

Written only when it says something new, and at most so often; a server that forbids it is not asked
again. What it says is never ahead of the rules: a version counts once both families have written
everything up to it. Nothing of the proxy waits for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, NamedTuple

import msgspec
import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import AlreadyExists, ConfigError, Forbidden, KubeError, NotFound
from keepclose.kube.requests import CONFIG_MAPS
from keepclose.kube.transport.retries import Backoff
from keepclose.model.acknowledgements import (
    ACKNOWLEDGEMENT_NAMESPACE,
    MOST_EXCEPTIONS,
    OUTDATED_KEYS,
    NodeAcknowledgement,
    acknowledgement_name,
    render_acknowledgement,
    render_data,
)
from keepclose.model.meta import OwnerReference

# An object may have a little more than a million bytes.
_MOST_BYTES: Final = 900_000
_log = structlog.get_logger(__name__)


class Progress(NamedTuple):
    """How far one family has come with the slices that carry hints."""

    seen: int
    """The highest version that came in."""
    written: int
    """The highest version that had come in when the last sync that was written began."""


def reached_version(families: Iterable[Progress]) -> int:
    """Return the version up to which everything is written, in all families.

    A family that has something unwritten holds the others back to what it has written itself;
    changes come in the order of their versions, so one that waits for nothing holds nobody back.
    """
    known = list(families)
    behind = [one.written for one in known if one.written < one.seen]
    return min(behind) if behind else max((one.written for one in known), default=0)


class Acknowledger:
    """Keeps the ConfigMap of one node up to date."""

    def __init__(
        self,
        client: Client,
        *,
        read: Callable[[], NodeAcknowledgement | None],
        owner: Callable[[], OwnerReference | None],
        every_s: float,
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        """Take where to read what is to be said; None there means to say nothing now."""
        self._client = client
        self._read = read
        self._owner = owner
        self._every_s = every_s
        self._clock = clock
        self._backoff = Backoff(clock, random=random or Random())  # noqa: S311 - no secret
        self._news = asyncio.Event()
        self._said: NodeAcknowledgement | None = None
        self._told = ""
        self.writes = 0
        """Writes that the server took."""
        self.is_off = False
        """Whether the server has forbidden it."""

    def note(self) -> None:
        """Look, before long, whether there is something new to say."""
        self._news.set()

    async def run(self) -> None:
        """Say what is new until cancelled, or until the server forbids it."""
        while not self.is_off:
            await self._news.wait()
            self._news.clear()
            delay_s = await self._say()
            await self._clock.sleep(delay_s)

    async def _say(self) -> float:
        """Write if there is news; return how long to be silent after that."""
        wanted = self._read()
        if wanted is None:
            return 0.0
        if self._said is not None:
            # Never back: what was true of a version stays true of it.
            version = max(wanted.version, self._said.version)
            wanted = msgspec.structs.replace(wanted, version=version)
        if wanted == self._said:
            return 0.0
        try:
            await self._write(wanted)
        except ConfigError:
            raise
        except Forbidden as error:
            self.is_off = True
            _log.warning("acknowledgements are off, the server forbids them", error=str(error))
        except KubeError as error:
            self._news.set()
            if str(error) != self._told:
                self._told = str(error)
                _log.warning("cannot acknowledge", error=str(error))
            return self._backoff.next_delay()
        else:
            self._said, self._told = wanted, ""
            self.writes += 1
            self._backoff.note_life()
        return self._every_s

    async def _write(self, wanted: NodeAcknowledgement) -> None:
        body = msgspec.to_builtins(render_acknowledgement(wanted, owner=self._owner()))
        size = sum(map(len, body["data"].values()))
        if size > _MOST_BYTES or len(wanted.exceptions) > MOST_EXCEPTIONS:
            _log.warning("too many exceptions to acknowledge", services=len(wanted.exceptions))
            body["data"] = render_data(NodeAcknowledgement(wanted.node))
        meta = body["metadata"]
        name, namespace = meta["name"], meta["namespace"]
        patch = {**body, "data": {**dict.fromkeys(OUTDATED_KEYS), **body["data"]}}
        try:
            await self._client.patch(CONFIG_MAPS, name, patch, namespace=namespace)
        except NotFound:
            try:
                await self._client.create(CONFIG_MAPS, body, namespace=namespace)
            except AlreadyExists:
                await self._client.patch(CONFIG_MAPS, name, patch, namespace=namespace)


async def retract(client: Client, node_name: str) -> None:
    """Say nothing any more where the node spoke while its gate was on; failures are only told.

    The object stays: deleting would take a right that proxies do not need otherwise.
    """
    name = acknowledgement_name(node_name)
    data = {**dict.fromkeys(OUTDATED_KEYS), **render_data(NodeAcknowledgement(node_name))}
    try:
        await client.patch(CONFIG_MAPS, name, {"data": data}, namespace=ACKNOWLEDGEMENT_NAMESPACE)
    except NotFound:
        return
    except ConfigError:
        raise
    except KubeError as error:
        _log.warning("cannot take back the acknowledgement", name=name, error=str(error))
    else:
        _log.info("took back the acknowledgement", name=name)

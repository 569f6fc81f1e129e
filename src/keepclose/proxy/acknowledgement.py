"""Reports to the cluster what this node has put into effect, in one small ConfigMap.

The proxy writes it only when its contents change, at a limited rate; if the server forbids the
write, the proxy does not try again. The report is never ahead of the rules: it contains a version
once both families have written everything up to it. Nothing else in the proxy waits for it.
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
    MAX_EXCEPTIONS,
    OUTDATED_KEYS,
    NodeAcknowledgement,
    acknowledgement_name,
    render_acknowledgement,
    render_data,
)
from keepclose.model.meta import OwnerReference

# The API server accepts objects of a little more than a million bytes.
_MAX_BYTES: Final = 900_000
_log = structlog.get_logger(__name__)


class Progress(NamedTuple):
    """The progress of one family with the slices that carry hints."""

    seen: int
    """The highest version that the proxy received."""
    written: int
    """The highest version that the proxy had received when the last successful sync began."""


def reached_version(families: Iterable[Progress]) -> int:
    """Return the version up to which all families have written everything.

    A family with unwritten changes limits the result to the version that it has written. Changes
    arrive in the order of their versions, so a family without pending changes sets no limit.
    """
    progresses = list(families)
    behind = [progress.written for progress in progresses if progress.written < progress.seen]
    return min(behind) if behind else max((progress.written for progress in progresses), default=0)


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
        """Take `read`, which returns the desired contents; None means to write nothing now."""
        self._client = client
        self._read = read
        self._owner = owner
        self._every_s = every_s
        self._clock = clock
        self._backoff = Backoff(clock, random=random or Random())  # noqa: S311 - no secret
        self._triggered = asyncio.Event()
        self._written: NodeAcknowledgement | None = None
        self._logged_error = ""
        self.writes = 0
        """Writes that the server accepted."""
        self.is_off = False
        """Whether the server has forbidden the write."""

    def trigger(self) -> None:
        """Have `run` compare the desired contents with the last write, and write a change."""
        self._triggered.set()

    async def run(self) -> None:
        """Write changes until cancelled, or until the server forbids it."""
        while not self.is_off:
            await self._triggered.wait()
            self._triggered.clear()
            delay_s = await self._sync()
            await self._clock.sleep(delay_s)

    async def _sync(self) -> float:
        """Write the contents if they changed; return the time to wait before the next sync."""
        desired = self._read()
        if desired is None:
            return 0.0
        if self._written is not None:
            # The version never decreases: what a node acknowledged stays acknowledged.
            version = max(desired.version, self._written.version)
            desired = msgspec.structs.replace(desired, version=version)
        if desired == self._written:
            return 0.0
        try:
            await self._write(desired)
        except ConfigError:
            raise
        except Forbidden as error:
            self.is_off = True
            _log.warning("acknowledgements stopped: the server forbids them", error=str(error))
        except KubeError as error:
            self._triggered.set()
            if str(error) != self._logged_error:
                self._logged_error = str(error)
                _log.warning("acknowledgement cannot be written", error=str(error))
            return self._backoff.next_delay()
        else:
            self._written, self._logged_error = desired, ""
            self.writes += 1
            self._backoff.note_life()
        return self._every_s

    async def _write(self, acknowledgement: NodeAcknowledgement) -> None:
        body = msgspec.to_builtins(render_acknowledgement(acknowledgement, owner=self._owner()))
        size = sum(map(len, body["data"].values()))
        if size > _MAX_BYTES or len(acknowledgement.exceptions) > MAX_EXCEPTIONS:
            _log.warning(
                "acknowledgement left empty: it has too many exceptions",
                services=len(acknowledgement.exceptions),
            )
            body["data"] = render_data(NodeAcknowledgement(acknowledgement.node))
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
    """Empty the acknowledgement that the node wrote while its gate was on; only log failures.

    The object stays: a delete would need a permission that proxies do not need otherwise.
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
        _log.warning("acknowledgement cannot be retracted", name=name, error=str(error))
    else:
        _log.info("acknowledgement retracted", name=name)

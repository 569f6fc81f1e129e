"""Reads the objects of a live cluster, kind by kind and page by page.

Rights to list are enough. A kind that the cluster denies or does not serve becomes a gap; without
Services the command ends, and so it does when no API server answers. Where listing a kind in all
namespaces is denied and one namespace is known, the kind is read there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, NoReturn

from keepclose.advise.inventory import Inventory
from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.inputs.cluster_input import EXTRA_VERSIONS, ClusterInput, ExtraKind
from keepclose.cli.inputs.gaps import Gap, Unread, fill_gaps, name_gap
from keepclose.cli.options import ChosenCluster
from keepclose.cli.render.progress import Advance, shown_progress
from keepclose.cli.startup import log_to_standard_error
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import ConnectionSettings, connect
from keepclose.kube.errors import ApiError, Forbidden, KubeError, NotFound, Unauthorized
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES, Kind
from keepclose.kube.watch.list_decoding import Page
from keepclose.model.acknowledgements import ACKNOWLEDGEMENT_NAMESPACE, ACKNOWLEDGEMENT_SELECTOR
from keepclose.model.json_values import JsonObject
from keepclose.model.reported import ReportedNode, ReportedPod

_CORE: Final[tuple[Kind[Any], ...]] = (
    replace(NODES, struct=ReportedNode),
    ENDPOINT_SLICES,
    replace(PODS, struct=ReportedPod),
)
_PLURALS: Final = {
    ExtraKind.DEPLOYMENTS: "deployments",
    ExtraKind.STATEFUL_SETS: "statefulsets",
    ExtraKind.DAEMON_SETS: "daemonsets",
    ExtraKind.REPLICA_SETS: "replicasets",
    ExtraKind.DISRUPTION_BUDGETS: "poddisruptionbudgets",
    ExtraKind.AUTOSCALERS: "horizontalpodautoscalers",
    ExtraKind.NAMESPACES: "namespaces",
    ExtraKind.EVENTS: "events",
    ExtraKind.ACKNOWLEDGEMENTS: "configmaps",
}


def read_live_objects(
    cluster: ChosenCluster,
    *,
    namespace: str = "",
    fallback: str = "",
    kinds: Collection[ExtraKind] = (),
) -> ClusterInput:
    """Return the objects of a cluster, of one namespace if one is named; errors end the command.

    `fallback` is the namespace to read where listing all of them is denied.
    """
    reader = _read(
        cluster, _ClusterReader(namespace, fallback, is_lab=cluster.lab is not None), kinds
    )
    inventory, gaps = fill_gaps(Inventory.of(reader.objects), reader.unread, cluster.name)
    return ClusterInput(
        inventory,
        cluster.name,
        (*gaps, *reader.partial),
        tuple(reader.other),
        cluster,
        cluster.connection.namespace or "default",
    )


def read_plain_objects(
    cluster: ChosenCluster, *, namespace: str = "", kinds: Collection[ExtraKind] = ()
) -> tuple[list[JsonObject], tuple[Gap, ...]]:
    """Return the same objects as plain values with all of their fields, and the gaps."""
    plain = _ClusterReader(namespace, "", is_lab=cluster.lab is not None, is_plain=True)
    reader = _read(cluster, plain, kinds)
    gaps = [name_gap(kind, unread) for kind, unread in reader.unread.items()]
    return reader.other, (*gaps, *reader.partial)


def _read(
    cluster: ChosenCluster, reader: _ClusterReader, kinds: Collection[ExtraKind]
) -> _ClusterReader:
    """Return the reader when it has read everything; errors end the command."""
    settings = cluster.connection
    # Gaps say what cannot be read; a log would say it twice.
    log_to_standard_error(logging.CRITICAL)
    try:
        asyncio.run(reader.read(settings, kinds))
    except (Forbidden, Unauthorized) as error:
        hint = "or name a namespace that it may read, with -n" if reader.reads_all else ""
        fail(
            f"the cluster denies access: {error}",
            "let this user list services; without them there is no answer",
            hint if isinstance(error, Forbidden) else "",
            code=ExitCode.UNREACHABLE,
        )
    except (KubeError, TimeoutError, OSError) as error:
        _fail_unreachable(settings, error)
    return reader


def _fail_unreachable(settings: ConnectionSettings, error: Exception) -> NoReturn:
    fail(
        f"{settings.server.url} does not answer: {error}",
        "check the server that the kubeconfig names",
        code=ExitCode.UNREACHABLE,
    )


def _kind_of(extra: ExtraKind) -> Kind[Any]:
    group, _, version = EXTRA_VERSIONS[extra].rpartition("/")
    is_namespaced = extra is not ExtraKind.NAMESPACES
    return Kind(group, version, _PLURALS[extra], extra.value, is_namespaced, dict)


def _key_of(obj: Any) -> tuple[str, str] | None:
    """Return the namespace and the name of a typed or plain object; None without a name."""
    if not isinstance(obj, dict):
        meta = obj.metadata
        return (meta.namespace, meta.name) if meta.name else None
    plain = obj.get("metadata")
    if not isinstance(plain, dict):
        return None
    namespace, name = plain.get("namespace", ""), plain.get("name")
    if isinstance(namespace, str) and isinstance(name, str) and name:
        return namespace, name
    return None


class _ClusterReader:
    """What was read of a cluster so far."""

    def __init__(
        self, namespace: str, fallback: str, *, is_lab: bool, is_plain: bool = False
    ) -> None:
        self._namespace, self._fallback, self._is_lab = namespace, fallback, is_lab
        self._is_plain = is_plain
        """Whether objects of all kinds are kept as plain values, in `other`."""
        self.objects: list[object] = []
        self.other: list[JsonObject] = []
        self.unread: dict[str, Unread] = {}
        self.partial: list[Gap] = []
        """Kinds of which some objects are missing."""

    @property
    def reads_all(self) -> bool:
        """Whether all namespaces are read."""
        return not self._namespace

    async def read(self, settings: ConnectionSettings, kinds: Collection[ExtraKind]) -> None:
        """Read all kinds; raise KubeError when there is no answer without the kind."""
        async with connect(settings, clock=SystemClock()) as client:
            await self._read_core(client, SERVICES)
            for kind in _CORE:
                try:
                    await self._read_core(client, kind)
                except (Forbidden, NotFound) as error:
                    self._note_unread(kind, error)
            for extra in dict.fromkeys(kinds):
                kind = _kind_of(extra)
                try:
                    objects = await self._list_extra(client, extra, kind)
                except Unauthorized:
                    raise
                except ApiError as error:
                    # A lab has no objects of the kinds that it does not serve.
                    if not (self._is_lab and isinstance(error, NotFound)):
                        self._note_unread(kind, error)
                    continue
                self._keep_plain(kind, objects)

    async def _read_core(self, client: Client, kind: Kind[Any]) -> None:
        if self._is_plain:
            self._keep_plain(kind, await self._list(client, replace(kind, struct=dict)))
        else:
            self.objects += await self._list(client, kind)

    def _keep_plain(self, kind: Kind[Any], objects: Iterable[JsonObject]) -> None:
        # NB: the items of a list have neither.
        self.other += [
            {**obj, "apiVersion": kind.api_version, "kind": kind.kind} for obj in objects
        ]

    async def _list_extra(
        self, client: Client, extra: ExtraKind, kind: Kind[Any]
    ) -> list[JsonObject]:
        if extra is ExtraKind.ACKNOWLEDGEMENTS:
            page = await client.list_all(
                kind,
                namespace=ACKNOWLEDGEMENT_NAMESPACE,
                label_selector=ACKNOWLEDGEMENT_SELECTOR,
            )
            return self._keep_named(kind, page.items)
        return await self._list(client, kind)

    async def _list(self, client: Client, kind: Kind[Any]) -> list[Any]:
        """Return all objects of a kind, in the namespace where not all may be read."""
        try:
            return await self._list_in(client, kind, self._namespace)
        except Forbidden:
            if self._namespace or not self._fallback or not kind.namespaced:
                raise
        objects = await self._list_in(client, kind, self._fallback)
        self.partial.append(
            Gap(
                kind.kind,
                f"only namespace {self._fallback} may be read",
                "those of other namespaces are missing",
            )
        )
        return objects

    async def _list_in(self, client: Client, kind: Kind[Any], namespace: str) -> list[Any]:
        with ExitStack() as stack:
            advance: list[Advance] = []

            def show(page: Page[Any], read: int) -> None:
                if not advance:
                    if not page.remaining:
                        return
                    total = read + page.remaining
                    advance.append(stack.enter_context(shown_progress(total, kind.plural)))
                advance[0](read)

            page = await client.list_all(kind, namespace=namespace, on_page=show)
        if page.rejected:
            name, cause = page.rejected[0]
            self.partial.append(
                Gap(
                    kind.kind,
                    f"{len(page.rejected):,} cannot be read, first {name}: {cause}",
                    "they are missing in the answer",
                )
            )
        return self._keep_named(kind, page.items)

    def _keep_named(self, kind: Kind[Any], objects: list[Any]) -> list[Any]:
        """Return the objects that have a name of their own, each name once.

        NB: only typed objects are checked by their type, and pages of a server may repeat.
        """
        named: dict[tuple[str, str], Any] = {}
        nameless = 0
        for obj in objects:
            key = _key_of(obj)
            if key is None:
                nameless += 1
            else:
                named.setdefault(key, obj)
        if nameless:
            reason = f"{nameless:,} have no name"
            self.partial.append(Gap(kind.kind, reason, "they are missing in the answer"))
        return list(named.values())

    def _note_unread(self, kind: Kind[Any], error: ApiError) -> None:
        if isinstance(error, Forbidden):
            scope = f" in namespace {self._namespace}" if self._namespace else ""
            where = scope if kind.namespaced else ""
            unread = Unread(
                f"the cluster denies access: {error}", f"let this user list {kind}{where}"
            )
        elif isinstance(error, NotFound):
            unread = Unread(
                f"the cluster does not serve {kind} in {kind.api_version}",
                "keepclose reads Kubernetes 1.27 and newer; kubectl api-versions shows what this "
                "cluster serves",
            )
        else:
            unread = Unread(f"the cluster does not list {kind}: {error}")
        self.unread[kind.kind] = unread

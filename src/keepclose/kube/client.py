"""One API server, asked in typed terms: all of the reader, and create, update, patch, delete.

NB: structs hold a subset of the API's fields. A PUT made from one would erase the others, so
change objects with `patch` or `apply`, or send the whole object with `update_raw`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from keepclose.kube import requests
from keepclose.kube.kinds import Kind
from keepclose.kube.reader import USER_AGENT, Reader
from keepclose.kube.requests import APPLY, TERSE, Body, PatchType
from keepclose.kube.watch.list_decoding import PARTIAL
from keepclose.model.meta import ObjectMeta

T = TypeVar("T")


class Client(Reader):
    """Reads and writes on one API server. Close it, or use it as a context."""

    async def create(
        self,
        kind: Kind[T],
        obj: Body,
        *,
        namespace: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> T:
        """Create an object and return it as stored; the namespace may stand in the object."""
        request = requests.create_request(
            kind, obj, namespace=namespace, field_manager=field_manager, dry_run=dry_run
        )
        return await self._fetch_object(kind, request, repeatable=dry_run)

    async def update(
        self,
        kind: Kind[T],
        obj: msgspec.Struct,
        *,
        subresource: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> T:
        """Replace an object and return it as stored; a dry run only says what would be stored.

        NB: fields that the struct does not have are erased on the server. Only fit for kinds that
        the struct holds whole; else use `patch`, `apply` or `update_raw`.
        """
        request = requests.replace_request(
            kind, obj, subresource=subresource, field_manager=field_manager, dry_run=dry_run
        )
        return await self._fetch_object(kind, request)

    async def write(self, kind: Kind[T], obj: msgspec.Struct) -> ObjectMeta:
        """Replace an object, or create one that has no name yet; return its metadata as stored.

        For those who know what they sent: servers spare themselves and us the rest of the answer.
        NB: as with `update`, fields that the struct does not have are erased on the server.
        """
        if requests.identity(obj).name:
            request = requests.replace_request(kind, obj)
        else:
            request = requests.create_request(kind, obj)
        request.headers["Accept"] = TERSE
        return (await self._fetch_object(PARTIAL, request)).metadata

    async def update_raw(
        self,
        kind: Kind[T],
        obj: Mapping[str, Any],
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> T:
        """Replace an object by plain values that hold all its fields."""
        request = requests.replace_request(
            kind, obj, subresource=subresource, field_manager=field_manager
        )
        return await self._fetch_object(kind, request)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Body,
        *,
        namespace: str = "",
        type: PatchType = PatchType.MERGE,  # noqa: A002
        subresource: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> T:
        """Change parts of an object and return it as stored, or in a dry run as it would be.

        A `metadata.resourceVersion` in the patch makes it fail with Conflict when the object has
        changed since.
        """
        request = requests.patch_request(
            kind,
            name,
            patch,
            namespace=namespace,
            media_type=type,
            subresource=subresource,
            field_manager=field_manager,
            dry_run=dry_run,
        )
        return await self._fetch_object(kind, request)

    async def apply(
        self,
        kind: Kind[T],
        name: str,
        obj: Body,
        *,
        namespace: str = "",
        field_manager: str,
        force: bool = False,
        subresource: str = "",
    ) -> T:
        """Make the server hold what the object says (server-side apply) and return the result.

        Fields of another manager raise Conflict unless `force` takes them over.
        """
        request = requests.patch_request(
            kind,
            name,
            obj,
            namespace=namespace,
            media_type=APPLY,
            subresource=subresource,
            field_manager=field_manager,
            force=force,
        )
        return await self._fetch_object(kind, request, repeatable=True)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period: int | None = None,
        propagation: str = "",
    ) -> None:
        """Delete an object, if it still is the one with this uid and version.

        With one of the two the request is repeated after a lost connection; then NotFound may mean
        that the first attempt has deleted the object.
        """
        found = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {field: value for field, value in found.items() if value}
        request = requests.delete_request(
            kind,
            name,
            namespace=namespace,
            preconditions=preconditions,
            grace_period=grace_period,
            propagation=propagation,
        )
        await self._exchange.fetch(request, repeatable=bool(preconditions))


__all__ = ["USER_AGENT", "Body", "Client", "PatchType"]

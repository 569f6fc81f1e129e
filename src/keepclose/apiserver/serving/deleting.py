"""Deletes one object or a collection: at once, after a grace period, or without finalizers.

The registry decides how an object is deleted: it is removed, or it gets a deletionTimestamp and
stays until its finalizers are removed and its grace period is over. Requests, the garbage collector
and the pod reaper delete by this path alone, so that preconditions, finalizers and grace periods
always hold. Errors are those of kube-apiserver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from keepclose.apiserver.registry.deletion import (
    DeleteOptions,
    Deletion,
    DeletionStep,
    Preconditions,
    Propagation,
    check_options,
    decide_deletion,
    reject_immortal_namespace,
)
from keepclose.apiserver.registry.strategy import KindStrategy
from keepclose.apiserver.resources import BY_STORE, Resource
from keepclose.apiserver.serving.attempts import MAX_ATTEMPTS, ConflictingWriteError
from keepclose.apiserver.serving.http_messages import HttpRequest
from keepclose.apiserver.serving.negotiation import ResponseForm, render_entry
from keepclose.apiserver.serving.options import ListOptions, Query, RequestTarget, read_integer
from keepclose.apiserver.serving.reading import Listed, read_list
from keepclose.apiserver.serving.request_bodies import media_type_of, read_values
from keepclose.apiserver.serving.writing import timestamp
from keepclose.apiserver.status_errors import bad_request, invalid_object, not_found, stale
from keepclose.apiserver.storage.entries import Entry, ObjectStore
from keepclose.apiserver.storage.errors import Missing, Stale
from keepclose.model.field_errors import not_supported
from keepclose.model.json_values import JsonObject


class DeleteRequest(msgspec.Struct, frozen=True):
    """The options of a delete, and whether it is a dry run."""

    options: DeleteOptions = DeleteOptions()
    dry_run: bool = False


class Deleter:
    """Deletes objects of every kind."""

    def __init__(self, store: ObjectStore, strategies: Mapping[str, KindStrategy]) -> None:
        """Hold the store and the strategies of the kinds by store."""
        self.store = store
        self.strategies = strategies

    def delete(self, target: RequestTarget, asked: DeleteRequest) -> tuple[int, JsonObject]:
        """Delete the named object; return the code and the body of the response."""
        resource = target.resource
        reject_immortal_namespace(resource, target.name)
        entry = self.store.get(resource.store, target.namespace, target.name)
        if entry is None:
            raise not_found(resource.plural, resource.group, target.name)
        deletion = self._delete_entry(resource, entry, asked)
        strategy = self.strategies[resource.store]
        if deletion.step is DeletionStep.REMOVE and not strategy.returns_deleted:
            return 200, _success(resource, entry)
        remaining = self.store.get(resource.store, target.namespace, target.name)
        if remaining is None or asked.dry_run:
            return 200, deletion.object
        data: JsonObject = msgspec.json.decode(render_entry(resource, remaining, ResponseForm()))
        return 200, data

    def delete_collection(
        self, target: RequestTarget, options: ListOptions, asked: DeleteRequest
    ) -> Listed:
        """Delete the selected objects; return them."""
        check_options(asked.options)
        listed = read_list(self.store, target, options)
        for entry in listed.entries:
            self._delete_listed(target.resource, entry, asked)
        return listed

    def _delete_listed(self, resource: Resource, entry: Entry, asked: DeleteRequest) -> None:
        """Delete the current version of a listed object, if it still has the uid."""
        for _ in range(MAX_ATTEMPTS):
            current = self.store.get(resource.store, entry.namespace, entry.name)
            if current is None or current.uid != entry.uid:
                return
            try:
                self._delete_entry(resource, current, asked)
            except (Missing, ConflictingWriteError, Stale):
                continue
            return
        raise stale(resource.plural, resource.group, entry.name)

    def delete_dependent(
        self, store: str, namespace: str, name: str, *, uid: str, propagation: Propagation
    ) -> None:
        """Delete an object on behalf of a controller; do nothing if the uid is gone."""
        entry = self.store.get(store, namespace, name)
        if entry is None or entry.uid != uid:
            return
        options = DeleteOptions(
            propagation_policy=propagation, preconditions=Preconditions(uid=uid)
        )
        self._delete_entry(BY_STORE[store], entry, DeleteRequest(options))

    def end_grace(self, store: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete an object whose grace period is over; do nothing if the uid is gone."""
        entry = self.store.get(store, namespace, name)
        if entry is None or entry.uid != uid:
            return
        options = DeleteOptions(grace_period_seconds=0, preconditions=Preconditions(uid=uid))
        self._delete_entry(BY_STORE[store], entry, DeleteRequest(options))

    def _delete_entry(self, resource: Resource, entry: Entry, asked: DeleteRequest) -> Deletion:
        strategy = self.strategies[resource.store]
        stored: JsonObject = msgspec.json.decode(entry.data)
        deletion = decide_deletion(resource, stored, strategy, asked.options, now=timestamp())
        if asked.dry_run:
            return deletion
        if deletion.step is DeletionStep.REMOVE:
            self.store.delete(
                resource.store,
                entry.namespace,
                entry.name,
                expected=entry.version,
                final=deletion.object,
            )
            strategy.remove(stored)
        elif deletion.step is DeletionStep.MARK:
            with self.store.using_reserve():
                self.store.update(resource.store, deletion.object, expected=entry.version)
        return deletion


def read_delete_options(request: HttpRequest, query: Query) -> DeleteRequest:
    """Return the options of a delete, from its body or else from its query."""
    body: JsonObject = {}
    if request.body:
        body = read_values(request.body, media_type_of(request.header(b"content-type")))
        if body.get("kind", "DeleteOptions") != "DeleteOptions":
            raise bad_request("decoded object cannot be converted to DeleteOptions")
    else:
        body = _from_query(query)
    if body.get("preconditions") is None:
        body.pop("preconditions", None)
    try:
        options = msgspec.convert(body, DeleteOptions)
    except msgspec.ValidationError as error:
        raise bad_request(f"invalid DeleteOptions: {error}") from None
    dry_run = body.get("dryRun") or ([query["dryRun"]] if query.get("dryRun") else [])
    if not isinstance(dry_run, list) or not all(
        isinstance(directive, str) for directive in dry_run
    ):
        raise bad_request("invalid DeleteOptions: dryRun is a list of strings")
    if any(directive != "All" for directive in dry_run):
        cause = not_supported("dryRun", dry_run, ["All"])
        raise invalid_object("DeleteOptions", "meta.k8s.io", "", [cause])
    check_options(options)
    return DeleteRequest(options, dry_run=bool(dry_run))


def _from_query(query: Query) -> JsonObject:
    body: JsonObject = {}
    if "gracePeriodSeconds" in query:
        body["gracePeriodSeconds"] = read_integer(query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        body["propagationPolicy"] = query["propagationPolicy"]
    if query.get("orphanDependents"):
        body["orphanDependents"] = query["orphanDependents"] in ("true", "1")
    return body


def _success(resource: Resource, entry: Entry) -> JsonObject:
    details: dict[str, Any] = {"name": entry.name}
    if resource.group:
        details["group"] = resource.group
    details |= {"kind": resource.plural, "uid": entry.uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }

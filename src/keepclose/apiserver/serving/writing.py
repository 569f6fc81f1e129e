"""Create, update and apply: from the object of a client to the stored one.

A write never awaits between reading the stored object and writing the new one, so no other request
can intervene. Field managers are recorded before the strategy allocates, and, but for apply and
events.k8s.io, after defaulting, as in kube-apiserver. A write without a change is answered with the
stored object and gets no new version.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Final

import msgspec

from keepclose.apiserver.auth.authorization import WriteRights
from keepclose.apiserver.patch.apply import apply_configuration
from keepclose.apiserver.patch.managed_fields import record_update, restore_times
from keepclose.apiserver.registry import events
from keepclose.apiserver.registry.deletion import is_finished
from keepclose.apiserver.registry.events import newer_event_causes
from keepclose.apiserver.registry.metadata import metadata_causes
from keepclose.apiserver.registry.strategy import KindStrategy, ObjectWrite
from keepclose.apiserver.resources import BY_STORE, Resource
from keepclose.apiserver.schema.checking import check_object
from keepclose.apiserver.schema.types import Type, load_types
from keepclose.apiserver.serving.object_meta import (
    assign_namespace,
    check_name,
    check_versions,
    generate_name,
)
from keepclose.apiserver.serving.options import RequestTarget, WriteOptions
from keepclose.apiserver.serving.reading import get_entry
from keepclose.apiserver.status_errors import (
    StatusError,
    already_exists,
    conflict,
    invalid_object,
    not_found,
)
from keepclose.apiserver.storage.entries import Entry, ObjectStore
from keepclose.apiserver.storage.errors import NoSpace, ObjectTooLarge
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.json_values import JsonObject

# The limit of an object of a client, in bytes of JSON with managedFields: the limit of etcd for a
# request of kube-apiserver. Setting a deletionTimestamp and the garbage collector are exempt, so
# that an object at the limit can be deleted.
MAX_OBJECT_BYTES: Final = 1536 * 1024
_SERVICE: Final = "io.k8s.api.core.v1.Service"
# Fields that an emulated release may not have, by the type of their objects.
_NEWER_FIELDS: Final = {
    _SERVICE: b'"trafficDistribution"',
    "io.k8s.api.discovery.v1.EndpointSlice": b'"forNodes"',
}


class Written(msgspec.Struct, frozen=True):
    """The result of a write."""

    object: JsonObject
    warnings: list[str]
    created: bool = False
    # The stored bytes; None for a dry run.
    entry: Entry | None = None


class ObjectWriter:
    """Writes objects of every kind."""

    def __init__(
        self,
        store: ObjectStore,
        strategies: Mapping[str, KindStrategy],
        types: Mapping[str, Type],
        gates: FeatureGates,
    ) -> None:
        """Hold the store, the strategies by store, the types and the gates."""
        self.store = store
        self.strategies = strategies
        self.types = types
        self.gates = gates

    def with_store(self, store: ObjectStore) -> ObjectWriter:
        """Return the same writer with another store."""
        return ObjectWriter(store, self.strategies, self.types, self.gates)

    def type_of(self, resource: Resource, target: RequestTarget | None = None) -> Type:
        """Return the type of the objects of a resource, or of the object at the target.

        A stored Service with topologyKeys keeps them when their gate is off, so that the gate can
        be enabled again; so do stored objects with fields that the emulated release does not have.
        For all other objects such a field is unknown.
        """
        name = resource.definition
        if target is None or name not in _NEWER_FIELDS:
            return self.types[name]
        entry = self.store.get(resource.store, target.namespace, target.name)
        if entry is None:
            return self.types[name]
        gates = self.gates
        if name == _SERVICE and b'"topologyKeys"' in entry.data:
            gates = gates.with_gates(Gate.SERVICE_TOPOLOGY)
        if gates.emulated_minor is not None and _NEWER_FIELDS[name] in entry.data:
            gates = FeatureGates(gates.enabled)
        return load_types(gates)[name]

    def strategy_of(self, resource: Resource) -> KindStrategy:
        """Return the strategy of the kind."""
        return self.strategies[resource.store]

    def current(self, target: RequestTarget) -> JsonObject:
        """Return the current object in the version of the target."""
        stored: JsonObject = msgspec.json.decode(get_entry(self.store, target).data)
        return events.from_stored(target.resource, stored)

    def create(
        self,
        target: RequestTarget,
        new: JsonObject,
        options: WriteOptions,
        *,
        manager: str,
        rights: WriteRights | None = None,
    ) -> Written:
        """Store a new object."""
        metadata: JsonObject = new["metadata"]
        # NB: in kube-apiserver only the storage rejects this, which a dry run does not reach.
        if metadata.get("resourceVersion") and not options.dry_run:
            message = "resourceVersion should not be set on objects to be created"
            raise StatusError(500, "", message)
        write = ObjectWrite(new, gates=self.gates, now=timestamp(), dry_run=options.dry_run)
        self._assign_metadata(target, write)
        self._record_managers(target, write, manager)
        return self._store_new(target.resource, write, rights)

    def update(
        self,
        target: RequestTarget,
        new: JsonObject,
        options: WriteOptions,
        *,
        manager: str,
        rights: WriteRights | None = None,
    ) -> Written:
        """Replace the stored object of the name."""
        resource = target.resource
        check_name(target, new["metadata"])
        entry = self.store.get(resource.store, target.namespace, target.name)
        if entry is None:
            if self.strategy_of(resource).allows_create_on_update and not target.subresource:
                unnamed = target._replace(name="")
                return self.create(unnamed, new, options, manager=manager, rights=rights)
            raise not_found(resource.plural, resource.group, target.name)
        old = msgspec.json.decode(entry.data)
        check_versions(resource, new["metadata"], old["metadata"], self.strategy_of(resource))
        write = ObjectWrite(
            new,
            old,
            gates=self.gates,
            now=timestamp(),
            dry_run=options.dry_run,
            # A scale has its own field manager for the replicas; otherwise it is a usual update.
            subresource="" if target.subresource == "scale" else target.subresource,
        )
        self._record_managers(target, write, manager)
        return self._store_update(target, write, entry, rights)

    def apply(
        self,
        target: RequestTarget,
        applied: JsonObject,
        options: WriteOptions,
        *,
        manager: str,
        rights: WriteRights | None = None,
    ) -> Written:
        """Merge a configuration into the object, or create the object from it."""
        resource = target.resource
        metadata: JsonObject = applied["metadata"]
        metadata.setdefault("name", target.name)
        check_name(target, metadata)
        entry = self.store.get(resource.store, target.namespace, target.name)
        stored = None if entry is None else msgspec.json.decode(entry.data)
        if stored is None and target.subresource:
            raise not_found(resource.plural, resource.group, target.name)
        if stored is None and metadata.get("uid"):
            why = (
                f"uid mismatch: the provided object specified uid {metadata['uid']}, and no "
                "existing object was found"
            )
            raise conflict(resource.plural, resource.group, target.name, why)
        now = timestamp()
        merged = apply_configuration(
            None if stored is None else events.from_stored(resource, stored),
            applied,
            type=self.type_of(resource, target),
            api_version=resource.api_version,
            manager=manager,
            force=options.force,
            now=now,
            subresource=target.subresource,
        )
        check_object(self.type_of(resource, target), merged)
        strategy = self.strategy_of(resource)
        write = ObjectWrite(
            events.to_stored(resource, merged),
            stored,
            gates=self.gates,
            now=now,
            dry_run=options.dry_run,
            subresource=target.subresource,
        )
        if entry is None:
            self._assign_metadata(target, write)
            strategy.set_defaults(write)
            return self._store_new(resource, write, rights)
        check_versions(resource, write.new["metadata"], write.old["metadata"], strategy)
        strategy.set_defaults(write)
        return self._store_update(target, write, entry, rights)

    def _assign_metadata(self, target: RequestTarget, write: ObjectWrite) -> None:
        """Set the metadata of a new object that the server assigns."""
        metadata: JsonObject = write.new["metadata"]
        assign_namespace(self.store, target, metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = generate_name(self.store, target, str(metadata["generateName"]))
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = write.now

    def _record_managers(self, target: RequestTarget, write: ObjectWrite, manager: str) -> None:
        """Set the defaults and managedFields, and bring the object to its stored version."""
        resource = target.resource
        strategy = self.strategy_of(resource)
        if not resource.stored_as:
            strategy.set_defaults(write)
        record_update(
            None if write.is_create else events.from_stored(resource, write.old),
            write.new,
            type=self.type_of(resource, target),
            api_version=resource.api_version,
            manager=manager,
            # NB: as in kube-apiserver, the manager of a scale has no time.
            now=None if target.subresource == "scale" else write.now,
            subresource=target.subresource,
        )
        if resource.stored_as:
            write.new = events.to_stored(resource, write.new)
            strategy.set_defaults(write)

    def _store_new(
        self, resource: Resource, write: ObjectWrite, rights: WriteRights | None
    ) -> Written:
        strategy = self.strategy_of(resource)
        new, metadata = write.new, write.new["metadata"]
        name = str(metadata.get("name") or "")
        stored = False
        try:
            strategy.prepare_create(write)
            self._validate(resource, write, name)
            if rights is not None:
                rights.check_create(new)
            strategy.on_read(write)
            warnings = strategy.warnings(write)
            if self.store.get(resource.store, metadata.get("namespace", ""), name) is not None:
                failure = already_exists(resource.plural, resource.group, name)
                failure.warnings = warnings
                raise failure
            entry = None
            if not write.dry_run:
                with _as_etcd_errors():
                    entry = self.store.create(resource.store, new, max_bytes=MAX_OBJECT_BYTES)
            stored = not write.dry_run
            returned = events.from_stored(resource, new)
            return Written(returned, warnings, created=True, entry=entry)
        finally:
            strategy.settle(write, stored=stored)

    def _store_update(
        self, target: RequestTarget, write: ObjectWrite, entry: Entry, rights: WriteRights | None
    ) -> Written:
        resource = target.resource
        strategy = self.strategy_of(resource)
        new, old = write.new, write.old
        metadata: JsonObject = new["metadata"]
        if target.namespace:
            metadata["namespace"] = target.namespace
        metadata.pop("selfLink", None)
        metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        if rights is not None:
            rights.check_update(new, old)
        write.keep_system_metadata()
        stored = False
        try:
            strategy.prepare_update(write)
            self._validate(resource, write, target.name)
            strategy.on_read(write)
            warn = strategy.status_warnings if write.subresource else strategy.warnings
            warnings = warn(write)
            restore_times(old, new)
            if new == old:
                return Written(events.from_stored(resource, old), warnings, entry=entry)
            if write.dry_run:
                return Written(events.from_stored(resource, new), warnings)
            if is_finished(new):
                entry = self.store.delete(resource.store, target.namespace, target.name, final=new)
                strategy.remove(old)
            else:
                reserve = (
                    self.store.using_reserve() if _removes_finalizer(old, new) else nullcontext()
                )
                with reserve, _as_etcd_errors():
                    entry = self.store.update(
                        resource.store, new, expected=entry.version, max_bytes=MAX_OBJECT_BYTES
                    )
                stored = True
            return Written(events.from_stored(resource, new), warnings, entry=entry)
        finally:
            strategy.settle(write, stored=stored)

    def _validate(self, resource: Resource, write: ObjectWrite, name: str) -> None:
        """Raise StatusError for an invalid object."""
        causes = metadata_causes(resource, write.new, write.old or None, gates=write.gates)
        causes += self.strategy_of(resource).validate(write)
        if resource.stored_as:
            causes = newer_event_causes(causes, write)
        if causes:
            raise invalid_object(resource.kind, BY_STORE[resource.store].group, name, causes)


def _removes_finalizer(old: JsonObject, new: JsonObject) -> bool:
    """Return whether a write removes a finalizer of a terminating object."""
    before, after = old["metadata"], new["metadata"]
    return "deletionTimestamp" in before and len(after.get("finalizers") or ()) < len(
        before.get("finalizers") or ()
    )


@contextmanager
def _as_etcd_errors() -> Iterator[None]:
    """Turn the errors about sizes into those of kube-apiserver, in the words of etcd."""
    try:
        yield
    except ObjectTooLarge:
        raise StatusError(500, "", "etcdserver: request is too large") from None
    except NoSpace:
        raise StatusError(500, "", "etcdserver: mvcc: database space exceeded") from None


def timestamp() -> str:
    """Return the current time in the format of objects."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def manager_name(field_manager: str, user_agent: str) -> str:
    """Return the field manager of a write: the requested one, or else the client's."""
    return field_manager or user_agent.partition("/")[0][:128] or "unknown"

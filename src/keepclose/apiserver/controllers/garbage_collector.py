"""The garbage collector: deletes the dependents of deleted owners, and empties namespaces.

It follows the changes of the stores and reads all objects only at start and after an overflow of
changes. An object whose owners are all absent is deleted; one with another owner only loses the
reference. An owner under foreground deletion waits for its blocking dependents; one that orphans
releases its dependents first. Owners in a cycle would wait for each other, so a dependent that
closes a cycle stops blocking its owners, as in kube-controller-manager. A terminating namespace is
emptied, and removed when it is empty. Deletes take the path of any client, so that finalizers and
grace periods hold. An owner may have thousands of dependents, and a namespace as many objects, so
the collector works a few milliseconds at a time and yields to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec
import structlog

from keepclose.apiserver.controllers.store_follower import take_turns
from keepclose.apiserver.registry.core_kinds import FINALIZER as NAMESPACE_FINALIZER
from keepclose.apiserver.registry.deletion import Propagation, is_finished
from keepclose.apiserver.registry.metadata import (
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    finalizers_of,
)
from keepclose.apiserver.registry.strategy import KindStrategy
from keepclose.apiserver.resources import BY_KIND, RESOURCES
from keepclose.apiserver.status_errors import StatusError
from keepclose.apiserver.storage.entries import DELETED, Entry, StoredChange
from keepclose.apiserver.storage.errors import Closed, Overflow
from keepclose.apiserver.storage.history import Subscription
from keepclose.apiserver.storage.store import Store
from keepclose.model.json_values import JsonObject

_Key = tuple[str, str, str]
"""Store, namespace and name."""

NAMESPACE_STORE: Final = "namespaces"
_NAMESPACED_STORES: Final = tuple(
    dict.fromkeys(resource.store for resource in RESOURCES if resource.namespaced)
)
_STORES: Final = tuple(dict.fromkeys(resource.store for resource in RESOURCES))

_log = structlog.get_logger(__name__)


class DeletePath(Protocol):
    """Deletes an object as a client does, if it still has the uid."""

    def __call__(
        self, store: str, namespace: str, name: str, *, uid: str, propagation: Propagation
    ) -> None:
        """Delete the object. Raises StatusError."""
        ...


class GarbageCollector:
    """Deletes dependents without owners and the content of terminating namespaces."""

    def __init__(
        self, store: Store, strategies: Mapping[str, KindStrategy], delete: DeletePath
    ) -> None:
        """Hold the store and the path of deletes; `run` and `handle` do the work."""
        self._store = store
        self._strategies = strategies
        self._delete = delete
        # Owners that wait for their dependents, by uid.
        self._waiting: dict[str, _Key] = {}
        # The blocking dependents of each waiting owner, so that a change need not read all of them.
        self._blockers: dict[str, set[_Key]] = {}
        # Namespaces that are being emptied.
        self._terminating: set[str] = set()
        # Owners whose dependents are being read right now.
        self._scanned: set[str] = set()
        # How often all objects were read.
        self._rounds = 0

    async def run(self) -> None:
        """Follow all stores until the store is closed."""
        # NB: all subscriptions begin before the first scan, so that no change is missed.
        followed = {name: self._store.subscribe(name, since=None) for name in _STORES}
        try:
            await take_turns(self._resume())
            async with asyncio.TaskGroup() as group:
                for name, subscription in followed.items():
                    group.create_task(self._follow(name, subscription))
        finally:
            for subscription in followed.values():
                subscription.close()

    def resume(self) -> None:
        """Scan all stored objects for work that was left undone when the server stopped.

        An object that fails does not stop the scan; its error is raised at the end.
        """
        _finish(self._resume())

    def _resume(self) -> Iterator[None]:
        failure: Exception | None = None
        self._rounds += 1
        self._waiting.clear()
        self._blockers.clear()
        for store in _STORES:
            for listed in self._store.entries(store):
                entry = self._store.get(store, listed.namespace, listed.name)
                if entry is None:
                    continue
                try:
                    yield from self._check(store, entry)
                except Exception as error:  # noqa: BLE001 - raised below
                    failure = error
        if failure is not None:
            raise failure

    def handle(self, change: StoredChange) -> None:
        """React to a change."""
        _finish(self._steps(change))

    def _steps(self, change: StoredChange) -> Iterator[None]:
        """React to a change, and yield after each object that was checked."""
        entry = change.entry
        key = (change.store, entry.namespace, entry.name)
        if change.type != DELETED:
            if entry.namespace in self._terminating:
                self._remove_content(key, entry)
            else:
                yield from self._check(change.store, entry)
            yield from self._record_blockers(key, entry, change.previous)
            return
        self._waiting.pop(entry.uid, None)
        self._blockers.pop(entry.uid, None)
        for dependent in self._store.owned_by(entry.uid):
            yield from self._collect(dependent)
        yield from self._release_owners(key, entry.owners)
        if change.store == NAMESPACE_STORE:
            self._terminating.discard(entry.name)
        elif entry.namespace in self._terminating:
            self._end_namespace(entry.namespace)
        if change.store == "services":
            # A new Service of the name must not start with the addresses of the old one.
            self._remove(("endpoints", entry.namespace, entry.name), Propagation.BACKGROUND)

    async def _follow(self, store: str, subscription: Subscription) -> None:
        while True:
            try:
                changes = await subscription.next()
                await take_turns(step for change in changes for step in self._steps(change))
            except Overflow:
                subscription = self._store.subscribe(store, since=None)
                await take_turns(self._resume())
            except Closed:
                return

    def _check(self, store: str, entry: Entry) -> Iterator[None]:
        key = (store, entry.namespace, entry.name)
        if _is_terminating(entry):
            yield from self._finalize(key, entry)
        elif entry.owners:
            yield from self._collect(key)
        yield

    def _finalize(self, key: _Key, entry: Entry) -> Iterator[None]:
        """Do the work that a terminating object waits for."""
        obj: JsonObject = msgspec.json.decode(entry.data)
        finalizers = finalizers_of(obj)
        if ORPHAN_FINALIZER in finalizers:
            for dependent in self._store.owned_by(entry.uid):
                self._drop_references(dependent, {entry.uid})
                yield
            self._drop_finalizer(key, ORPHAN_FINALIZER)
        elif FOREGROUND_FINALIZER in finalizers:
            if entry.uid in self._waiting:
                # Its dependents were checked when it began to wait; later ones have own changes.
                return
            self._waiting[entry.uid] = key
            for dependent in self._store.owned_by(entry.uid):
                yield from self._collect(dependent)
            # NB: it may be deleted meanwhile, or released by the last of its dependents.
            if entry.uid in self._waiting:
                yield from self._release_if_unblocked(entry.uid)
        elif key[0] == NAMESPACE_STORE and NAMESPACE_FINALIZER in _namespace_finalizers(obj):
            self._terminating.add(entry.name)
            yield from self._empty_namespace(entry.name)

    def _release_owners(self, key: _Key, uids: Iterable[str]) -> Iterator[None]:
        """Advance the waiting owners that an object does not block any more."""
        for uid in uids:
            blockers = self._blockers.get(uid)
            if blockers is not None and uid in self._waiting:
                blockers.discard(key)
                if not blockers and uid not in self._scanned:
                    yield from self._release_if_unblocked(uid)

    def _record_blockers(self, key: _Key, after: Entry, before: Entry | None) -> Iterator[None]:
        """Record which waiting owners a written object blocks, and no longer blocks."""
        owners = {*after.owners, *(before.owners if before is not None else ())}
        # Few objects have a waiting owner; the others need not be decoded.
        waiting = self._waiting.keys() & owners
        if not waiting:
            return
        blocked = _blocked_owners(msgspec.json.decode(after.data)) & waiting
        for uid in blocked:
            self._blockers.setdefault(uid, set()).add(key)
        yield from self._release_owners(key, waiting - blocked)

    def _release_if_unblocked(self, uid: str) -> Iterator[None]:
        """Release a waiting owner when no dependent blocks it."""
        if uid in self._scanned:
            return
        self._scanned.add(uid)
        blockers: set[_Key] = set()
        try:
            scanned_round = -1
            # NB: a scan of all objects meanwhile means that changes were lost.
            while scanned_round != self._rounds:
                scanned_round = self._rounds
                # NB: changes during the reading add and remove blockers in this set.
                blockers = self._blockers[uid] = set()
                for key in self._store.owned_by(uid):
                    if uid in _blocked_owners(self._read(key)):
                        blockers.add(key)
                    yield
        finally:
            self._scanned.discard(uid)
        if not blockers and uid in self._waiting:
            self._blockers.pop(uid, None)
            self._drop_finalizer(self._waiting.pop(uid), FOREGROUND_FINALIZER)

    def _collect(self, key: _Key) -> Iterator[None]:
        """Delete an object without a solid owner, or drop its references to the other owners."""
        yield
        entry = self._store.get(*key)
        if entry is None:
            return
        obj: JsonObject = msgspec.json.decode(entry.data)
        if not key[1] and any(map(_is_namespaced, _references(obj))):
            # NB: the reference does not name the namespace of the owner. As with
            # kube-controller-manager such an object stays, whatever its other owners are.
            return
        is_terminating = bool(obj["metadata"].get("deletionTimestamp"))
        if is_terminating and FOREGROUND_FINALIZER not in finalizers_of(obj):
            return
        absent: set[str] = set()
        waiting: set[str] = set()
        has_solid_owner = False
        for reference in _references(obj):
            uid = reference.get("uid", "")
            if uid in self._waiting:
                waiting.add(uid)
            elif self._exists(reference, key[1]):
                has_solid_owner = True
            else:
                absent.add(uid)
        if has_solid_owner:
            blocking = waiting | absent
            if blocking:
                self._drop_references(key, blocking)
        elif (absent or waiting) and not is_terminating:
            closes_cycle = bool(waiting) and (yield from self._closes_cycle(entry.uid))
            if self._store.get(*key) is not entry:
                # It changed while its dependents were read; that change is handled separately.
                return
            if closes_cycle:
                self._unblock_owners(key)
            self._remove(key, self._propagation(obj, waited_for=bool(waiting)))

    def _propagation(self, obj: JsonObject, *, waited_for: bool) -> Propagation:
        if waited_for and self._store.owned_by(obj["metadata"].get("uid", "")):
            return Propagation.FOREGROUND
        if ORPHAN_FINALIZER in finalizers_of(obj):
            return Propagation.ORPHAN
        return Propagation.BACKGROUND

    def _closes_cycle(self, uid: str) -> Generator[None, None, bool]:
        """Return whether a dependent of the object already waits for its own dependents."""
        for dependent in self._store.owned_by(uid):
            if _waits_for_dependents(self._store.get(*dependent)):
                return True
            yield
        return False

    def _exists(self, reference: JsonObject, namespace: str) -> bool:
        """Return whether an owner exists; an owner of an unknown kind is assumed to."""
        resource = BY_KIND.get((reference.get("apiVersion", ""), reference.get("kind", "")))
        if resource is None:
            return True
        owner_namespace = namespace if resource.namespaced else ""
        entry = self._store.get(resource.store, owner_namespace, reference.get("name", ""))
        return entry is not None and entry.uid == reference.get("uid")

    def _empty_namespace(self, name: str) -> Iterator[None]:
        """Delete all objects of a namespace; later ones are deleted by their changes."""
        for store in _NAMESPACED_STORES:
            for entry in self._store.entries(store, name):
                self._remove_content((store, name, entry.name), entry)
                yield
        self._end_namespace(name)

    def _remove_content(self, key: _Key, entry: Entry) -> None:
        """Delete an object of a terminating namespace, unless that was done."""
        # An object that waits for dependents would outlast them in a cycle of owners.
        if not _is_terminating(entry) or _waits_for_collector(entry):
            self._remove(key, Propagation.BACKGROUND)

    def _end_namespace(self, name: str) -> None:
        """Remove the finalizer of a terminating namespace when it is empty."""
        if any(self._store.count(store, name) for store in _NAMESPACED_STORES):
            return
        obj = self._read((NAMESPACE_STORE, "", name))
        if obj is None:
            return
        self._terminating.discard(name)
        finalizers = [
            finalizer
            for finalizer in _namespace_finalizers(obj)
            if finalizer != NAMESPACE_FINALIZER
        ]
        obj["spec"] = {"finalizers": finalizers} if finalizers else {}
        self._write(NAMESPACE_STORE, obj)

    def _drop_references(self, key: _Key, uids: set[str]) -> None:
        def change(obj: JsonObject) -> None:
            remaining = [
                reference for reference in _references(obj) if reference.get("uid") not in uids
            ]
            _set_list(obj["metadata"], "ownerReferences", remaining)

        self._change(key, change)

    def _unblock_owners(self, key: _Key) -> None:
        def change(obj: JsonObject) -> None:
            for reference in _references(obj):
                if reference.get("blockOwnerDeletion"):
                    reference["blockOwnerDeletion"] = False

        self._change(key, change)

    def _drop_finalizer(self, key: _Key, finalizer: str) -> None:
        def change(obj: JsonObject) -> None:
            remaining = [name for name in finalizers_of(obj) if name != finalizer]
            _set_list(obj["metadata"], "finalizers", remaining)

        self._change(key, change)

    def _change(self, key: _Key, change: Callable[[JsonObject], None]) -> None:
        obj = self._read(key)
        if obj is None:
            return
        before = msgspec.json.encode(obj)
        change(obj)
        # NB: a write without a change would trigger itself for ever.
        if msgspec.json.encode(obj) != before:
            self._write(key[0], obj)

    def _write(self, store: str, obj: JsonObject) -> None:
        metadata = obj["metadata"]
        if is_finished(obj):
            self._store.delete(store, metadata.get("namespace", ""), metadata["name"], final=obj)
            self._strategies[store].remove(obj)
        else:
            self._store.update(store, obj)

    def _remove(self, key: _Key, propagation: Propagation) -> None:
        entry = self._store.get(*key)
        if entry is None:
            return
        try:
            self._delete(*key, uid=entry.uid, propagation=propagation)
        except StatusError as failure:
            _log.warning(
                "garbage collection of object failed", key="/".join(key), why=failure.message
            )

    def _read(self, key: _Key) -> JsonObject | None:
        entry = self._store.get(*key)
        return None if entry is None else msgspec.json.decode(entry.data)


def _finish(steps: Iterator[None]) -> None:
    """Run all steps without yielding to the event loop."""
    for _ in steps:
        pass


def _is_terminating(entry: Entry) -> bool:
    # Most objects need not be decoded; some contain the word in another field.
    if b'"deletionTimestamp"' not in entry.data:
        return False
    return bool(msgspec.json.decode(entry.data)["metadata"].get("deletionTimestamp"))


def _namespace_finalizers(namespace: JsonObject) -> list[str]:
    finalizers: list[str] | None = (namespace.get("spec") or {}).get("finalizers")
    return finalizers or []


def _references(obj: JsonObject | None) -> list[JsonObject]:
    if obj is None:
        return []
    references: list[JsonObject] | None = obj["metadata"].get("ownerReferences")
    return references or []


def _is_namespaced(reference: JsonObject) -> bool:
    """Return whether the owner is of a namespaced kind."""
    resource = BY_KIND.get((reference.get("apiVersion", ""), reference.get("kind", "")))
    return resource is not None and resource.namespaced


def _blocked_owners(obj: JsonObject | None) -> set[str]:
    """Return the uids of the owners whose foreground deletion the object blocks."""
    return {
        reference.get("uid", "")
        for reference in _references(obj)
        if reference.get("blockOwnerDeletion")
    }


def _waits_for_dependents(entry: Entry | None) -> bool:
    return (
        entry is not None
        and _is_terminating(entry)
        and FOREGROUND_FINALIZER in finalizers_of(msgspec.json.decode(entry.data))
    )


def _waits_for_collector(entry: Entry) -> bool:
    """Return whether a terminating object has a finalizer of the garbage collector."""
    finalizers = finalizers_of(msgspec.json.decode(entry.data))
    return FOREGROUND_FINALIZER in finalizers or ORPHAN_FINALIZER in finalizers


def _set_list(metadata: JsonObject, key: str, values: list[Any]) -> None:
    if values:
        metadata[key] = values
    else:
        metadata.pop(key, None)

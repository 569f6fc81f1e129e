"""The garbage collector: what belongs to a deleted object goes too, and so do namespaces.

It follows the changes of the stores and never looks through all objects but once, at start. An
object whose owners are all gone is deleted; one that has another owner only loses the reference.
An owner that is deleted in the foreground waits for its blocking dependents; one that orphans
releases its dependents first. Owners in a circle would wait for each other, so a dependent that
closes a circle stops blocking its owners, as in kube-controller-manager. A namespace on its way
out is emptied, and goes when it is empty. Deletions take the path of any client, so that
finalizers and grace periods hold. An owner may have thousands of dependents, and a namespace as
many objects, so the collector works a few milliseconds at a time and lets the event loop go on,
also when it looks at everything: after changes that were lost because too many came at once.
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
_NAMESPACED_STORES: Final = tuple(dict.fromkeys(one.store for one in RESOURCES if one.namespaced))
_STORES: Final = tuple(dict.fromkeys(one.store for one in RESOURCES))

_log = structlog.get_logger(__name__)


class DeletePath(Protocol):
    """Deletes an object as a client would, if it still has the uid."""

    def __call__(
        self, store: str, namespace: str, name: str, *, uid: str, propagation: Propagation
    ) -> None:
        """Delete the object; raises a Failure when that cannot be."""
        ...


class Collector:
    """Keeps the store free of what nobody owns any more."""

    def __init__(
        self, store: Store, strategies: Mapping[str, KindStrategy], delete: DeletePath
    ) -> None:
        """Hold what is needed; nothing happens before `run` or `handle`."""
        self._store = store
        self._strategies = strategies
        self._delete = delete
        # Owners that wait for their dependents, by uid.
        self._waiting: dict[str, _Key] = {}
        # The dependents that block each of them, so that not all are read with every change.
        self._blockers: dict[str, set[_Key]] = {}
        # Namespaces that are being emptied.
        self._leaving: set[str] = set()
        # Owners whose dependents are being read right now.
        self._scanned: set[str] = set()
        # How often everything was looked at.
        self._rounds = 0

    async def run(self) -> None:
        """Follow all stores until the store is closed."""
        # NB: all subscriptions stand before the first look, so that nothing falls between.
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
        """Take up what was left undone when the server ended: one look at everything stored.

        One object that fails does not keep the others; its error is raised at the end.
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
                    yield from self._look_at(store, entry)
                except Exception as error:  # noqa: BLE001 - raised below
                    failure = error
        if failure is not None:
            raise failure

    def handle(self, change: StoredChange) -> None:
        """Do what a change asks for."""
        _finish(self._steps(change))

    def _steps(self, change: StoredChange) -> Iterator[None]:
        """Do what a change asks for, and yield after each object that was looked at."""
        entry = change.entry
        key = (change.store, entry.namespace, entry.name)
        if change.type != DELETED:
            if entry.namespace in self._leaving:
                self._remove_content(key, entry)
            else:
                yield from self._look_at(change.store, entry)
            yield from self._note_blockers(key, entry, change.previous)
            return
        self._waiting.pop(entry.uid, None)
        self._blockers.pop(entry.uid, None)
        for dependent in self._store.owned_by(entry.uid):
            yield from self._consider(dependent)
        yield from self._release_owners(key, entry.owners)
        if change.store == NAMESPACE_STORE:
            self._leaving.discard(entry.name)
        elif entry.namespace in self._leaving:
            self._end_namespace(entry.namespace)
        if change.store == "services":
            # A new Service of the name must not begin with the addresses of the old one.
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

    def _look_at(self, store: str, entry: Entry) -> Iterator[None]:
        key = (store, entry.namespace, entry.name)
        if _is_leaving(entry):
            yield from self._let_go(key, entry)
        elif entry.owners:
            yield from self._consider(key)
        yield

    def _let_go(self, key: _Key, entry: Entry) -> Iterator[None]:
        """Do what an object on its way out waits for."""
        obj: JsonObject = msgspec.json.decode(entry.data)
        finalizers = finalizers_of(obj)
        if ORPHAN_FINALIZER in finalizers:
            for dependent in self._store.owned_by(entry.uid):
                self._drop_references(dependent, {entry.uid})
                yield
            self._drop_finalizer(key, ORPHAN_FINALIZER)
        elif FOREGROUND_FINALIZER in finalizers:
            if entry.uid in self._waiting:
                # Its dependents were looked at when it began to wait; later ones are by themselves.
                return
            self._waiting[entry.uid] = key
            for dependent in self._store.owned_by(entry.uid):
                yield from self._consider(dependent)
            # NB: it may have gone meanwhile, or have been freed by the last of its dependents.
            if entry.uid in self._waiting:
                yield from self._advance(entry.uid)
        elif key[0] == NAMESPACE_STORE and NAMESPACE_FINALIZER in _holders(obj):
            self._leaving.add(entry.name)
            yield from self._empty_namespace(entry.name)

    def _release_owners(self, key: _Key, uids: Iterable[str]) -> Iterator[None]:
        """Advance the waiting owners that an object does not block any more."""
        for uid in uids:
            blockers = self._blockers.get(uid)
            if blockers is not None and uid in self._waiting:
                blockers.discard(key)
                if not blockers and uid not in self._scanned:
                    yield from self._advance(uid)

    def _note_blockers(self, key: _Key, after: Entry, before: Entry | None) -> Iterator[None]:
        """Take note of which waiting owners a written object blocks, and no longer blocks."""
        owners = {*after.owners, *(before.owners if before is not None else ())}
        # Few objects have an owner that waits, and the others need not be decoded.
        waiting = self._waiting.keys() & owners
        if not waiting:
            return
        blocked = _blocked_owners(msgspec.json.decode(after.data)) & waiting
        for uid in blocked:
            self._blockers.setdefault(uid, set()).add(key)
        yield from self._release_owners(key, waiting - blocked)

    def _advance(self, uid: str) -> Iterator[None]:
        """Free an owner that waits, once no dependent blocks it."""
        if uid in self._scanned:
            return
        self._scanned.add(uid)
        blockers: set[_Key] = set()
        try:
            looked = -1
            # NB: where everything is looked at meanwhile, changes were lost.
            while looked != self._rounds:
                looked = self._rounds
                # NB: changes that come while dependents are read take theirs out, or put it in.
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

    def _consider(self, key: _Key) -> Iterator[None]:
        """Delete an object whose owners are all gone or going, or drop references to those."""
        yield
        entry = self._store.get(*key)
        if entry is None:
            return
        obj: JsonObject = msgspec.json.decode(entry.data)
        if not key[1] and any(map(_is_namespaced, _references(obj))):
            # NB: the reference does not say in which namespace the owner is. As with
            # kube-controller-manager such an object stays, whatever its other owners are.
            return
        leaving = bool(obj["metadata"].get("deletionTimestamp"))
        if leaving and FOREGROUND_FINALIZER not in finalizers_of(obj):
            return
        gone: set[str] = set()
        going: set[str] = set()
        solid = False
        for reference in _references(obj):
            uid = reference.get("uid", "")
            if uid in self._waiting:
                going.add(uid)
            elif self._is_there(reference, key[1]):
                solid = True
            else:
                gone.add(uid)
        if solid:
            blocking = going | gone
            if blocking:
                self._drop_references(key, blocking)
        elif (gone or going) and not leaving:
            closes_circle = bool(going) and (yield from self._closes_circle(entry.uid))
            if self._store.get(*key) is not entry:
                # It changed while its dependents were read, which is looked at by itself.
                return
            if closes_circle:
                self._unblock_owners(key)
            self._remove(key, self._propagation(obj, waited_for=bool(going)))

    def _propagation(self, obj: JsonObject, *, waited_for: bool) -> Propagation:
        if waited_for and self._store.owned_by(obj["metadata"].get("uid", "")):
            return Propagation.FOREGROUND
        if ORPHAN_FINALIZER in finalizers_of(obj):
            return Propagation.ORPHAN
        return Propagation.BACKGROUND

    def _closes_circle(self, uid: str) -> Generator[None, None, bool]:
        """Return whether a dependent of the object waits for its own dependents already."""
        for dependent in self._store.owned_by(uid):
            if _waits_for_dependents(self._store.get(*dependent)):
                return True
            yield
        return False

    def _is_there(self, reference: JsonObject, namespace: str) -> bool:
        """Return whether an owner exists; one of a kind that is not served is believed to."""
        resource = BY_KIND.get((reference.get("apiVersion", ""), reference.get("kind", "")))
        if resource is None:
            return True
        place = namespace if resource.namespaced else ""
        entry = self._store.get(resource.store, place, reference.get("name", ""))
        return entry is not None and entry.uid == reference.get("uid")

    def _empty_namespace(self, name: str) -> Iterator[None]:
        """Delete everything in a namespace; what is written there later is seen by its change."""
        for store in _NAMESPACED_STORES:
            for entry in self._store.entries(store, name):
                self._remove_content((store, name, entry.name), entry)
                yield
        self._end_namespace(name)

    def _remove_content(self, key: _Key, entry: Entry) -> None:
        """Delete an object of a namespace on its way out, unless that was done."""
        # An object that waits for dependents would outlast them in a circle of owners.
        if not _is_leaving(entry) or _waits_for_collector(entry):
            self._remove(key, Propagation.BACKGROUND)

    def _end_namespace(self, name: str) -> None:
        """Release a namespace on its way out once nothing is left in it."""
        if any(self._store.count(store, name) for store in _NAMESPACED_STORES):
            return
        obj = self._read((NAMESPACE_STORE, "", name))
        if obj is None:
            return
        self._leaving.discard(name)
        finalizers = [one for one in _holders(obj) if one != NAMESPACE_FINALIZER]
        obj["spec"] = {"finalizers": finalizers} if finalizers else {}
        self._write(NAMESPACE_STORE, obj)

    def _drop_references(self, key: _Key, uids: set[str]) -> None:
        def change(obj: JsonObject) -> None:
            kept = [one for one in _references(obj) if one.get("uid") not in uids]
            _set_list(obj["metadata"], "ownerReferences", kept)

        self._change(key, change)

    def _unblock_owners(self, key: _Key) -> None:
        def change(obj: JsonObject) -> None:
            for reference in _references(obj):
                if reference.get("blockOwnerDeletion"):
                    reference["blockOwnerDeletion"] = False

        self._change(key, change)

    def _drop_finalizer(self, key: _Key, finalizer: str) -> None:
        def change(obj: JsonObject) -> None:
            kept = [one for one in finalizers_of(obj) if one != finalizer]
            _set_list(obj["metadata"], "finalizers", kept)

        self._change(key, change)

    def _change(self, key: _Key, change: Callable[[JsonObject], None]) -> None:
        obj = self._read(key)
        if obj is None:
            return
        before = msgspec.json.encode(obj)
        change(obj)
        # NB: a write that changes nothing would be a change to look at, and so on for ever.
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
            _log.warning("not collected", key="/".join(key), why=failure.message)

    def _read(self, key: _Key) -> JsonObject | None:
        entry = self._store.get(*key)
        return None if entry is None else msgspec.json.decode(entry.data)


def _finish(steps: Iterator[None]) -> None:
    """Take all steps at once."""
    for _ in steps:
        pass


def _is_leaving(entry: Entry) -> bool:
    # Most objects are not decoded for this; the words may stand elsewhere in some.
    if b'"deletionTimestamp"' not in entry.data:
        return False
    return bool(msgspec.json.decode(entry.data)["metadata"].get("deletionTimestamp"))


def _holders(namespace: JsonObject) -> list[str]:
    finalizers: list[str] | None = (namespace.get("spec") or {}).get("finalizers")
    return finalizers or []


def _references(obj: JsonObject | None) -> list[JsonObject]:
    if obj is None:
        return []
    references: list[JsonObject] | None = obj["metadata"].get("ownerReferences")
    return references or []


def _is_namespaced(reference: JsonObject) -> bool:
    """Return whether the owner is of a kind that has a namespace."""
    resource = BY_KIND.get((reference.get("apiVersion", ""), reference.get("kind", "")))
    return resource is not None and resource.namespaced


def _blocked_owners(obj: JsonObject | None) -> set[str]:
    """Return the uids of the owners that the object keeps from being deleted in the foreground."""
    return {
        reference.get("uid", "")
        for reference in _references(obj)
        if reference.get("blockOwnerDeletion")
    }


def _waits_for_dependents(entry: Entry | None) -> bool:
    return (
        entry is not None
        and _is_leaving(entry)
        and FOREGROUND_FINALIZER in finalizers_of(msgspec.json.decode(entry.data))
    )


def _waits_for_collector(entry: Entry) -> bool:
    """Return whether an object on its way out has a finalizer of the garbage collector."""
    held = finalizers_of(msgspec.json.decode(entry.data))
    return FOREGROUND_FINALIZER in held or ORPHAN_FINALIZER in held


def _set_list(metadata: JsonObject, key: str, values: list[Any]) -> None:
    if values:
        metadata[key] = values
    else:
        metadata.pop(key, None)

"""The objects of one kind as last seen, found by name or by indexes that each change updates.

Objects are frozen and returned without a copy: no reader can change what another one reads. An
object never goes back in time: the cache rejects a version that is older than the present one, or
than the deletion of the object. Only a whole list, read from the present of the server, overrides
that. Versions are compared as numbers where both are numbers, and otherwise only for equality.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from keepclose.model.meta import NamespacedName, ObjectMeta


class Named(Protocol):
    """Anything with the metadata of a Kubernetes object."""

    @property
    def metadata(self) -> ObjectMeta:
        """The name, version and labels."""
        ...


_T = TypeVar("_T", bound=Named)
_Handler = Callable[[_T | None, _T | None], None]
# Deletions are remembered to reject late repeats of older events; a watch repeats recent ones only.
_MAX_DELETIONS: Final = 1024


class Index(NamedTuple, Generic[_T]):
    """A name, and the function from an object to its keys in the index.

    The function must always return the same keys for the same object; it may return none.
    """

    name: str
    keys_of: Callable[[_T], Iterable[Hashable]]


class Cache(Generic[_T]):
    """All objects of one kind; any number of readers, one reflector that writes."""

    def __init__(self, indexes: Sequence[Index[_T]] = ()) -> None:
        self._objects: dict[NamespacedName, _T] = {}
        self._indexes = [(index.keys_of, self._new_buckets()) for index in indexes]
        self._buckets = dict(
            zip(
                (index.name for index in indexes),
                (buckets for _, buckets in self._indexes),
                strict=True,
            )
        )
        self._deletions: dict[NamespacedName, str] = {}
        self._handlers: list[_Handler[_T]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[NamespacedName]:
        """Iterate over a copy of the keys, so that the cache may change meanwhile."""
        return iter(tuple(self._objects))

    def get(self, key: NamespacedName) -> _T | None:
        """Return the object, None when there is none."""
        return self._objects.get(key)

    def all(self) -> list[_T]:
        """Return all objects in the order in which they were added."""
        return list(self._objects.values())

    def snapshot(self) -> dict[NamespacedName, _T]:
        """Return a copy of the present state."""
        return dict(self._objects)

    def by_index(self, name: str, key: Hashable) -> list[_T]:
        """Return the objects under a key of an index, in no particular order.

        Raise KeyError for an index that does not exist, which is a bug.
        """
        return list(self._buckets[name].get(key, {}).values())

    def index_keys(self, name: str) -> list[Hashable]:
        """Return the keys of an index that have at least one object."""
        return list(self._buckets[name])

    def subscribe(self, handler: _Handler[_T]) -> Callable[[], None]:
        """Call the handler with (old, new) after every change; return a function to unsubscribe.

        `old` is None for an added object, `new` for a deleted one. The handler receives the present
        objects at once, so that its view is complete whenever it subscribes. It runs after the
        change was made, and must neither block nor change the cache.
        """
        for present in tuple(self._objects.values()):
            handler(None, present)
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    def put(self, new: _T) -> bool:
        """Add or update an object; return False for one that is unchanged or older."""
        key = new.metadata.key
        version = new.metadata.resource_version
        old = self._objects.get(key)
        if old is not None:
            if is_older(version, old.metadata.resource_version):
                return False
        elif key in self._deletions:
            deleted_at = self._deletions[key]
            if version == deleted_at or is_older(version, deleted_at):
                return False
            del self._deletions[key]
        return self._set(key, old, new)

    def delete(self, key: NamespacedName, version: str = "") -> bool:
        """Remove an object that was deleted at the version; return False when nothing changes.

        The deletion of an earlier object of that name is rejected.
        """
        old = self._objects.get(key)
        if old is not None and is_older(version, old.metadata.resource_version):
            return False
        self._remember_deletion(key, version)
        return self._remove(key)

    def replace(self, objects: Iterable[_T], *, keep: Iterable[NamespacedName] = ()) -> int:
        """Replace the content by these objects; return the number of changes.

        Missing objects are deleted first, then the others are put in the given order; handlers
        receive no event for unchanged ones. Objects under the keys to keep stay as they are.
        """
        listed = {new.metadata.key: new for new in objects}
        staying = listed.keys() | set(keep)
        self._deletions.clear()
        changes = 0
        for key in [key for key in self._objects if key not in staying]:
            changes += self._remove(key)
        for key, new in listed.items():
            changes += self._set(key, self._objects.get(key), new)
        return changes

    def _set(self, key: NamespacedName, old: _T | None, new: _T) -> bool:
        if old is not None and _is_same(old, new):
            return False
        self._objects[key] = new
        for keys_of, buckets in self._indexes:
            new_keys = dict.fromkeys(keys_of(new))
            if old is not None:
                stale_keys = [index_key for index_key in keys_of(old) if index_key not in new_keys]
                self._unindex(key, buckets, stale_keys)
            for index_key in new_keys:
                buckets.setdefault(index_key, {})[key] = new
        self._notify(old, new)
        return True

    def _remove(self, key: NamespacedName) -> bool:
        old = self._objects.pop(key, None)
        if old is None:
            return False
        for keys_of, buckets in self._indexes:
            self._unindex(key, buckets, dict.fromkeys(keys_of(old)))
        self._notify(old, None)
        return True

    def _notify(self, old: _T | None, new: _T | None) -> None:
        for handler in tuple(self._handlers):
            handler(old, new)

    def _remember_deletion(self, key: NamespacedName, version: str) -> None:
        if not version:
            return
        self._deletions.pop(key, None)
        self._deletions[key] = version
        if len(self._deletions) > _MAX_DELETIONS:
            del self._deletions[next(iter(self._deletions))]

    @staticmethod
    def _new_buckets() -> dict[Hashable, dict[NamespacedName, _T]]:
        return {}

    @staticmethod
    def _unindex(
        key: NamespacedName,
        buckets: dict[Hashable, dict[NamespacedName, _T]],
        index_keys: Iterable[Hashable],
    ) -> None:
        for index_key in index_keys:
            bucket = buckets.get(index_key, {})
            bucket.pop(key, None)
            if not bucket:
                buckets.pop(index_key, None)


def is_older(version: str, other: str) -> bool:
    """Return whether a version is certainly older than another; False if not comparable."""
    if not all(text.isascii() and text.isdecimal() for text in (version, other)):
        return False
    # NB: compared as texts: a server may send any number of digits.
    digits, other_digits = version.lstrip("0"), other.lstrip("0")
    return (len(digits), digits) < (len(other_digits), other_digits)


def _is_same(old: Named, new: Named) -> bool:
    return old.metadata.resource_version == new.metadata.resource_version and old == new

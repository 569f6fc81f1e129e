"""The objects of one kind as last seen, found by name or through indexes kept up with each change.

Objects are frozen and handed out as they are: nothing is copied and nobody can change what another
one reads. An object never goes back in time: one that is older than what is here, or than the
deletion of what was here, is refused. Only a whole list, read from the server's present, overrules
that. Versions are compared as numbers where both are numbers, and else only for equality.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from keepclose.model.meta import NamespacedName, ObjectMeta


class Named(Protocol):
    """Anything with the metadata of a Kubernetes object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its name, version and labels."""
        ...


_T = TypeVar("_T", bound=Named)
_Handler = Callable[[_T | None, _T | None], None]
# Deletions remembered against late repeats of older events; a watch repeats only what is recent.
_MOST_DELETIONS: Final = 1024


class Index(NamedTuple, Generic[_T]):
    """A name, and the function from an object to the keys under which it is found.

    The function must give the same keys for the same object every time; no keys is fine.
    """

    name: str
    keys_of: Callable[[_T], Iterable[Hashable]]


class Cache(Generic[_T]):
    """All objects of one kind; everybody reads, one reflector writes."""

    def __init__(self, indexes: Sequence[Index[_T]] = ()) -> None:
        self._objects: dict[NamespacedName, _T] = {}
        self._indexes = [(index.keys_of, self._new_buckets()) for index in indexes]
        self._buckets = dict(
            zip((i.name for i in indexes), (b for _, b in self._indexes), strict=True)
        )
        self._deletions: dict[NamespacedName, str] = {}
        self._handlers: list[_Handler[_T]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[NamespacedName]:
        """Iterate over the keys as they are now; changes meanwhile are fine."""
        return iter(tuple(self._objects))

    def get(self, key: NamespacedName) -> _T | None:
        """Return the object, None when there is none."""
        return self._objects.get(key)

    def all(self) -> list[_T]:
        """Return all objects, those that came first ahead."""
        return list(self._objects.values())

    def snapshot(self) -> dict[NamespacedName, _T]:
        """Return the present state, which later changes leave alone."""
        return dict(self._objects)

    def by_index(self, name: str, key: Hashable) -> list[_T]:
        """Return the objects found under the key, in no promised order; an empty list for none.

        A name that no index has is a mistake of the program: KeyError.
        """
        return list(self._buckets[name].get(key, {}).values())

    def index_keys(self, name: str) -> list[Hashable]:
        """Return the keys under which the index has at least one object."""
        return list(self._buckets[name])

    def subscribe(self, handler: _Handler[_T]) -> Callable[[], None]:
        """Call the handler with (old, new) after every change; return how to end that.

        None stands for an object that was not there before, or is not any more. What is here
        already is told at once, so that a handler's view is complete whenever it joins. A handler
        sees the cache with the change made, and must neither block nor change the cache.
        """
        for one in tuple(self._objects.values()):
            handler(None, one)
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    def put(self, new: _T) -> bool:
        """Take an object in; return False when it is no news, or older than what is known."""
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
        """Drop an object that was deleted at the version; return False when that changes nothing.

        The deletion of an earlier object of that name is refused.
        """
        old = self._objects.get(key)
        if old is not None and is_older(version, old.metadata.resource_version):
            return False
        self._remember_deletion(key, version)
        return self._remove(key)

    def replace(self, objects: Iterable[_T], *, keep: Iterable[NamespacedName] = ()) -> int:
        """Become exactly these objects; return how many changes that made.

        What vanished is deleted first, then the rest is put in the order given, and what is the
        same as before is not told to anybody. Keys to keep stay as they are if they are here.
        """
        fresh = {one.metadata.key: one for one in objects}
        staying = fresh.keys() | set(keep)
        self._deletions.clear()
        changes = 0
        for key in [key for key in self._objects if key not in staying]:
            changes += self._remove(key)
        for key, one in fresh.items():
            changes += self._set(key, self._objects.get(key), one)
        return changes

    def _set(self, key: NamespacedName, old: _T | None, new: _T) -> bool:
        if old is not None and _is_same(old, new):
            return False
        self._objects[key] = new
        for keys_of, buckets in self._indexes:
            wanted = dict.fromkeys(keys_of(new))
            if old is not None:
                self._unfile(key, buckets, [k for k in keys_of(old) if k not in wanted])
            for index_key in wanted:
                buckets.setdefault(index_key, {})[key] = new
        self._tell(old, new)
        return True

    def _remove(self, key: NamespacedName) -> bool:
        old = self._objects.pop(key, None)
        if old is None:
            return False
        for keys_of, buckets in self._indexes:
            self._unfile(key, buckets, dict.fromkeys(keys_of(old)))
        self._tell(old, None)
        return True

    def _tell(self, old: _T | None, new: _T | None) -> None:
        for handler in tuple(self._handlers):
            handler(old, new)

    def _remember_deletion(self, key: NamespacedName, version: str) -> None:
        if not version:
            return
        self._deletions.pop(key, None)
        self._deletions[key] = version
        if len(self._deletions) > _MOST_DELETIONS:
            del self._deletions[next(iter(self._deletions))]

    @staticmethod
    def _new_buckets() -> dict[Hashable, dict[NamespacedName, _T]]:
        return {}

    @staticmethod
    def _unfile(
        key: NamespacedName,
        buckets: dict[Hashable, dict[NamespacedName, _T]],
        index_keys: Iterable[Hashable],
    ) -> None:
        for index_key in index_keys:
            bucket = buckets.get(index_key, {})
            bucket.pop(key, None)
            if not bucket:
                buckets.pop(index_key, None)


def is_older(one: str, other: str) -> bool:
    """Return whether a resource version is certainly older; False where they cannot be compared."""
    if not all(text.isascii() and text.isdecimal() for text in (one, other)):
        return False
    # Compared as texts: a server may send as many digits as it likes.
    digits, other_digits = one.lstrip("0"), other.lstrip("0")
    return (len(digits), digits) < (len(other_digits), other_digits)


def _is_same(old: Named, new: Named) -> bool:
    return old.metadata.resource_version == new.metadata.resource_version and old == new

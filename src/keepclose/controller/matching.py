"""Which Services may select a pod, found without looking at all of them.

Each Service is filed under one pair of its selector, the one under which the fewest others are;
a pod can only be selected by Services filed under one of its own labels, or by those whose selector
is empty. What is found is a candidate: whether it selects the pod is for `model.selectors.matches`.
"""

from __future__ import annotations

from collections.abc import Mapping

from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service

_Pair = tuple[str, str, str]
_EVERYTHING = ("", "")


class Matching:
    """All Services that have a selector, filed by it."""

    def __init__(self) -> None:
        self._buckets: dict[_Pair, dict[NamespacedName, Service]] = {}
        self._filed: dict[NamespacedName, _Pair] = {}

    def __len__(self) -> int:
        return len(self._filed)

    def change(self, old: Service | None, new: Service | None) -> None:
        """Take a Service that came, changed or went, as caches tell it."""
        if old is not None:
            self._remove(old.key)
        if new is None or new.spec.selector is None:
            return
        pair = self._choose(new.metadata.namespace, new.spec.selector)
        self._filed[new.key] = pair
        self._buckets.setdefault(pair, {})[new.key] = new

    def services(self, namespace: str, labels: Mapping[str, str]) -> list[Service]:
        """Return the Services of the namespace that select a pod with these labels."""
        buckets = self._buckets
        found: list[Service] = []
        for key, value in (*labels.items(), _EVERYTHING):
            bucket = buckets.get((namespace, key, value))
            if bucket is not None:
                found += [
                    one for one in bucket.values() if matches(one.spec.selector or {}, labels)
                ]
        return found

    def _choose(self, namespace: str, selector: Mapping[str, str]) -> _Pair:
        pairs = [(namespace, key, value) for key, value in selector.items()]
        if not pairs:
            return (namespace, *_EVERYTHING)
        return min(pairs, key=lambda pair: (len(self._buckets.get(pair, ())), pair))

    def _remove(self, key: NamespacedName) -> None:
        pair = self._filed.pop(key, None)
        if pair is None:
            return
        bucket = self._buckets[pair]
        del bucket[key]
        if not bucket:
            del self._buckets[pair]

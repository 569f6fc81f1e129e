"""ConfigMaps and Namespaces: where settings stand, and where objects live."""

from __future__ import annotations

from keepclose.model.meta import Frozen, NamespacedName, ObjectMeta


class ConfigMap(Frozen, frozen=True, omit_defaults=False):
    """Texts by name. Binary data are not read."""

    api_version: str = "v1"
    kind: str = "ConfigMap"
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}

    @property
    def key(self) -> NamespacedName:
        """The ConfigMap's identity."""
        return self.metadata.key


class NamespaceStatus(Frozen, frozen=True):
    """Whether a namespace is there to stay."""

    phase: str = ""


class Namespace(Frozen, frozen=True, omit_defaults=False):
    """A namespace."""

    api_version: str = "v1"
    kind: str = "Namespace"
    metadata: ObjectMeta = ObjectMeta()
    status: NamespaceStatus = NamespaceStatus()

    @property
    def is_terminating(self) -> bool:
        """Whether nothing may be created in the namespace any more."""
        return self.metadata.deletion_timestamp is not None or self.status.phase == "Terminating"

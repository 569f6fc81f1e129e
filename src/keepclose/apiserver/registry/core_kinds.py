"""Writes of ServiceAccounts, Leases, Namespaces, ConfigMaps and Nodes.

This server issues no tokens for ServiceAccounts, so an account is a name with lists of secrets,
which only a kubelet reads. A Lease cannot be updated without a resourceVersion: that would steal
it. A namespace carries its own name as a label, so that selectors can find it; its contents hold it
through finalizers in its spec, which only the finalize subresource changes. The keys of a ConfigMap
must be able to name files. A node may bring its status when it is created; its allocatable
resources default to its capacity; its pod CIDRs and provider ID cannot change once they are set.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from typing import Any, Final

from keepclose.apiserver.registry.metadata import (
    NOT_STANDARD,
    beyond_metadata,
    is_known_finalizer,
)
from keepclose.apiserver.registry.strategy import (
    ObjectWrite,
    PlainStrategy,
    keep,
    same,
)
from keepclose.model.addresses import cidr_errors, family_of
from keepclose.model.field_errors import (
    FieldError,
    FieldErrorType,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
    too_long,
)
from keepclose.model.gates import Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import (
    DNS1123_SUBDOMAIN_MAX,
    byte_length,
    label_value,
    qualified_name,
)
from keepclose.model.workload import NOT_NEGATIVE, Node, validate_node

NAME_LABEL: Final = "kubernetes.io/metadata.name"
FINALIZER: Final = "kubernetes"
MAX_BYTES: Final = 1 << 20
TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_KEY_PATTERN: Final = "[-._a-zA-Z0-9]+"
_is_key = re.compile(_KEY_PATTERN).fullmatch
_BAD_KEY: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    f"'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{_KEY_PATTERN}')"
)
_NODE_INFO: Final = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


class ServiceAccountStrategy(PlainStrategy):
    """Strategy of ServiceAccounts."""

    returns_deleted = True


class LeaseStrategy(PlainStrategy):
    """Strategy of Leases."""

    allows_unconditional_update = False
    allows_create_on_update = True

    def set_defaults(self, write: ObjectWrite) -> None:
        """Drop the fields of coordinated leader election, whose gate is off."""
        for key in ("strategy", "preferredHolder"):
            (write.new.get("spec") or {}).pop(key, None)

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of duration and transitions."""
        spec = write.new.get("spec") or {}
        causes: list[FieldError] = []
        duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        if duration is not None and duration <= 0:
            causes.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        if transitions is not None and transitions < 0:
            causes.append(invalid("spec.leaseTransitions", transitions, NOT_NEGATIVE))
        return causes


class NamespaceStrategy(PlainStrategy):
    """Strategy of Namespaces."""

    has_status = True
    returns_deleted = True

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set the label that holds the name."""
        metadata = write.new["metadata"]
        if metadata.get("name"):
            metadata["labels"] = {**(metadata.get("labels") or {}), NAME_LABEL: metadata["name"]}

    def prepare_create(self, write: ObjectWrite) -> None:
        """Make the namespace Active, with the finalizer of its contents."""
        write.new["status"] = {"phase": "Active"}
        spec = write.new.get("spec") or {}
        finalizers = spec.get("finalizers") or []
        if FINALIZER not in finalizers:
            finalizers = [*finalizers, FINALIZER]
        write.new["spec"] = {**spec, "finalizers": finalizers}

    def prepare_update(self, write: ObjectWrite) -> None:
        """Keep what belongs to the other subresources."""
        if write.subresource == "status":
            write.keep_all_but_status()
            return
        write.keep_status()
        if write.subresource == "finalize":
            spec = write.new["spec"] = write.new.get("spec") or {}
            if not spec.get("finalizers"):
                spec.pop("finalizers", None)
        else:
            keep(write.new, write.old, "spec")

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the finalizers in the spec."""
        causes: list[FieldError] = []
        for finalizer in (write.new.get("spec") or {}).get("finalizers") or ():
            field = "spec.finalizers"
            causes += [invalid(field, finalizer, text) for text in qualified_name(finalizer)]
            if not is_known_finalizer(finalizer):
                causes.append(invalid(field, finalizer, NOT_STANDARD))
        return causes

    def status_causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return an error when the phase does not fit the deletion timestamp."""
        phase = (write.new.get("status") or {}).get("phase", "")
        is_deleted = bool(write.new["metadata"].get("deletionTimestamp"))
        expected = "Terminating" if is_deleted else "Active"
        if phase == expected:
            return []
        state = "not empty" if is_deleted else "empty"
        detail = f"may only be '{expected}' if `deletionTimestamp` is {state}"
        # NB: the path is upstream's.
        return [invalid("status.Phase", phase, detail)]


class ConfigMapStrategy(PlainStrategy):
    """Strategy of ConfigMaps."""

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of keys, sizes and changes of an immutable ConfigMap."""
        new, old = write.new, write.old
        causes: list[FieldError] = []
        if old.get("immutable"):
            causes += [
                forbidden_field(key, "field is immutable when `immutable` is set")
                for key in ("immutable", "data", "binaryData")
                if not same(new.get(key) or None, old.get(key))
            ]
        data, binary = new.get("data") or {}, new.get("binaryData") or {}
        for key in sorted(data):
            causes += [invalid(f"data[{key}]", key, text) for text in config_key(key)]
            if key in binary:
                detail = "duplicate of key present in binaryData"
                causes.append(invalid(f"data[{key}]", key, detail))
        for key in sorted(binary):
            causes += [invalid(f"binaryData[{key}]", key, text) for text in config_key(key)]
        size = sum(map(byte_length, data.values())) + sum(map(_decoded_length, binary.values()))
        if size > MAX_BYTES:
            causes.append(too_long("[]", MAX_BYTES))
        return causes


def config_key(value: str) -> list[str]:
    """Return why the string cannot be a key: a key must be able to name a file."""
    messages: list[str] = []
    if byte_length(value) > DNS1123_SUBDOMAIN_MAX:
        messages.append(f"must be no more than {DNS1123_SUBDOMAIN_MAX} characters")
    if not _is_key(value):
        messages.append(_BAD_KEY)
    if value == ".":
        messages.append("must not be '.'")
    elif value == "..":
        messages.append("must not be '..'")
    elif value.startswith(".."):
        messages.append("must not start with '..'")
    return messages


class NodeStrategy(PlainStrategy):
    """Strategy of Nodes."""

    has_status = True

    def set_defaults(self, write: ObjectWrite) -> None:
        """Make podCIDR and podCIDRs agree."""
        spec = write.new.get("spec") or {}
        first, cidrs = spec.get("podCIDR"), spec.get("podCIDRs")
        if first and (not cidrs or cidrs[0] != first):
            # podCIDR wins over a list that begins with another range.
            spec["podCIDRs"] = [first]
        elif cidrs and not first:
            spec["podCIDR"] = cidrs[0]

    def prepare_create(self, write: ObjectWrite) -> None:
        """Set the defaults of the status, which a new node may bring."""
        write.new.setdefault("spec", {})
        _set_status_defaults(write.new)

    def prepare_update(self, write: ObjectWrite) -> None:
        """Keep the status, or with a status update everything else."""
        super().prepare_update(write)
        if write.subresource == "status":
            _set_status_defaults(write.new)

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the node."""
        spec: JsonObject = write.new.get("spec") or {}
        causes = _taint_causes(spec.get("taints") or [])
        causes += beyond_metadata(validate_node(write.read_new(Node)))
        strict = write.gates.on(Gate.STRICT_IP_CIDR_VALIDATION)
        causes += _range_causes(spec.get("podCIDRs") or [], strict=strict)
        return causes + _change_causes(spec, write.old.get("spec") or {})

    def status_causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the reported status."""
        causes = beyond_metadata(validate_node(write.read_new(Node)))
        seen: set[frozenset[tuple[str, Any]]] = set()
        for index, address in enumerate(write.new["status"].get("addresses") or ()):
            members = frozenset(address.items())
            if members in seen:
                shown = {"Type": address.get("type", ""), "Address": address.get("address", "")}
                causes.append(duplicate(f"status.addresses[{index}]", shown))
            seen.add(members)
        return causes


def _decoded_length(text: str) -> int:
    try:
        return len(b64decode(text, validate=True))
    except (NotBase64, ValueError):
        return len(text)


def _set_status_defaults(node: JsonObject) -> None:
    status = node["status"] = node.get("status") or {}
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    info = status.setdefault("nodeInfo", {})
    for key in _NODE_INFO:
        info.setdefault(key, "")


def _taint_causes(taints: list[JsonObject]) -> list[FieldError]:
    causes: list[FieldError] = []
    seen: set[tuple[Any, Any]] = set()
    for index, taint in enumerate(taints):
        # NB: the path is upstream's, although taints are part of the spec.
        field = f"metadata.taints[{index}]"
        key, value, effect = (taint.get(name, "") for name in ("key", "value", "effect"))
        causes += [invalid(f"{field}.key", key, text) for text in qualified_name(key)]
        causes += [invalid(f"{field}.value", value, text) for text in label_value(value)]
        if not effect:
            causes.append(required(f"{field}.effect"))
        elif effect not in TAINT_EFFECTS:
            causes.append(not_supported(f"{field}.effect", effect, TAINT_EFFECTS))
        if (key, effect) in seen:
            shown = {"Key": key, "Value": value, "Effect": effect, "TimeAdded": None}
            detail = "taints must be unique by key and effect pair"
            causes.append(FieldError(FieldErrorType.DUPLICATE, field, detail, shown))
        seen.add((key, effect))
    return causes


def _range_causes(cidrs: list[str], *, strict: bool) -> list[FieldError]:
    field = "spec.podCIDRs"
    causes: list[FieldError] = []
    for index, cidr in enumerate(cidrs):
        causes += cidr_errors(f"{field}[{index}]", cidr, strict=strict)
    families = {family_of(cidr.partition("/")[0]) for cidr in cidrs}
    if len(cidrs) > 1 and (len(families) < 2 or len(cidrs) > 2):
        detail = "may specify no more than one CIDR for each IP family"
        causes.append(invalid(field, cidrs, detail))
    return causes


def _change_causes(spec: JsonObject, before: JsonObject) -> list[FieldError]:
    causes: list[FieldError] = []
    for key, name in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
        if before.get(key) and spec.get(key) != before[key]:
            detail = f'node updates may not change {name} except from "" to valid'
            causes.append(forbidden_field(f"spec.{key}", detail))
    return causes

"""Replaces names and addresses in a snapshot so that every answer stays the same.

Equal names get equal tokens wherever they stand, because an object refers to another by its name.
Ties of decisions go to the first name in order, so tokens keep the order of the names: a token is
the rank of the name and a part of its hash. The hash needs the salt, which nothing stores. With the
same salt a name has the same hash in every snapshot; its rank may differ. Addresses stay in their
family, and in their order.

NB: works on what `allowed_fields` leaves, where a field has one meaning in all kinds.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from base64 import b32encode
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from keepclose.cli.inputs.cluster_input import ExtraKind
from keepclose.cli.snapshot.allowed_fields import NUMBER_ANNOTATIONS
from keepclose.model.acknowledgements import parse_acknowledgement, render_acknowledgement
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import (
    ENDPOINTSLICE_CONTROLLER,
    EXCLUDED_NODE_LABELS,
    FOR_REGION_LABEL,
    FOR_ZONE_LABEL,
    HEADLESS_LABEL,
    HOSTNAME_LABEL,
    MANAGED_BY_LABEL,
    MIRRORING_CONTROLLER,
    PROXY_NAME_LABEL,
    REGION_LABEL,
    SERVICE_NAME_LABEL,
    SKIP_MIRROR_LABEL,
    ZONE_LABEL,
    ZONE_WEIGHTS_ANNOTATION,
)
from keepclose.model.zone_weights import ZoneWeights, parse_zone_weights, render_zone_weights

KEPT_KEYS: Final = frozenset(
    {
        ZONE_LABEL,
        REGION_LABEL,
        HOSTNAME_LABEL,
        SERVICE_NAME_LABEL,
        MANAGED_BY_LABEL,
        SKIP_MIRROR_LABEL,
        HEADLESS_LABEL,
        PROXY_NAME_LABEL,
        FOR_ZONE_LABEL,
        FOR_REGION_LABEL,
        *EXCLUDED_NODE_LABELS,
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "kubernetes.io/metadata.name",
        "node.kubernetes.io/instance-type",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/unschedulable",
        "app.kubernetes.io/component",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/name",
        "app.kubernetes.io/part-of",
        "app.kubernetes.io/version",
        "apps.kubernetes.io/pod-index",
        "statefulset.kubernetes.io/pod-name",
        "controller-revision-hash",
        "pod-template-generation",
        "pod-template-hash",
        "*",
    }
)
"""Keys of labels and taints that Kubernetes defines; "*" is the last of the topology keys."""
KEPT_WORDS: Final = frozenset(
    {
        "",
        "None",
        "default",
        "kube-node-lease",
        "kube-public",
        "kube-system",
        "kubernetes",
        "default-scheduler",
        "true",
        "false",
        "linux",
        "windows",
        "amd64",
        "arm64",
        ENDPOINTSLICE_CONTROLLER,
        MIRRORING_CONTROLLER,
    }
)
"""Names and values that Kubernetes defines."""
_HASH_LETTERS: Final = 8
_OWN_VALUE: Final = re.compile(r"(keepclose\.dev|kubernetes\.io)/[A-Za-z0-9]{1,32}").fullmatch
_PLAIN_WORD: Final = re.compile(r"[A-Za-z]{1,64}").fullmatch
_QUANTITY: Final = re.compile(
    r"[+-]?[0-9]{1,24}(\.[0-9]{0,24})?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3}|%)?"
).fullmatch
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
).fullmatch
_VERSION: Final = re.compile(r"v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?").fullmatch
_RELEASE: Final = re.compile(r"v[0-9]{1,4}(\.[0-9]{1,4}){0,2}").match
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?%?").fullmatch
_LABEL_MAPS: Final = frozenset({"labels", "matchLabels", "nodeSelector", "deprecatedTopology"})
_KEY_LISTS: Final = frozenset({"matchLabelKeys", "topologyKeys"})
_WORDS: Final = frozenset(
    {
        "name",
        "namespace",
        "namespaces",
        "nodeName",
        "hostname",
        "subdomain",
        "serviceName",
        "zone",
        "externalName",
        "loadBalancerClass",
        "schedulerName",
    }
)
KEPT_PORTS: Final = frozenset(
    {
        "admin",
        "api",
        "dns",
        "dns-tcp",
        "grpc",
        "health",
        "healthz",
        "http",
        "http2",
        "https",
        "main",
        "metrics",
        "tcp",
        "tls",
        "udp",
        "web",
        "webhook",
        "www",
    }
)
"""Names of ports that say what a port is for, and not whose it is."""
KEPT_PROTOCOLS: Final = frozenset(
    {"grpc", "grpc-web", "h2c", "http", "http2", "https", "redis", "tcp", "tls", "udp", "ws", "wss"}
)
_FAMILIES: Final = ("IPv4", "IPv6")
_GROUPS: Final = frozenset({"", "apps", "autoscaling", "batch", "policy"})
_VERSIONS: Final = frozenset({"kubeletVersion", "kubeProxyVersion"})
_PLACES: Final = frozenset(
    {
        "addresses",
        "address",
        "ip",
        "podIP",
        "hostIP",
        "clusterIP",
        "clusterIPs",
        "externalIPs",
        "loadBalancerIP",
    }
)
_RANGES: Final = frozenset({"podCIDR", "podCIDRs", "loadBalancerSourceRanges"})


class Anonymizer:
    """Replaces the names and addresses of the objects that it was made from."""

    def __init__(self, objects: Iterable[JsonObject], *, salt: bytes) -> None:
        """Take the objects whose names and addresses are to be replaced."""
        self._salt = salt
        self.words: dict[str, str] = {}
        """The token of each name."""
        self.addresses: dict[str, str] = {}
        words: set[str] = set()
        addresses: set[str] = set()
        collector = _Replacer(
            partial(_collect, words), partial(_collect, addresses), self._range, self._uid
        )
        for obj in objects:
            collector.replace_object(obj)
        ranked = sorted(words)
        digits = len(f"{len(ranked):x}")
        for rank, word in enumerate(ranked):
            self.words[word] = f"x{rank:0{digits}x}-{self._digest(word)}"
        for family in (4, 6):
            members = [text for text in addresses if ipaddress.ip_address(text).version == family]
            for rank, text in enumerate(sorted(members)):
                self.addresses[text] = _address_of(family, rank)
        self._replacer = _Replacer(
            self.words.__getitem__, self.addresses.__getitem__, self._range, self._uid
        )

    def replace(self, obj: JsonObject) -> JsonObject:
        """Return one of the objects with tokens in place of its names and addresses."""
        return self._replacer.replace_object(obj)

    def _hash(self, text: str) -> bytes:
        return hmac.digest(self._salt, text.encode("utf-8", "surrogatepass"), hashlib.sha256)

    def _digest(self, word: str) -> str:
        return b32encode(self._hash(word)).decode().lower()[:_HASH_LETTERS]

    def _uid(self, uid: str) -> str:
        digits = self._hash(uid).hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))

    def _range(self, text: str) -> str:
        """Return a network of the same family and size."""
        try:
            network = ipaddress.ip_network(text.strip(), strict=False)
        except ValueError:
            return ""
        if network.prefixlen == 0:
            return str(network)
        number = int.from_bytes(self._hash(str(network)))
        other: ipaddress.IPv4Network | ipaddress.IPv6Network
        if network.version == 4:
            other = ipaddress.IPv4Network((number % 2**24 + (10 << 24), network.prefixlen), False)
        else:
            other = ipaddress.IPv6Network(
                (number % 2**120 + (0xFD << 120), network.prefixlen), False
            )
        return str(other)


def _collect(texts: set[str], text: str) -> str:
    texts.add(text)
    return text


def _address_of(family: int, rank: int) -> str:
    """Return an address by its rank; all of a family have the same length, so texts sort alike."""
    if family == 4:
        # NB: each part has three digits, from 100 to 249.
        rest, last = divmod(rank, 150)
        second, third = divmod(rest, 150)
        return f"10.{100 + second}.{100 + third}.{100 + last}"
    high, low = divmod(rank, 0xE000)
    return f"fd00::{0x1000 + high:x}:{0x1000 + low:x}"


class _Replacer:
    """Walks an object and replaces each name and address by what the given functions return."""

    def __init__(
        self,
        word: Callable[[str], str],
        address: Callable[[str], str],
        network: Callable[[str], str],
        uid: Callable[[str], str],
    ) -> None:
        self._replace_word, self._replace_address = word, address
        self._replace_range, self._replace_uid = network, uid

    def replace_object(self, obj: JsonObject) -> JsonObject:
        """Return a top-level object with its names and addresses replaced."""
        if obj.get("kind") == ExtraKind.ACKNOWLEDGEMENTS.value:
            return self._acknowledgement(obj)
        return {
            field: value if field in ("apiVersion", "kind") else self._value(field, value)
            for field, value in obj.items()
        }

    def _value(self, field: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._map(field, value)
        if isinstance(value, list):
            if field == "ports":
                return [self._port(item) for item in value]
            return [self._value(field, item) for item in value]
        return self._text(field, value) if isinstance(value, str) else value

    def _map(self, field: str, value: Mapping[str, Any]) -> JsonObject:
        if field in _LABEL_MAPS or (field == "selector" and _is_label_map(value)):
            return {self._key(key): self._label_value(text) for key, text in value.items()}
        if field == "annotations":
            return {key: self._annotation(key, text) for key, text in value.items()}
        if field in ("matchExpressions", "matchFields"):
            return self._expression(field, value)
        if field in ("taints", "tolerations"):
            return {
                name: self._key(text)
                if name == "key"
                else self._label_value(text)
                if name == "value"
                else self._value(name, text)
                for name, text in value.items()
            }
        if field in ("ownerReferences", "scaleTargetRef"):
            return self._reference(value)
        return {
            name: self._value(name, part) for name, part in value.items() if name != "generateName"
        }

    def _text(self, field: str, text: str) -> str:
        if field in _WORDS:
            return self._word(text)
        if field in _PLACES:
            return self._place(text)
        if field in _RANGES:
            return self._replace_range(text)
        if field in _KEY_LISTS or field == "topologyKey":
            return self._key(text)
        if field == "uid":
            return self._replace_uid(text) if text else text
        if field in ("type", "conditionType"):
            return text if _PLAIN_WORD(text) else self._word(text)
        if field == "trafficDistribution":
            return self._value_word(text)
        if field == "appProtocol":
            is_known = text in KEPT_PROTOCOLS or _OWN_VALUE(text)
            return text if is_known else self._foreign_value(text)
        if field in _VERSIONS:
            # NB: what follows the release names the vendor or a private build.
            return release[0] if (release := _RELEASE(text)) else ""
        return text if _is_of_api(field, text) else self._word(text)

    def _port(self, port: Any) -> Any:
        """Return a port, whose name stays if it is a usual one."""
        if not isinstance(port, Mapping):
            return port
        return {
            name: self._port_name(value)
            if name in ("name", "targetPort") and isinstance(value, str)
            else self._value(name, value)
            for name, value in port.items()
        }

    def _port_name(self, name: str) -> str:
        return name if name in KEPT_PORTS or name.isdecimal() else self._word(name)

    def _reference(self, value: Mapping[str, Any]) -> JsonObject:
        """Return a reference whose group and kind, if not of Kubernetes, are tokens."""
        answer = {name: self._value(name, part) for name, part in value.items()}
        group, _, version = str(value.get("apiVersion", "")).rpartition("/")
        kind = str(value.get("kind", ""))
        is_known = group in _GROUPS or group.endswith(".k8s.io")
        if "apiVersion" in value:
            version = version if _VERSION(version) else "v1"
            answer["apiVersion"] = "/".join(
                filter(None, (group if is_known else self._word(group), version))
            )
        if "kind" in value:
            answer["kind"] = kind if is_known and _PLAIN_WORD(kind) else self._word(kind)
        return answer

    def _expression(self, field: str, value: Mapping[str, Any]) -> JsonObject:
        answer = {name: self._value(name, part) for name, part in value.items() if name != "values"}
        is_number = value.get("operator") in ("Gt", "Lt")
        if isinstance(values := value.get("values"), list):
            answer["values"] = [
                text if is_number and _is_integer(text) else self._label_value(text)
                for text in values
            ]
        if field == "matchExpressions" and isinstance(key := value.get("key"), str):
            answer["key"] = self._key(key)
        return answer

    def _annotation(self, key: str, text: str) -> str:
        if key in NUMBER_ANNOTATIONS:
            return text
        if key != ZONE_WEIGHTS_ANNOTATION:
            return self._value_word(text)
        written = parse_zone_weights(text)
        if written.problem:
            return "{}"
        weights = {
            self._word(source): {self._word(zone): weight for zone, weight in row.items()}
            for source, row in written.weights.items()
        }
        return render_zone_weights(ZoneWeights(weights=weights, hints=written.hints))

    def _value_word(self, text: str) -> str:
        """Return a value of the API, of keepclose, or a number as it is; any other as a token."""
        if _OWN_VALUE(text) or _PLAIN_WORD(text) or _NUMBER(text) or _is_numbers(text):
            return text
        return self._foreign_value(text)

    def _foreign_value(self, text: str) -> str:
        domain, slash, name = text.partition("/")
        return f"{self._word(domain)}.example/{self._word(name)}" if slash else self._word(text)

    def _acknowledgement(self, obj: JsonObject) -> JsonObject:
        acknowledgement = parse_acknowledgement(msgspec.convert(obj, ConfigMap))
        if acknowledgement is None:
            return obj
        exceptions = {
            NamespacedName(self._word(key.namespace), self._word(key.name)): reason
            for key, reason in acknowledgement.exceptions.items()
        }
        answer = replace(
            acknowledgement, node=self._word(acknowledgement.node), exceptions=exceptions
        )
        plain: JsonObject = msgspec.to_builtins(render_acknowledgement(answer))
        return plain

    def _key(self, key: str) -> str:
        return key if key in KEPT_KEYS else self._word(key)

    def _label_value(self, text: Any) -> Any:
        return self._word(text) if isinstance(text, str) else text

    def _word(self, text: str) -> str:
        return text if text in KEPT_WORDS else self._replace_word(text)

    def _place(self, text: str) -> str:
        """Return an address, or a name in the place of one."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return self._word(text)
        if address.is_loopback or address.is_unspecified:
            return text
        return self._replace_address(str(address))


def _is_integer(text: Any) -> bool:
    return isinstance(text, str) and text.removeprefix("-").isdecimal()


def _is_label_map(value: Mapping[str, Any]) -> bool:
    return all(isinstance(text, str) for text in value.values())


def _is_of_api(field: str, text: str) -> bool:
    """Return whether a text is a word, a quantity or a time of the API, and no name.

    NB: an API server checks these fields, but a file may have anything there.
    """
    if field == "apiVersion":
        # Those of references, which are replaced together with their kinds.
        return True
    if field == "key":
        return text == "metadata.name"
    is_word = not text or _PLAIN_WORD(text) or text in _FAMILIES
    return bool(is_word or _QUANTITY(text) or _TIME(text))


def _is_numbers(text: str) -> bool:
    """Return whether a text is a JSON list of numbers, as weights of endpoints are."""
    try:
        msgspec.json.decode(text, type=list[int])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True

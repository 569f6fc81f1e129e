"""Parses paths, verbs and query options of requests.

Paths are those of the Kubernetes API: `/api/v1/...` for the core group, `/apis/<group>/<version>`
for the others, with the namespace before the resource. Options are checked strictly where a wrong
one would mislead, with the errors of kube-apiserver; unknown options are ignored, as it ignores
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from keepclose.apiserver.registry.metadata import manager_causes
from keepclose.apiserver.resources import (
    BINDINGS,
    BY_PATH,
    SUBRESOURCE_VERBS,
    USUAL_SUBRESOURCE_VERBS,
    Resource,
)
from keepclose.apiserver.status_errors import StatusError, bad_request, invalid_object
from keepclose.model.field_errors import FieldError, forbidden_field, not_supported
from keepclose.model.json_values import parse_int64
from keepclose.model.selectors import (
    FieldSelector,
    LabelSelector,
    SelectorRejected,
    parse_field_selector,
    parse_label_selector,
)

READING: Final = frozenset({"get", "list", "watch"})
EXACT: Final = "Exact"
NOT_OLDER_THAN: Final = "NotOlderThan"
MAX_SELECTOR_VALUES: Final = 2000
"""The limit of conditions and values of a selector; parsing them takes milliseconds of the loop."""
_COLLECTION_VERBS: Final = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS: Final = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ALL_LABELS: Final = LabelSelector()
_ALL_FIELDS: Final = FieldSelector()
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True", ""})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_MAX_OPTIONS: Final = 200
_MAX_VERSION: Final = 2**64 - 1

Query = Mapping[str, str]


class RequestTarget(NamedTuple):
    """The object or the collection that a path names."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def is_collection(self) -> bool:
        """Whether the path names a collection rather than one object."""
        return not self.name


def parse_path(path: str) -> RequestTarget | None:
    """Return the target of a path, or None for a path without a resource."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and (group, version, rest[2]) in BY_PATH:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0]))
    if resource is None or len(rest) > 3 or "" in rest:
        return None
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        return None
    if namespace and not resource.namespaced:
        return None
    if name and resource.namespaced and not namespace:
        return None
    # A Binding cannot be read, so neither one object nor all namespaces have a path.
    if resource is BINDINGS and (name or not namespace):
        return None
    return RequestTarget(resource, namespace, name, subresource)


def verb_of(method: str, target: RequestTarget, *, watch: bool) -> str | None:
    """Return the Kubernetes verb of a request, or None if the resource does not support it."""
    if target.is_collection:
        verb = "watch" if watch and method == "GET" else _COLLECTION_VERBS.get(method)
        # All namespaces together can only be read.
        if target.resource.namespaced and not target.namespace and verb not in READING:
            return None
    else:
        verb = _OBJECT_VERBS.get(method)
    if target.subresource:
        # A POST to a subresource is a create.
        verb = "create" if method == "POST" else verb
        allowed = SUBRESOURCE_VERBS.get(target.subresource, USUAL_SUBRESOURCE_VERBS)
        return verb if verb in allowed else None
    return verb if verb in target.resource.verbs else None


class ListOptions(msgspec.Struct, frozen=True):
    """The options of a list or a watch."""

    labels: LabelSelector = _ALL_LABELS
    fields: FieldSelector = _ALL_FIELDS
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    match: str = ""
    bookmarks: bool = False
    initial_events: bool = False
    timeout: float | None = None

    @property
    def selects_all(self) -> bool:
        """Whether the selectors match all objects."""
        return not self.labels.requirements and not self.fields.requirements


class WriteOptions(msgspec.Struct, frozen=True):
    """The options of a create, an update or a patch."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = ""
    force: bool = False


_NO_OPTIONS: Final = ListOptions()
_PLAIN_WRITE: Final = WriteOptions()


def parse_query(text: str) -> dict[str, str]:
    """Return the options of a query string; of repeated ones the first, as in kube-apiserver."""
    if not text:
        return {}
    options: dict[str, str] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_OPTIONS)
    except ValueError:
        raise bad_request(f"a query may have {_MAX_OPTIONS} options at most") from None
    for name, value in pairs:
        options.setdefault(name, value)
    return options


def wants_watch(query: Query) -> bool:
    """Return whether a list request is a watch."""
    return "watch" in query and query["watch"] in _TRUE


def read_list_options(query: Query) -> ListOptions:
    """Return the options of a list or a watch."""
    if not query:
        return _NO_OPTIONS
    for name in ("labelSelector", "fieldSelector"):
        if query.get(name, "").count(",") >= MAX_SELECTOR_VALUES:
            raise bad_request(f"{name}: may have {MAX_SELECTOR_VALUES} values at most")
    labels = parse_label_selector(query.get("labelSelector", ""))
    if isinstance(labels, SelectorRejected):
        raise bad_request(f"unable to parse requirement: {labels.message}")
    fields = parse_field_selector(query.get("fieldSelector", ""))
    if isinstance(fields, SelectorRejected):
        raise bad_request(f"invalid selector: {fields.message}")
    options = ListOptions(
        labels=labels,
        fields=fields,
        limit=_number(query, "limit"),
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
        bookmarks=_flag(query, "allowWatchBookmarks"),
        initial_events=_flag(query, "sendInitialEvents"),
        timeout=_number(query, "timeoutSeconds") if "timeoutSeconds" in query else None,
    )
    causes = _list_causes(options, query)
    if causes:
        raise invalid_object("ListOptions", "meta.k8s.io", "", causes)
    return options


def read_write_options(query: Query, *, patch: str = "") -> WriteOptions:
    """Return the options of a create, an update or a patch of the given type."""
    if not query:
        return _PLAIN_WRITE
    dry_run = query.get("dryRun", "")
    validation = query.get("fieldValidation", "")
    manager = query.get("fieldManager", "")
    causes: list[FieldError] = []
    if dry_run not in ("", "All"):
        causes.append(not_supported("dryRun", [dry_run], ["All"]))
    if validation not in ("", "Ignore", "Warn", "Strict"):
        causes.append(not_supported("fieldValidation", validation, ["Ignore", "Warn", "Strict"]))
    causes += manager_causes("fieldManager", manager)
    force = "force" in query
    if force and patch and patch != "application/apply-patch+yaml":
        causes.append(forbidden_field("force", "may not be specified for non-apply patch"))
    if causes:
        kind = "PatchOptions" if patch else "CreateOptions"
        raise invalid_object(kind, "meta.k8s.io", "", causes)
    return WriteOptions(
        dry_run=dry_run == "All",
        field_manager=manager,
        field_validation=validation,
        force=_flag(query, "force"),
    )


def read_integer(text: str) -> int:
    """Return an integer of 64 bits, parsed as in Go. Raises StatusError with the words of Go."""
    number = parse_int64(text)
    if number is None:
        is_number = text.isascii() and text.lstrip("+-").isdecimal()
        why = "value out of range" if is_number else "invalid syntax"
        raise bad_request(f'strconv.ParseInt: parsing "{text}": {why}')
    return number


def _number(query: Query, name: str) -> int:
    text = query.get(name)
    return 0 if text is None else max(0, read_integer(text))


def _flag(query: Query, name: str) -> bool:
    text = query.get(name)
    if text is None or text in _FALSE:
        return False
    if text in _TRUE:
        return True
    raise bad_request(f'strconv.ParseBool: parsing "{text}": invalid syntax')


def _list_causes(options: ListOptions, query: Query) -> list[FieldError]:
    causes: list[FieldError] = []
    watch = wants_watch(query)
    if watch and options.initial_events:
        if options.match != NOT_OLDER_THAN:
            text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            causes.append(forbidden_field("resourceVersionMatch", text))
        return causes
    if "sendInitialEvents" in query and not watch:
        causes.append(
            forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list")
        )
    if not options.match:
        return causes
    if watch:
        text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.append(forbidden_field("resourceVersionMatch", text))
    elif not options.resource_version:
        text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        causes.append(forbidden_field("resourceVersionMatch", text))
    elif options.continue_token:
        text = "resourceVersionMatch is forbidden when continue is provided"
        causes.append(forbidden_field("resourceVersionMatch", text))
    elif options.match not in (EXACT, NOT_OLDER_THAN):
        supported = [EXACT, NOT_OLDER_THAN, ""]
        causes.append(not_supported("resourceVersionMatch", options.match, supported))
    elif options.match == EXACT and options.resource_version == "0":
        text = 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
        causes.append(forbidden_field("resourceVersionMatch", text))
    return causes


def check_version(text: str) -> int:
    """Return a resourceVersion as a number. Raises StatusError for an invalid one."""
    if not text.isascii() or not text.isdecimal():
        raise _version_error(text, "invalid syntax")
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(_MAX_VERSION)) or int(digits) > _MAX_VERSION:
        raise _version_error(text, "value out of range")
    return int(digits)


def _version_error(text: str, why: str) -> StatusError:
    return bad_request(
        f'invalid resource version: resourceVersion: Invalid value: "{text}": '
        f'strconv.ParseUint: parsing "{text}": {why}'
    )

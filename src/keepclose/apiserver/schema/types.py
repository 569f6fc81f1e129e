"""The shape of a type of the Kubernetes API, as validation, patches and OpenAPI all read it.

One description serves all of them: unknown fields, wrong types, merge keys of strategic patches,
list and map kinds of server-side apply, and the documents that clients download.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Form(StrEnum):
    """What kind of JSON value a type allows."""

    OBJECT = "object"  # named fields
    MAP = "map"  # any keys, values of one type
    LIST = "list"
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    QUANTITY = "quantity"  # "100m", or a number
    INT_OR_STRING = "int-or-string"
    TIME = "time"  # RFC 3339
    ANY = "any"  # not looked into


class ListKind(StrEnum):
    """How server-side apply tells the items of a list apart."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


class Type(msgspec.Struct, frozen=True):
    """One type, with all types below it."""

    form: Form
    # The published name of an object type, such as io.k8s.api.core.v1.ServiceSpec.
    name: str = ""
    fields: dict[str, Type] = {}
    required: tuple[str, ...] = ()
    # What a list or a map holds.
    items: Type | None = None
    list_kind: ListKind = ListKind.ATOMIC
    list_keys: tuple[str, ...] = ()
    # A map, or an object, that is applied as a whole.
    atomic: bool = False
    # How a strategic merge patch treats the field: "merge", "replace", "retainKeys" (several may
    # stand together), and the field that tells items apart.
    patch_strategies: tuple[str, ...] = ()
    merge_key: str = ""
    # int32, int64, double, byte, date-time ... as published.
    format: str = ""
    description: str = ""
    # Go's name of the type and of the embedded struct that the field comes with: both appear in
    # the messages of a kube-apiserver.
    go_type: str = ""
    embedded: str = ""
    # What an absent key of a list item stands for when items are told apart.
    default: str = ""
    # Whether an empty value ("", 0, false, [] or {}) is stored as an absent one.
    omits_empty: bool = False


ANY: Final = Type(Form.ANY)

"""Metadata is refused in the words of the API server."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.meta import ObjectMeta, OwnerReference
from keepclose.model.metadata_validation import (
    LABEL_SENTENCE,
    LABEL_VALUE_SENTENCE,
    SUBDOMAIN_SENTENCE,
    dns1123_subdomain,
    validate_annotations,
    validate_labels,
    validate_metadata,
    validate_metadata_update,
)

GOOD = ObjectMeta(name="web", namespace="default")
OWNER = OwnerReference(api_version="v1", kind="Service", name="web", uid="u1", controller=True)


@pytest.mark.parametrize(
    ("meta", "want"),
    [
        pytest.param(GOOD, [], id="name and namespace are enough"),
        pytest.param(
            ObjectMeta(generate_name="web-", namespace="default"), [], id="a prefix stands in"
        ),
        pytest.param(
            ObjectMeta(generate_name="Web-", namespace="default"),
            [f'metadata.generateName: Invalid value: "Web-": {SUBDOMAIN_SENTENCE}'],
            id="bad prefix",
        ),
        pytest.param(
            ObjectMeta(namespace="default"),
            ["metadata.name: Required value: name or generateName is required"],
            id="no name",
        ),
        pytest.param(
            replace(GOOD, name="Web"),
            [f'metadata.name: Invalid value: "Web": {SUBDOMAIN_SENTENCE}'],
            id="bad name",
        ),
        pytest.param(
            replace(GOOD, namespace=""), ["metadata.namespace: Required value"], id="no namespace"
        ),
        pytest.param(
            replace(GOOD, namespace="a.b"),
            ['metadata.namespace: Invalid value: "a.b": must not contain dots'],
            id="bad namespace",
        ),
        pytest.param(
            replace(GOOD, generation=-1),
            ["metadata.generation: Invalid value: -1: must be greater than or equal to 0"],
            id="negative generation",
        ),
        pytest.param(
            ObjectMeta(
                generate_name="-",
                name="-",
                namespace="_",
                generation=-2,
                labels={"a": "-"},
                annotations={"b": "x" * 262144},
                owner_references=(OwnerReference(api_version="v1", kind="K", name="n"),),
            ),
            [
                f'metadata.generateName: Invalid value: "-": {SUBDOMAIN_SENTENCE}',
                f'metadata.name: Invalid value: "-": {SUBDOMAIN_SENTENCE}',
                f'metadata.namespace: Invalid value: "_": {LABEL_SENTENCE}',
                "metadata.generation: Invalid value: -2: must be greater than or equal to 0",
                f'metadata.labels: Invalid value: "-": {LABEL_VALUE_SENTENCE}',
                "metadata.annotations: Too long: may not be more than 262144 bytes",
                'metadata.ownerReferences.uid: Invalid value: "": must not be empty',
            ],
            id="everything at once, in order",
        ),
    ],
)
def test_metadata(meta: ObjectMeta, want: list[str]) -> None:
    """The metadata of a namespaced object is checked field by field."""
    causes = validate_metadata(meta, namespaced=True, name_check=dns1123_subdomain)
    assert [str(cause) for cause in causes] == want


def test_metadata_without_namespace() -> None:
    """An object outside namespaces may not name one; the path can be chosen."""
    good = ObjectMeta(name="n1")
    assert validate_metadata(good, namespaced=False, name_check=dns1123_subdomain) == []
    causes = validate_metadata(
        replace(good, namespace="a"), namespaced=False, name_check=dns1123_subdomain, field="m"
    )
    assert [str(cause) for cause in causes] == ["m.namespace: Forbidden: not allowed on this type"]


def test_the_name_check_decides() -> None:
    """Which names are good is up to the kind."""
    causes = validate_metadata(GOOD, namespaced=True, name_check=lambda _: ["one", "two"])
    assert [str(cause) for cause in causes] == [
        'metadata.name: Invalid value: "web": one',
        'metadata.name: Invalid value: "web": two',
    ]


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({"app": "web", "example.com/tier": ""}, [], id="good ones"),
        pytest.param(
            {"z": "v" * 64, "/a": "b"},
            [
                'f: Invalid value: "/a": prefix part must be non-empty',
                f'f: Invalid value: "{"v" * 64}": must be no more than 63 bytes',
            ],
            id="in the order of the keys",
        ),
    ],
)
def test_labels(labels: dict[str, str], want: list[str]) -> None:
    """Keys are qualified names and values are label values."""
    assert [str(cause) for cause in validate_labels(labels, "f")] == want


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({"Example.COM/Note": "any \n text"}, [], id="case does not matter"),
        pytest.param(
            {"/a": ""}, ['f: Invalid value: "/a": prefix part must be non-empty'], id="bad key"
        ),
        pytest.param({"a": "x" * 262143}, [], id="just small enough"),
        pytest.param(
            {"a": "\u00e4" * 131072},
            ["f: Too long: may not be more than 262144 bytes"],
            id="size is counted in bytes",
        ),
    ],
)
def test_annotations(annotations: dict[str, str], want: list[str]) -> None:
    """Annotations have good keys and at most 256 KiB in all."""
    assert [str(cause) for cause in validate_annotations(annotations, "f")] == want


@pytest.mark.parametrize(
    ("owners", "want"),
    [
        pytest.param((OWNER, replace(OWNER, controller=None, name="b")), [], id="one controller"),
        pytest.param(
            (OwnerReference(),),
            [
                'metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty',
                'metadata.ownerReferences.kind: Invalid value: "": must not be empty',
                'metadata.ownerReferences.name: Invalid value: "": must not be empty',
                'metadata.ownerReferences.uid: Invalid value: "": must not be empty',
            ],
            id="nothing said",
        ),
        pytest.param(
            (replace(OWNER, api_version="apps/"),),
            [
                (
                    'metadata.ownerReferences.apiVersion: Invalid value: "apps/": '
                    "version must not be empty"
                )
            ],
            id="group alone",
        ),
        pytest.param(
            (replace(OWNER, api_version="a/b/c"),),
            [
                (
                    'metadata.ownerReferences.apiVersion: Invalid value: "a/b/c": '
                    "version must not be empty"
                )
            ],
            id="two slashes",
        ),
        pytest.param(
            (replace(OWNER, kind="Event", controller=None),),
            [
                (
                    'metadata.ownerReferences: Invalid value: {"apiVersion":"v1","kind":"Event",'
                    '"name":"web","uid":"u1"}: /v1, Kind=Event is disallowed from being an owner'
                )
            ],
            id="an event owns nothing",
        ),
        pytest.param(
            (replace(OWNER, api_version="events.k8s.io/v1", kind="Event"),),
            [],
            id="an event of another group may",
        ),
        pytest.param(
            (OWNER, replace(OWNER, name="b")),
            [
                (
                    'metadata.ownerReferences: Invalid value: [{"apiVersion":"v1","kind":"Service",'
                    '"name":"web","uid":"u1","controller":true},{"apiVersion":"v1",'
                    '"kind":"Service","name":"b","uid":"u1","controller":true}]: '
                    "Only one reference can have Controller set to true. "
                    'Found "true" in references for Service/web and Service/b'
                )
            ],
            id="two controllers",
        ),
    ],
)
def test_owners(owners: tuple[OwnerReference, ...], want: list[str]) -> None:
    """Owner references are complete and name one controller at most."""
    meta = replace(GOOD, owner_references=owners)
    causes = validate_metadata(meta, namespaced=True, name_check=dns1123_subdomain)
    assert [str(cause) for cause in causes] == want


STORED = ObjectMeta(
    name="web",
    namespace="default",
    uid="u1",
    generation=3,
    creation_timestamp="2026-01-01T00:00:00Z",
    deletion_timestamp="2026-01-02T00:00:00Z",
)


@pytest.mark.parametrize(
    ("new", "want"),
    [
        pytest.param(STORED, [], id="unchanged"),
        pytest.param(
            ObjectMeta(name="web", namespace="default", generation=3),
            [],
            id="what the system sets may be left out",
        ),
        pytest.param(
            replace(STORED, labels={"a": "b"}, annotations={"a": "b"}, generation=4),
            [],
            id="labels, annotations and generation may change",
        ),
        pytest.param(
            replace(STORED, generation=2),
            ["metadata.generation: Invalid value: 2: must not be decremented"],
            id="generation goes back",
        ),
        pytest.param(
            replace(
                STORED,
                name="other",
                namespace="",
                uid="u2",
                creation_timestamp="2026-01-01T00:00:01Z",
                deletion_timestamp="2026-01-02T00:00:01Z",
            ),
            [
                'metadata.name: Invalid value: "other": field is immutable',
                'metadata.namespace: Invalid value: "": field is immutable',
                'metadata.uid: Invalid value: "u2": field is immutable',
                (
                    "metadata.creationTimestamp: Invalid value: "
                    '"2026-01-01T00:00:01Z": field is immutable'
                ),
                (
                    "metadata.deletionTimestamp: Invalid value: "
                    '"2026-01-02T00:00:01Z": field is immutable'
                ),
            ],
            id="everything that must stay",
        ),
    ],
)
def test_metadata_update(new: ObjectMeta, want: list[str]) -> None:
    """An update keeps the identity of the object."""
    assert [str(cause) for cause in validate_metadata_update(new, STORED)] == want


def test_deletion_cannot_be_begun_by_an_update() -> None:
    """Setting a deletion timestamp is no update; the path can be chosen."""
    new = replace(GOOD, deletion_timestamp="2026-01-02T00:00:00Z")
    (cause,) = validate_metadata_update(new, GOOD, "m")
    assert (
        str(cause)
        == 'm.deletionTimestamp: Invalid value: "2026-01-02T00:00:00Z": field is immutable'
    )


TEXTS = st.text(max_size=8)
METAS = st.builds(
    ObjectMeta,
    name=TEXTS,
    generate_name=TEXTS,
    namespace=TEXTS,
    uid=TEXTS,
    generation=st.integers(-5, 5),
    deletion_timestamp=st.none() | TEXTS,
    labels=st.dictionaries(TEXTS, TEXTS, max_size=3),
    annotations=st.dictionaries(TEXTS, TEXTS, max_size=3),
    owner_references=st.lists(
        st.builds(
            OwnerReference,
            api_version=TEXTS,
            kind=TEXTS,
            name=TEXTS,
            uid=TEXTS,
            controller=st.none() | st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
)


@settings(deadline=None, max_examples=200)
@given(new=METAS, old=METAS, namespaced=st.booleans())
def test_no_metadata_raises(new: ObjectMeta, old: ObjectMeta, *, namespaced: bool) -> None:
    """Any metadata is answered with causes that can be shown and sent."""
    causes = validate_metadata(new, namespaced=namespaced, name_check=dns1123_subdomain)
    causes += validate_metadata_update(new, old)
    assert all(str(cause).startswith("metadata.") for cause in causes)
    assert msgspec.json.encode(causes).startswith(b"[")
    assert validate_metadata_update(new, new) == []

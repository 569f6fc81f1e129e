"""Writing namespaces."""

from __future__ import annotations

from copy import deepcopy

import pytest

from support.kinds import NOW, Kinds, raw

NOT_A_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


def test_a_namespace_is_active_and_carries_its_name(kinds: Kinds) -> None:
    """A new namespace is held by its contents, whatever the client says."""
    new = raw(
        "Namespace",
        metadata={"labels": {"kubernetes.io/metadata.name": "foo", "a": "b"}},
        spec={"finalizers": ["foo.com/x"]},
        status={"phase": "Terminating"},
    )
    got = kinds.write(new)
    assert got.causes == []
    assert got.object["metadata"]["labels"] == {"kubernetes.io/metadata.name": "one", "a": "b"}
    assert got.object["spec"] == {"finalizers": ["foo.com/x", "kubernetes"]}
    assert got.object["status"] == {"phase": "Active"}


def test_only_finalizing_changes_what_holds_a_namespace(kinds: Kinds) -> None:
    """Spec and status have a subresource each."""
    old = kinds.write(raw("Namespace")).object
    new = deepcopy(old)
    new["spec"] = {"finalizers": []}
    new["status"] = {"phase": "Terminating"}
    assert kinds.write(new, old).object == old
    finalized = kinds.write(new, old, subresource="finalize").object
    assert (finalized["spec"], finalized["status"]) == ({}, {"phase": "Active"})
    got = kinds.write(new, old, subresource="status")
    assert got.object["spec"] == {"finalizers": ["kubernetes"]}
    assert got.causes == [
        (
            "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if "
            "`deletionTimestamp`"
            " is empty"
        )
    ]
    old["metadata"]["deletionTimestamp"] = NOW
    assert kinds.write(new, old, subresource="status").causes == []
    new["status"] = {"phase": "Active"}
    assert kinds.write(new, old, subresource="status").causes == [
        (
            "status.Phase: Invalid value: \"Active\": may only be 'Terminating' if "
            "`deletionTimestamp` is not empty"
        )
    ]


def test_finalizers_of_a_namespace_have_a_domain(kinds: Kinds) -> None:
    """Only Kubernetes' own finalizers go without."""
    new = raw("Namespace", spec={"finalizers": ["a b", "q"]})
    alien = "name is neither a standard finalizer name nor is it fully qualified"
    assert kinds.write(new).causes == [
        f'spec.finalizers: Invalid value: "a b": {NOT_A_NAME}',
        f'spec.finalizers: Invalid value: "a b": {alien}',
        f'spec.finalizers: Invalid value: "q": {alien}',
    ]

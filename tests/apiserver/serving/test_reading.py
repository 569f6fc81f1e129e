"""Lists: selectors, pages, and versions of the past."""

from __future__ import annotations

import base64

import pytest

from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.serving.options import RequestTarget, parse_query, read_list_options
from keepclose.apiserver.serving.reading import Listed, get_entry, read_list
from keepclose.apiserver.status_errors import StatusError
from keepclose.apiserver.storage.store import Store

POD = BY_KIND["v1", "Pod"]


def _pod(name: str, namespace: str = "default", **labels: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels},
        "spec": {"nodeName": f"node-{name}"},
    }


@pytest.fixture
def store() -> Store:
    """Hold three pods in two namespaces."""
    made = Store.open(None)
    made.create("pods", _pod("b", app="web"))
    made.create("pods", _pod("a", app="api"))
    made.create("pods", _pod("c", namespace="other", app="web"))
    return made


def _list(store: Store, query: str = "", namespace: str = "") -> Listed:
    return read_list(store, RequestTarget(POD, namespace), read_list_options(parse_query(query)))


def _names(listed: Listed) -> list[str]:
    return [entry.name for entry in listed.entries]


@pytest.mark.parametrize(
    ("query", "namespace", "want"),
    [
        pytest.param("", "", ["a", "b", "c"], id="everything by namespace and name"),
        pytest.param("", "default", ["a", "b"], id="one namespace"),
        pytest.param("labelSelector=app%3Dweb", "", ["b", "c"], id="by label"),
        pytest.param("fieldSelector=metadata.name%3Da", "default", ["a"], id="by name"),
        pytest.param("fieldSelector=metadata.name%3Dx", "default", [], id="by an unknown name"),
        pytest.param("fieldSelector=metadata.name!%3Da", "", ["b", "c"], id="by another name"),
        pytest.param("fieldSelector=spec.nodeName%3Dnode-c", "", ["c"], id="by a field"),
        pytest.param(
            "fieldSelector=metadata.name%3Da&labelSelector=app%3Dweb",
            "default",
            [],
            id="both must hold",
        ),
    ],
)
def test_selection(store: Store, query: str, namespace: str, want: list[str]) -> None:
    """What is listed is what the selectors say, in order."""
    assert _names(_list(store, query, namespace)) == want


def test_an_unknown_field_is_refused(store: Store) -> None:
    """A field that cannot be selected by is named."""
    with pytest.raises(StatusError) as caught:
        _list(store, "fieldSelector=spec.color%3Dred")
    assert caught.value.code == 400
    assert caught.value.message.endswith("field label not supported: spec.color")


def test_pages_are_of_one_moment(store: Store) -> None:
    """The rest of a list is what it was when the list began, whatever happens in between."""
    first = _list(store, "limit=1")
    assert _names(first) == ["a"]
    assert first.metadata["remainingItemCount"] == 2
    store.create("pods", _pod("aa"))
    store.delete("pods", "default", "b")
    second = _list(store, f"limit=1&continue={first.metadata['continue']}")
    assert _names(second) == ["b"]
    assert second.metadata["resourceVersion"] == first.metadata["resourceVersion"]
    third = _list(store, f"limit=5&continue={second.metadata['continue']}")
    assert _names(third) == ["c"]
    assert "continue" not in third.metadata


def test_a_page_of_a_selection_does_not_count_the_rest(store: Store) -> None:
    """Where a selector thins the list out the number of the rest is not told."""
    page = _list(store, "limit=1&labelSelector=app%3Dweb")
    assert _names(page) == ["b"]
    assert "remainingItemCount" not in page.metadata


def test_a_token_that_is_too_old_gives_another_one(store: Store) -> None:
    """After compaction a client may go on with what is there now, if it wants."""
    first = _list(store, "limit=1")
    store.create("pods", _pod("bb"))
    store.compact()
    with pytest.raises(StatusError) as caught:
        _list(store, f"continue={first.metadata['continue']}")
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    token = caught.value.status()["metadata"]["continue"]
    assert _names(_list(store, f"continue={token}")) == ["b", "bb", "c"]


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("%%%", id="no base64"),
        pytest.param("e30", id="an empty object"),
        pytest.param(
            base64.urlsafe_b64encode(b'{"v":"v0","rv":1,"start":"a/b"}').decode(),
            id="another version of tokens",
        ),
        pytest.param(
            base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1","rv":0,"start":"a/b"}').decode(),
            id="no version",
        ),
    ],
)
def test_a_broken_token_is_refused(store: Store, token: str) -> None:
    """A token that we did not make is told so."""
    with pytest.raises(StatusError) as caught:
        read_list(store, RequestTarget(POD), read_list_options({"continue": token}))
    assert caught.value.code == 400
    assert caught.value.message.startswith("invalid continue token: continue key is not valid: ")


def test_versions(store: Store) -> None:
    """A list can be had as of an old version, and not of one that is still to come."""
    before = store.version
    store.delete("pods", "default", "a")
    assert _names(_list(store)) == ["b", "c"]
    exact = _list(store, f"resourceVersion={before}&resourceVersionMatch=Exact")
    assert _names(exact) == ["a", "b", "c"]
    assert exact.metadata["resourceVersion"] == str(before)
    assert _names(_list(store, f"resourceVersion={before}")) == ["b", "c"]
    assert _names(_list(store, "resourceVersion=0")) == ["b", "c"]
    with pytest.raises(StatusError) as caught:
        _list(store, f"resourceVersion={store.version + 1}")
    assert (caught.value.code, caught.value.retry_after) == (504, 1)
    with pytest.raises(StatusError) as caught:
        _list(store, "resourceVersion=abc")
    assert caught.value.code == 400
    store.compact()
    with pytest.raises(StatusError) as caught:
        _list(store, f"resourceVersion={before}&resourceVersionMatch=Exact")
    assert caught.value.code == 410


def test_one_object(store: Store) -> None:
    """A name finds its object, or a 404 that names it."""
    assert get_entry(store, RequestTarget(POD, "default", "a")).uid == "u-a"
    with pytest.raises(StatusError) as caught:
        get_entry(store, RequestTarget(POD, "default", "x"))
    assert caught.value.message == 'pods "x" not found'

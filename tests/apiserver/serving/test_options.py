"""Options of lists and writes."""

from __future__ import annotations

import pytest

from keepclose.apiserver.serving.options import (
    parse_query,
    read_list_options,
    read_write_options,
    wants_watch,
)
from keepclose.apiserver.status_errors import StatusError


def test_the_first_of_repeated_options_counts() -> None:
    """A client that says a thing twice means the first, and blanks are values."""
    assert parse_query("a=1&a=2&b=&c=%2Fx+y") == {"a": "1", "b": "", "c": "/x y"}


@pytest.mark.parametrize(
    ("text", "want"), [("watch=true", True), ("watch=1", True), ("watch", True), ("watch=0", False)]
)
def test_watch_may_be_said_in_several_ways(text: str, want: bool) -> None:
    """Clients write the flag as they like."""
    assert wants_watch(parse_query(text)) is want


def test_list_options_are_read() -> None:
    """Selectors, limit, version and flags come out typed."""
    options = read_list_options(
        parse_query(
            "labelSelector=app%3Dweb&fieldSelector=metadata.name%3Da&limit=5&resourceVersion=7"
            "&resourceVersionMatch=Exact&timeoutSeconds=9&allowWatchBookmarks=true"
        )
    )
    assert str(options.labels) == "app=web"
    assert str(options.fields) == "metadata.name=a"
    assert (options.limit, options.resource_version, options.match) == (5, "7", "Exact")
    assert (options.timeout, options.bookmarks) == (9, True)
    assert not options.selects_all
    assert read_list_options({}).selects_all


@pytest.mark.parametrize(
    ("text", "code", "want"),
    [
        pytest.param("limit=abc", 400, 'parsing "abc"', id="a limit that is no number"),
        pytest.param("labelSelector=a%20b%20c", 400, "label selector", id="a bad label selector"),
        pytest.param("fieldSelector=abc", 400, "field selector", id="a bad field selector"),
        pytest.param("allowWatchBookmarks=maybe", 400, "ParseBool", id="a flag that is none"),
        pytest.param(
            "resourceVersionMatch=Exact",
            422,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
            id="a match without a version",
        ),
        pytest.param(
            "resourceVersionMatch=Exact&resourceVersion=0",
            422,
            'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"',
            id="exactly any version",
        ),
        pytest.param(
            "resourceVersionMatch=Newer&resourceVersion=5",
            422,
            'Unsupported value: "Newer"',
            id="an unknown match",
        ),
        pytest.param(
            "resourceVersionMatch=Exact&resourceVersion=5&continue=x",
            422,
            "forbidden when continue is provided",
            id="a match with a token",
        ),
        pytest.param(
            "watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=5",
            422,
            "forbidden for watch unless sendInitialEvents is provided",
            id="a match with a plain watch",
        ),
        pytest.param(
            "watch=1&sendInitialEvents=true",
            422,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            id="initial events without a match",
        ),
        pytest.param(
            "sendInitialEvents=true",
            422,
            "sendInitialEvents is forbidden for list",
            id="initial events of a list",
        ),
    ],
)
def test_wrong_list_options_are_refused(text: str, code: int, want: str) -> None:
    """A wrong option is named, not ignored."""
    with pytest.raises(StatusError) as caught:
        read_list_options(parse_query(text))
    assert caught.value.code == code
    assert want in caught.value.message


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("dryRun=Some", "dryRun: Unsupported value", id="half a dry run"),
        pytest.param("fieldValidation=Loose", "fieldValidation: Unsupported", id="validation"),
        pytest.param("fieldManager=" + "x" * 129, "fieldManager: Too long", id="a long manager"),
        pytest.param("fieldManager=a%07", "invalid character U+0007 (at position 1)", id="a bell"),
        pytest.param("force=true", "may not be specified for non-apply patch", id="force"),
    ],
)
def test_wrong_write_options_are_refused(text: str, want: str) -> None:
    """A wrong option of a patch is named."""
    with pytest.raises(StatusError) as caught:
        read_write_options(parse_query(text), patch="application/merge-patch+json")
    assert caught.value.code == 422
    assert want in caught.value.message


def test_write_options_are_read() -> None:
    """Dry run, manager, validation and force come out typed."""
    options = read_write_options(
        parse_query("dryRun=All&fieldManager=me&fieldValidation=Strict&force=true"),
        patch="application/apply-patch+yaml",
    )
    assert (options.dry_run, options.force) == (True, True)
    assert (options.field_manager, options.field_validation) == ("me", "Strict")

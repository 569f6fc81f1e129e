"""What nodes say about the hints they have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.acknowledgements import (
    MAX_EXCEPTIONS,
    HintLevel,
    NodeAcknowledgement,
    acknowledgement_name,
    parse_acknowledgement,
    parse_resource_version,
    render_acknowledgement,
)
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.meta import NamespacedName, ObjectMeta, OwnerReference

WEB = NamespacedName("shop", "web")
FORM = {"form": "2"}


def written(**data: str) -> ConfigMap:
    """Return an acknowledgement of n1 with these data."""
    return ConfigMap(metadata=ObjectMeta(name="keepclose-ack-n1"), data=data)


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param({**FORM, "programmed": "7"}, NodeAcknowledgement("n1", 7), id="a version"),
        pytest.param(
            {
                **FORM,
                "programmed": "7",
                "exceptions": "shop/web NoZone\n\n a/b  Because of it \n",
            },
            NodeAcknowledgement(
                "n1", 7, {WEB: "NoZone", NamespacedName("a", "b"): "Because of it"}
            ),
            id="exceptions, with blanks",
        ),
        pytest.param(
            {**FORM, "programmed": "7", "exceptions": "shop/web \x1b[2JNo\tZone" + "!" * 500_000},
            NodeAcknowledgement("n1", 7, {WEB: "[2JNo Zone" + "!" * 53}),
            id="a reason that no condition would take",
        ),
        pytest.param(
            {**FORM, "programmed": "7", "exceptions": "shop/web \x1b"},
            NodeAcknowledgement("n1"),
            id="a reason of which nothing can be shown",
        ),
        pytest.param(
            {**FORM, "programmed": "7", "honors": "forNodes forZones later zoneWeights"},
            NodeAcknowledgement("n1", 7, honors=frozenset(HintLevel)),
            id="kinds of hints, one of them unknown",
        ),
        pytest.param({"version": "7"}, NodeAcknowledgement("n1"), id="the first form"),
        pytest.param(
            {"form": "3", "programmed": "7"}, NodeAcknowledgement("n1"), id="a form to come"
        ),
        pytest.param(
            {**FORM, "programmed": "7", "honors": "forZones", "version": "9"},
            NodeAcknowledgement("n1"),
            id="two forms at once",
        ),
        pytest.param({}, NodeAcknowledgement("n1"), id="nothing"),
        pytest.param({**FORM, "programmed": "-7"}, NodeAcknowledgement("n1"), id="negative"),
        pytest.param({**FORM, "programmed": "7x"}, NodeAcknowledgement("n1"), id="no number"),
        pytest.param({**FORM, "programmed": "\u0667"}, NodeAcknowledgement("n1"), id="no digit"),
        pytest.param({**FORM, "programmed": "9" * 5000}, NodeAcknowledgement("n1"), id="too long"),
        pytest.param(
            {**FORM, "programmed": "7", "exceptions": "shop/web"},
            NodeAcknowledgement("n1"),
            id="an exception without a reason",
        ),
        pytest.param(
            {**FORM, "programmed": "7", "exceptions": "web NoZone"},
            NodeAcknowledgement("n1"),
            id="an exception without a namespace",
        ),
        pytest.param(
            {**FORM, "programmed": "7", "exceptions": "a/b/c NoZone"},
            NodeAcknowledgement("n1"),
            id="an exception with a part too many",
        ),
    ],
)
def test_what_cannot_be_read_says_nothing(data: dict[str, str], want: NodeAcknowledgement) -> None:
    """Parsing never fails; a node whose words make no sense has not answered."""
    assert parse_acknowledgement(written(**data)) == want


@pytest.mark.parametrize("name", ["keepclose-ack-", "kube-root-ca.crt", "ack-n1"])
def test_other_objects_are_no_acknowledgements(name: str) -> None:
    """The name says whose words they are."""
    assert parse_acknowledgement(ConfigMap(metadata=ObjectMeta(name=name))) is None


def test_an_acknowledgement_as_written() -> None:
    """Name, namespace, label, owner and data are what the controller looks for."""
    node = OwnerReference(api_version="v1", kind="Node", name="n1", uid="u1")
    answer = NodeAcknowledgement("n1", 12, {WEB: "NoZone", NamespacedName("a", "b"): "Local"})
    answer = replace(answer, honors=frozenset(HintLevel))
    assert render_acknowledgement(answer, owner=node) == ConfigMap(
        metadata=ObjectMeta(
            name="keepclose-ack-n1",
            namespace="kube-system",
            labels={"keepclose.dev/acknowledgement": "true"},
            owner_references=(node,),
        ),
        data={
            **FORM,
            "programmed": "12",
            "honors": "forNodes forZones zoneWeights",
            "exceptions": "a/b Local\nshop/web NoZone\n",
        },
    )
    assert render_acknowledgement(answer).metadata.owner_references == ()
    assert acknowledgement_name("n1") == "keepclose-ack-n1"


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)


@given(
    NAMES,
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.builds(NamespacedName, NAMES, NAMES), NAMES, max_size=5),
    st.frozensets(st.sampled_from(HintLevel)),
)
@settings(deadline=None, max_examples=100)
def test_what_is_rendered_is_parsed(
    node: str,
    version: int,
    exceptions: dict[NamespacedName, str],
    honors: frozenset[HintLevel],
) -> None:
    """Proxy and controller understand each other."""
    answer = NodeAcknowledgement(node, version, exceptions, honors)
    assert parse_acknowledgement(render_acknowledgement(answer)) == answer


@given(
    st.dictionaries(
        st.sampled_from(["form", "programmed", "honors", "version", "exceptions"]), st.text()
    )
)
@settings(deadline=None, max_examples=200)
def test_parsing_is_total(data: dict[str, str]) -> None:
    """Any text gives an answer of that node."""
    got = parse_acknowledgement(written(**data))
    assert got is not None
    assert got.node == "n1"


@pytest.mark.parametrize(("text", "want"), [("", None), ("0", 0), ("42", 42), ("4.2", None)])
def test_versions_are_numbers(text: str, want: int | None) -> None:
    """Only decimal numbers can be compared."""
    assert parse_resource_version(text) == want


def test_exceptions_without_end_are_no_answer() -> None:
    """A node cannot fill the memory of the controller; the most it may say is understood."""
    lines = [f"a/b{number} c\n" for number in range(MAX_EXCEPTIONS + 1)]
    most = parse_acknowledgement(written(form="2", programmed="7", exceptions="".join(lines[1:])))
    assert most is not None
    assert (most.version, len(most.exceptions)) == (7, MAX_EXCEPTIONS)
    more = written(form="2", programmed="7", exceptions="".join(lines))
    assert parse_acknowledgement(more) == NodeAcknowledgement("n1")

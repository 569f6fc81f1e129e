"""EndpointSlices are defaulted and refused as the API server does it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForNode,
    ForZone,
)
from keepclose.model.endpointslice.validation import (
    default_endpoint_slice,
    same_endpoints,
    validate_endpoint_slice,
    validate_endpoint_slice_update,
)
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import ObjectMeta
from keepclose.model.metadata_validation import (
    LABEL_SENTENCE,
    LABEL_VALUE_SENTENCE,
    SUBDOMAIN_SENTENCE,
)
from support.builders import endpoint, endpoint_slice

GATES = FeatureGates()
LAX = GATES.without(Gate.STRICT_IP_CIDR_VALIDATION)
NO_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
LOOPBACK = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
LINK_LOCAL = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
MULTICAST = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
ONE_SEGMENT = "should be a domain with at least two segments separated by dots"
ONE = endpoint("10.0.0.1")


def port(name: str | None = "http", protocol: str | None = "TCP", **more: str) -> EndpointPort:
    """Return a port; the number is never looked at."""
    return EndpointPort(name=name, protocol=protocol, app_protocol=more.get("app_protocol"))


def ports(count: int) -> tuple[EndpointPort, ...]:
    """Return that many ports with different names."""
    return tuple(port(f"p{number}") for number in range(count))


def hinted(zones: tuple[str, ...] = (), nodes: tuple[str, ...] = ()) -> Endpoint:
    """Return an endpoint with these hints."""
    return endpoint(for_zones=zones, for_nodes=nodes)


def names(count: int) -> tuple[str, ...]:
    """Return that many different names."""
    return tuple(f"n{number}" for number in range(count))


def topology(count: int) -> Endpoint:
    """Return an endpoint with that many deprecated topology keys."""
    return replace(ONE, deprecated_topology={f"key-{i}": f"value-{i}" for i in range(count)})


@pytest.mark.parametrize(
    "good",
    [
        pytest.param(
            endpoint_slice(
                replace(
                    ONE, hostname="web-0", node_name="n1.example", deprecated_topology={"a": "b"}
                )
            ),
            id="good slice",
        ),
        pytest.param(endpoint_slice(endpoint("2001:db8::1"), address_type="IPv6"), id="good IPv6"),
        pytest.param(
            endpoint_slice(Endpoint(addresses=("a.example", "b.c.example.")), address_type="FQDN"),
            id="good FQDNs",
        ),
        pytest.param(
            endpoint_slice(ports=(port("a", "TCP"), port("b", "UDP"), port("c", "SCTP"))),
            id="all protocols",
        ),
        pytest.param(
            endpoint_slice(
                ports=(
                    port("a", app_protocol="http"),
                    port("b", app_protocol="example.com/My.Protocol"),
                )
            ),
            id="app protocols",
        ),
        pytest.param(endpoint_slice(ONE, ports=(port(""), port("b"))), id="empty port name"),
        pytest.param(endpoint_slice(ports=(port("a" * 63),)), id="long port name"),
        pytest.param(endpoint_slice(ports=()), id="no ports and no endpoints"),
        pytest.param(endpoint_slice(*(ONE,) * 1000), id="as many endpoints as allowed"),
        pytest.param(endpoint_slice(ports=ports(20000)), id="as many ports as allowed"),
        pytest.param(
            endpoint_slice(Endpoint(addresses=("10.0.0.1",) * 100)),
            id="as many addresses as allowed",
        ),
        pytest.param(endpoint_slice(topology(16)), id="as many topology keys as allowed"),
        pytest.param(
            endpoint_slice(hinted(("zone-a", "Zone_B"), names(8)), hinted(names(8))),
            id="valid hints",
        ),
        pytest.param(
            endpoint_slice(replace(ONE, zone="not / a # label", hints=EndpointHints())),
            id="zones are not looked at and hints may be empty",
        ),
        pytest.param(
            endpoint_slice(hinted(("",))), id="the empty zone is a label value and so a hint"
        ),
        pytest.param(
            endpoint_slice(ports=(EndpointPort(name="a", protocol="TCP", port=-1),)),
            id="port numbers are not looked at",
        ),
    ],
)
def test_good_slices(good: EndpointSlice) -> None:
    """A good slice gives no causes, with strict addresses or without."""
    assert validate_endpoint_slice(good, gates=GATES) == []
    assert validate_endpoint_slice(good, gates=LAX) == []


@pytest.mark.parametrize(
    ("bad", "want"),
    [
        pytest.param(
            endpoint_slice(ports=(port(""), port(""), port("b"), port("b"))),
            [
                'ports[1].name: Duplicate value: ""',
                'ports[3].name: Duplicate value: "b"',
            ],
            id="duplicate port name",
        ),
        pytest.param(
            endpoint_slice(ports=(port("HTTP"),)),
            [f'ports[0].name: Invalid value: "HTTP": {LABEL_SENTENCE}'],
            id="bad port name: capitals",
        ),
        pytest.param(
            endpoint_slice(ports=(port("a_b"),)),
            [f'ports[0].name: Invalid value: "a_b": {LABEL_SENTENCE}'],
            id="bad port name: characters",
        ),
        pytest.param(
            endpoint_slice(ports=(port("a" * 64),)),
            [
                f'ports[0].name: Invalid value: "{"a" * 64}": must be no more than 63 characters',
            ],
            id="bad port name: length",
        ),
        pytest.param(
            endpoint_slice(ports=(port("a", "icmp"), port("b", ""), port("c", None))),
            [
                (
                    'ports[0].protocol: Unsupported value: "icmp": '
                    'supported values: "SCTP", "TCP", "UDP"'
                ),
                (
                    'ports[1].protocol: Unsupported value: "": '
                    'supported values: "SCTP", "TCP", "UDP"'
                ),
                "ports[2].protocol: Required value",
            ],
            id="invalid port protocol",
        ),
        pytest.param(
            endpoint_slice(ports=(*ports(20000), port("BAD"))),
            ["ports: Too many: 20001: must have at most 20000 items"],
            id="too many ports, and no port is looked at",
        ),
        pytest.param(
            endpoint_slice(*(ONE,) * 1000, Endpoint()),
            ["endpoints: Too many: 1001: must have at most 1000 items"],
            id="too many endpoints, and no endpoint is looked at",
        ),
        pytest.param(
            endpoint_slice(Endpoint(addresses=("10.0.0.1",) * 100 + ("x",))),
            [
                "endpoints[0].addresses: Too many: 101: must have at most 100 items",
                f'endpoints[0].addresses[100]: Invalid value: "x": {NO_IP}',
            ],
            id="too many addresses, and each is looked at",
        ),
        pytest.param(
            endpoint_slice(topology(17)),
            ["endpoints[0].deprecatedTopology: Too many: 17: must have at most 16 items"],
            id="too many topology keys",
        ),
        pytest.param(
            endpoint_slice(ONE, Endpoint()),
            ["endpoints[1].addresses: Required value: must contain at least 1 address"],
            id="no endpoint addresses",
        ),
        pytest.param(
            endpoint_slice(replace(ONE, deprecated_topology={"/key": "-"})),
            [
                (
                    'endpoints[0].deprecatedTopology: Invalid value: "/key": '
                    "prefix part must be non-empty"
                ),
                f'endpoints[0].deprecatedTopology: Invalid value: "-": {LABEL_VALUE_SENTENCE}',
            ],
            id="bad topology key",
        ),
        pytest.param(
            endpoint_slice(replace(ONE, hostname="a.b"), replace(ONE, hostname="")),
            [
                'endpoints[0].hostname: Invalid value: "a.b": must not contain dots',
                f'endpoints[1].hostname: Invalid value: "": {LABEL_SENTENCE}',
            ],
            id="bad hostname",
        ),
        pytest.param(
            endpoint_slice(ONE, name="*", namespace="default"),
            [f'metadata.name: Invalid value: "*": {SUBDOMAIN_SENTENCE}'],
            id="bad metadata",
        ),
        pytest.param(
            endpoint_slice(endpoint("300.1.2.3")),
            [f'endpoints[0].addresses[0]: Invalid value: "300.1.2.3": {NO_IP}'],
            id="bad address",
        ),
        pytest.param(
            endpoint_slice(Endpoint(addresses=("010.0.0.1", "::ffff:10.0.0.2"))),
            [
                'endpoints[0].addresses[0]: Invalid value: "010.0.0.1": must not have leading 0s',
                (
                    'endpoints[0].addresses[1]: Invalid value: "::ffff:10.0.0.2": '
                    "must not be an IPv4-mapped IPv6 address"
                ),
            ],
            id="lax address with strict validation",
        ),
        pytest.param(
            endpoint_slice(Endpoint(addresses=("10.0.0.1", "2001:db8::1", "a.example"))),
            [
                'endpoints[0].addresses: Invalid value: "2001:db8::1": must be an IPv4 address',
                f'endpoints[0].addresses[2]: Invalid value: "a.example": {NO_IP}',
            ],
            id="bad IPv4",
        ),
        pytest.param(
            endpoint_slice(
                Endpoint(addresses=("10.0.0.1", "2001:DB8::1", "a.example")), address_type="IPv6"
            ),
            [
                'endpoints[0].addresses: Invalid value: "10.0.0.1": must be an IPv6 address',
                (
                    'endpoints[0].addresses[1]: Invalid value: "2001:DB8::1": '
                    'must be in canonical form ("2001:db8::1")'
                ),
                f'endpoints[0].addresses[2]: Invalid value: "a.example": {NO_IP}',
            ],
            id="bad IPv6",
        ),
        pytest.param(
            endpoint_slice(Endpoint(addresses=("example", "_.example", "")), address_type="FQDN"),
            [
                f'endpoints[0].addresses[0]: Invalid value: "example": {ONE_SEGMENT}',
                f'endpoints[0].addresses[1]: Invalid value: "_.example": {SUBDOMAIN_SENTENCE}',
                "endpoints[0].addresses[2]: Required value",
            ],
            id="bad FQDNs",
        ),
        pytest.param(
            endpoint_slice(ports=(port(app_protocol="/a"),)),
            ['ports[0].appProtocol: Invalid value: "/a": prefix part must be non-empty'],
            id="bad app protocol",
        ),
        pytest.param(
            endpoint_slice(hinted(("zone a",))),
            [
                (
                    'endpoints[0].hints.forZones[0].name: Invalid value: "zone a": '
                    f"{LABEL_VALUE_SENTENCE}"
                ),
            ],
            id="invalid zone hint",
        ),
        pytest.param(
            endpoint_slice(hinted(("a", "b", "a"))),
            ['endpoints[0].hints.forZones[2].name: Duplicate value: "a"'],
            id="overlapping zone hints",
        ),
        pytest.param(
            endpoint_slice(hinted(names(9), ("NODE",)), hinted(("-",))),
            [
                "endpoints[0].hints.forZones: Too many: 9: must have at most 8 items",
                f'endpoints[1].hints.forZones[0].name: Invalid value: "-": {LABEL_VALUE_SENTENCE}',
            ],
            id="too many zone hints, and the node hints are not looked at",
        ),
        pytest.param(
            endpoint_slice(hinted((), ("Node", ""))),
            [
                (
                    'endpoints[0].hints.forNodes[0].name: Invalid value: "Node": '
                    f"{SUBDOMAIN_SENTENCE}"
                ),
                f'endpoints[0].hints.forNodes[1].name: Invalid value: "": {SUBDOMAIN_SENTENCE}',
            ],
            id="invalid node hints",
        ),
        pytest.param(
            endpoint_slice(hinted((), ("n1", "n2", "n2"))),
            ['endpoints[0].hints.forNodes[2].name: Duplicate value: "n2"'],
            id="overlapping node hints",
        ),
        pytest.param(
            endpoint_slice(hinted(("-",), (*names(8), "NODE"))),
            [
                f'endpoints[0].hints.forZones[0].name: Invalid value: "-": {LABEL_VALUE_SENTENCE}',
                "endpoints[0].hints.forNodes: Too many: 9: must have at most 8 items",
            ],
            id="too many node hints, and no node hint is looked at",
        ),
        pytest.param(
            EndpointSlice(),
            [
                "metadata.name: Required value: name or generateName is required",
                "metadata.namespace: Required value",
                "addressType: Required value",
            ],
            id="empty everything",
        ),
        pytest.param(
            endpoint_slice(
                replace(ONE, deprecated_topology={"topology.kubernetes.io/zone": "zone-a"})
            ),
            [
                (
                    "endpoints[0].deprecatedTopology[topology.kubernetes.io/zone]: Internal error: "
                    "reserved key was not removed in conversion"
                ),
            ],
            id="zone key in the topology",
        ),
        pytest.param(
            endpoint_slice(
                Endpoint(addresses=("127.0.0.1", "0.0.0.0", "169.254.0.1", "224.0.0.1"))  # noqa: S104
            ),
            [
                f'endpoints[0].addresses[0]: Invalid value: "127.0.0.1": {LOOPBACK}',
                (
                    'endpoints[0].addresses[1]: Invalid value: "0.0.0.0": '
                    "may not be unspecified (0.0.0.0)"
                ),
                f'endpoints[0].addresses[2]: Invalid value: "169.254.0.1": {LINK_LOCAL}',
                f'endpoints[0].addresses[3]: Invalid value: "224.0.0.1": {MULTICAST}',
            ],
            id="special IPv4",
        ),
        pytest.param(
            endpoint_slice(
                Endpoint(addresses=("::1", "::", "fe80::1", "ff02::1")), address_type="IPv6"
            ),
            [
                f'endpoints[0].addresses[0]: Invalid value: "::1": {LOOPBACK}',
                'endpoints[0].addresses[1]: Invalid value: "::": may not be unspecified (::)',
                f'endpoints[0].addresses[2]: Invalid value: "fe80::1": {LINK_LOCAL}',
                f'endpoints[0].addresses[3]: Invalid value: "ff02::1": {MULTICAST}',
            ],
            id="special IPv6",
        ),
        pytest.param(
            endpoint_slice(replace(ONE, node_name="Node"), replace(ONE, node_name="")),
            [
                f'endpoints[0].nodeName: Invalid value: "Node": {SUBDOMAIN_SENTENCE}',
                f'endpoints[1].nodeName: Invalid value: "": {SUBDOMAIN_SENTENCE}',
            ],
            id="bad node name",
        ),
        pytest.param(
            endpoint_slice(endpoint("::1"), ports=()),
            [
                'endpoints[0].addresses: Invalid value: "::1": must be an IPv4 address',
                f'endpoints[0].addresses[0]: Invalid value: "::1": {LOOPBACK}',
            ],
            id="an address of the wrong family is still looked at",
        ),
        pytest.param(
            EndpointSlice(
                metadata=ObjectMeta(name="a", namespace="b", labels={"c": "-"}),
                address_type="MAC",
                endpoints=(Endpoint(addresses=("x",), hostname="", node_name="_"), Endpoint()),
                ports=(port("_"),),
            ),
            [
                f'metadata.labels: Invalid value: "-": {LABEL_VALUE_SENTENCE}',
                'addressType: Unsupported value: "MAC": supported values: "FQDN", "IPv4", "IPv6"',
                f'ports[0].name: Invalid value: "_": {LABEL_SENTENCE}',
                f'endpoints[0].nodeName: Invalid value: "_": {SUBDOMAIN_SENTENCE}',
                f'endpoints[0].hostname: Invalid value: "": {LABEL_SENTENCE}',
                "endpoints[1].addresses: Required value: must contain at least 1 address",
            ],
            id="causes are in order and addresses of an unknown type go unchecked",
        ),
    ],
)
def test_bad_slices(bad: EndpointSlice, want: list[str]) -> None:
    """A bad slice is refused with every cause, in order."""
    assert [str(cause) for cause in validate_endpoint_slice(bad, gates=GATES)] == want


def test_lax_addresses_pass_without_strict_validation() -> None:
    """Leading zeros and mapped addresses are taken while the gate is off, in IPv4 slices only."""
    addresses = ("010.0.0.1", "::ffff:10.0.0.2")
    lax = endpoint_slice(Endpoint(addresses=addresses))
    assert validate_endpoint_slice(lax, gates=LAX) == []
    still_strict = endpoint_slice(endpoint("2001:db8::01"), address_type="IPv6")
    assert [str(cause) for cause in validate_endpoint_slice(still_strict, gates=LAX)] == [
        (
            'endpoints[0].addresses[0]: Invalid value: "2001:db8::01": '
            'must be in canonical form ("2001:db8::1")'
        )
    ]


@pytest.mark.parametrize(
    ("new", "want"),
    [
        pytest.param(endpoint_slice(ONE), [], id="good slice"),
        pytest.param(
            endpoint_slice(endpoint("a.example"), address_type="FQDN"), [], id="good FQDN slice"
        ),
        pytest.param(
            endpoint_slice(endpoint("10.0.0.1"), address_type="IP"),
            ['addressType: Unsupported value: "IP": supported values: "FQDN", "IPv4", "IPv6"'],
            id="the retired address type IP",
        ),
        pytest.param(
            endpoint_slice(ONE, address_type="ipv4"),
            ['addressType: Unsupported value: "ipv4": supported values: "FQDN", "IPv4", "IPv6"'],
            id="address types have their case",
        ),
        pytest.param(
            EndpointSlice(
                metadata=ObjectMeta(generate_name="web-", namespace="default"),
                address_type="IPv4",
                ports=(port("", "sctp"),),
            ),
            [
                (
                    'ports[0].protocol: Unsupported value: "sctp": '
                    'supported values: "SCTP", "TCP", "UDP"'
                )
            ],
            id="a name to be made and a bad protocol",
        ),
    ],
)
def test_creation(new: EndpointSlice, want: list[str]) -> None:
    """A new slice is checked as a whole after defaulting."""
    defaulted = default_endpoint_slice(new)
    assert [str(cause) for cause in validate_endpoint_slice(defaulted, gates=GATES)] == want


OLD_LAX = endpoint_slice(endpoint("010.0.0.1"), ONE)


@pytest.mark.parametrize(
    ("new", "old", "want"),
    [
        pytest.param(endpoint_slice(ONE), endpoint_slice(ONE), [], id="unchanged"),
        pytest.param(
            endpoint_slice(endpoint("10.0.0.2"), ports=ports(2), labels={"a": "b"}),
            endpoint_slice(ONE),
            [],
            id="endpoints, ports and labels may change",
        ),
        pytest.param(
            endpoint_slice(endpoint("2001:db8::1"), address_type="IPv6"),
            endpoint_slice(ONE),
            ['addressType: Invalid value: "IPv6": field is immutable'],
            id="the address type may not change",
        ),
        pytest.param(
            endpoint_slice(address_type=""),
            endpoint_slice(ONE),
            [
                "addressType: Required value",
                'addressType: Invalid value: "": field is immutable',
            ],
            id="the address type may not go",
        ),
        pytest.param(
            replace(OLD_LAX, ports=ports(3)), OLD_LAX, [], id="unchanged lax addresses are forgiven"
        ),
        pytest.param(
            replace(OLD_LAX, endpoints=OLD_LAX.endpoints[:1]),
            OLD_LAX,
            ['endpoints[0].addresses[0]: Invalid value: "010.0.0.1": must not have leading 0s'],
            id="lax addresses are not forgiven once any endpoint changed",
        ),
        pytest.param(
            endpoint_slice(
                replace(ONE, hostname="A"), name="web-2", ports=(port("A"),), address_type="IPv4"
            ),
            endpoint_slice(replace(ONE, hostname="A")),
            [
                'metadata.name: Invalid value: "web-2": field is immutable',
                'metadata.uid: Invalid value: "uid-web-2": field is immutable',
                f'ports[0].name: Invalid value: "A": {LABEL_SENTENCE}',
            ],
            id="only the endpoints are forgiven",
        ),
    ],
)
def test_update(new: EndpointSlice, old: EndpointSlice, want: list[str]) -> None:
    """An update keeps identity and address type; unchanged endpoints are not checked again."""
    causes = validate_endpoint_slice_update(new, old, gates=GATES)
    assert [str(cause) for cause in causes] == want


@pytest.mark.parametrize(
    ("given_port", "want"),
    [
        pytest.param(EndpointPort(), EndpointPort(name="", protocol="TCP"), id="nothing said"),
        pytest.param(
            EndpointPort(name="dns", protocol="UDP", port=53, app_protocol="a"),
            EndpointPort(name="dns", protocol="UDP", port=53, app_protocol="a"),
            id="everything said",
        ),
    ],
)
def test_default_ports(given_port: EndpointPort, want: EndpointPort) -> None:
    """A port without a name or protocol gets the empty name and TCP."""
    whole = EndpointPort(name="x", protocol="SCTP")
    defaulted = default_endpoint_slice(endpoint_slice(ONE, ports=(whole, given_port)))
    assert defaulted.ports == (whole, want)
    assert default_endpoint_slice(defaulted) is defaulted


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        pytest.param((), (), True, id="none"),
        pytest.param((ONE,), (ONE,), True, id="equal"),
        pytest.param((ONE,), (ONE, ONE), False, id="one more"),
        pytest.param(
            (replace(ONE, deprecated_topology={}),), (ONE,), True, id="empty topology is absent"
        ),
        pytest.param(
            (replace(ONE, hints=EndpointHints()),), (ONE,), False, id="empty hints are not absent"
        ),
        pytest.param(
            (replace(ONE, deprecated_topology={}, zone="a"),),
            (ONE,),
            False,
            id="empty topology and another zone",
        ),
        pytest.param(
            (replace(ONE, deprecated_topology={"a": "b"}),), (ONE,), False, id="topology differs"
        ),
    ],
)
def test_same_endpoints(
    one: tuple[Endpoint, ...], other: tuple[Endpoint, ...], *, want: bool
) -> None:
    """Endpoints are compared by what they mean."""
    assert same_endpoints(one, other) is want
    assert same_endpoints(other, one) is want


TEXTS = st.text(max_size=6)
MAYBE = st.none() | TEXTS
ENDPOINTS = st.builds(
    Endpoint,
    addresses=st.lists(TEXTS | st.sampled_from(["10.0.0.1", "::1", "a.b"]), max_size=3).map(tuple),
    conditions=st.builds(EndpointConditions, ready=st.none() | st.booleans()),
    hostname=MAYBE,
    deprecated_topology=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    node_name=MAYBE,
    zone=MAYBE,
    hints=st.none()
    | st.builds(
        EndpointHints,
        for_zones=st.lists(st.builds(ForZone, name=TEXTS), max_size=10).map(tuple),
        for_nodes=st.lists(st.builds(ForNode, name=TEXTS), max_size=10).map(tuple),
    ),
)
SLICES = st.builds(
    EndpointSlice,
    metadata=st.builds(
        ObjectMeta, name=TEXTS, namespace=TEXTS, labels=st.dictionaries(TEXTS, TEXTS, max_size=2)
    ),
    address_type=TEXTS | st.sampled_from(["IPv4", "IPv6", "FQDN"]),
    endpoints=st.lists(ENDPOINTS, max_size=3).map(tuple),
    ports=st.lists(
        st.builds(
            EndpointPort,
            name=MAYBE,
            protocol=MAYBE,
            port=st.none() | st.integers(),
            app_protocol=MAYBE,
        ),
        max_size=3,
    ).map(tuple),
)


@settings(deadline=None, max_examples=200)
@given(new=SLICES, old=SLICES, strict=st.booleans())
def test_no_slice_raises(new: EndpointSlice, old: EndpointSlice, *, strict: bool) -> None:
    """Any slice is answered, with causes that can be shown and sent, and never about itself."""
    gates = GATES if strict else LAX
    causes = validate_endpoint_slice(default_endpoint_slice(new), gates=gates)
    causes += validate_endpoint_slice_update(new, old, gates=gates)
    assert all(": " in str(cause) for cause in causes)
    assert msgspec.json.encode(causes).startswith(b"[")
    unchanged = validate_endpoint_slice_update(new, new, gates=gates)
    assert not [cause for cause in unchanged if cause.field.startswith("endpoints")]

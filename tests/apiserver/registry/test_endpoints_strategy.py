"""Writing legacy endpoints."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import LABEL_SENTENCE, SUBDOMAIN_SENTENCE
from support.kinds import Kinds, raw

NOT_A_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


def _subset(**members: Any) -> JsonObject:
    return {"subsets": [members]}


@pytest.mark.parametrize(
    ("members", "want_causes"),
    [
        pytest.param(
            _subset(),
            ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
            id="no addresses",
        ),
        pytest.param(
            _subset(addresses=[{"ip": "127.0.0.1"}, {"ip": "x"}]),
            [
                (
                    'subsets[0].addresses[0].ip: Invalid value: "127.0.0.1": may not be in the '
                    "loopback"
                    " range (127.0.0.0/8, ::1/128)"
                ),
                (
                    'subsets[0].addresses[1].ip: Invalid value: "x": must be a valid IP address, '
                    "(e.g. "
                    "10.9.8.7 or 2001:db8::ffff)"
                ),
                'subsets[0].addresses[1].ip: Invalid value: "x": must be a valid IP address',
            ],
            id="bad addresses",
        ),
        pytest.param(
            _subset(notReadyAddresses=[{"ip": "10.0.0.1", "hostname": "A_", "nodeName": "A_"}]),
            [
                'subsets[0].notReadyAddresses[0].hostname: Invalid value: "A_": ' + LABEL_SENTENCE,
                'subsets[0].notReadyAddresses[0].nodeName: Invalid value: "A_": '
                + SUBDOMAIN_SENTENCE,
            ],
            id="bad names",
        ),
        pytest.param(
            _subset(
                addresses=[{"ip": "10.0.0.1"}],
                ports=[{"port": 0}, {"port": 80, "protocol": "X", "name": "A_"}],
            ),
            [
                "subsets[0].ports[0].name: Required value",
                (
                    "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, "
                    "inclusive"
                ),
                f'subsets[0].ports[1].name: Invalid value: "A_": {LABEL_SENTENCE}',
                (
                    'subsets[0].ports[1].protocol: Unsupported value: "X": supported values: '
                    '"SCTP", '
                    '"TCP", "UDP"'
                ),
            ],
            id="bad ports",
        ),
        pytest.param(
            _subset(addresses=[{"ip": "10.0.0.1"}], ports=[{"port": 1, "appProtocol": "a b"}]),
            [f'subsets[0].ports[0].appProtocol: Invalid value: "a b": {NOT_A_NAME}'],
            id="a bad protocol of the application",
        ),
    ],
)
def test_legacy_endpoints_are_checked(
    kinds: Kinds, members: JsonObject, want_causes: list[str]
) -> None:
    """Addresses, names and ports are told with upstream's words, unless they are stored so."""
    new = raw("Endpoints", **deepcopy(members))
    assert kinds.write(new).causes == want_causes
    stored = kinds.write(new).object
    assert kinds.write(stored, stored).causes == []


def test_odd_addresses_are_told_of(kinds: Kinds) -> None:
    """Whoever writes one hears so, unless the controller wrote it."""
    subsets = [{"addresses": [{"ip": "fd00:0::1"}], "ports": [{"port": 80}]}]
    got = kinds.write(raw("Endpoints", subsets=deepcopy(subsets)))
    assert got.object["subsets"][0]["ports"] == [{"port": 80, "protocol": "TCP"}]
    assert got.warnings == [
        (
            'subsets[0].addresses[0].ip: IPv6 address "fd00:0::1" should be in RFC 5952 canonical '
            'format ("fd00::1")'
        ),
    ]
    labels = {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}
    managed = raw("Endpoints", subsets=subsets, metadata={"labels": labels})
    assert kinds.write(managed).warnings == []

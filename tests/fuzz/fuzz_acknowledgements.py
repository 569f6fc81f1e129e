"""ConfigMaps in which nodes answer: read without fail, and written as they are read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from fuzzbounds import require

from keepclose.model.acknowledgements import parse_acknowledgement, render_acknowledgement
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.decoding import Rejected, convert_as

MUTATES_JSON = True


def seeds() -> Iterator[bytes]:
    """Yield acknowledgements of both forms."""
    metadata = {"name": "keepclose-ack-n1", "namespace": "kube-system"}
    for data in (
        {"form": "2", "programmed": "17", "honors": "forZones forNodes", "exceptions": ""},
        {"form": "2", "programmed": "0", "exceptions": "shop/web no-zone\na/b c d\n"},
        {"version": "17"},
        {"form": "3", "programmed": "1"},
        {"form": "2", "programmed": "9" * 21},
    ):
        yield b"\n" + msgspec.json.encode({"metadata": metadata, "data": data})


def check(data: bytes) -> None:
    """Read the object; what was read survives being written."""
    try:
        raw = msgspec.json.decode(data.partition(b"\n")[2])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    config_map = convert_as(ConfigMap, raw)
    if isinstance(config_map, Rejected):
        return
    read = parse_acknowledgement(config_map)
    if read is not None:
        again = parse_acknowledgement(render_acknowledgement(read))
        require(again == read, "an acknowledgement reads differently when it is written again")

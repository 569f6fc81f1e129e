"""A picture of the traffic between zones: bands from the zones of clients to those of endpoints.

The width of a band is its part of all traffic. Traffic within a zone has the colour p0 everywhere,
traffic to another zone p2, as in the bars of shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

_IN_ZONE, _OTHER_ZONE = "p0", "p2"
_MOST_ZONES: Final = 12
"""The most zones that are drawn apart; the others are summed up."""
_NO_ZONE: Final = "no zone"
_REST: Final = "other zones"
_WIDTH, _HEIGHT, _GAP, _BLOCK = 720.0, 260.0, 8.0, 14.0
_LEFT, _RIGHT, _TOP = 200.0, 506.0, 28.0
_THINNEST: Final = 0.0005


class ZoneFlow(NamedTuple):
    """The part of all traffic that clients of a zone send to endpoints of a zone."""

    client: str
    endpoint: str
    part: float


def draw_zone_flows(flows: Sequence[ZoneFlow], *, title: str) -> str:
    """Return the picture as SVG; "" without traffic."""
    kept = [flow for flow in _merge_small(flows) if flow.part > _THINNEST]
    total = sum(flow.part for flow in kept)
    if not total:
        return ""
    sources = list(dict.fromkeys(flow.client for flow in sorted(kept)))
    targets = list(dict.fromkeys(flow.endpoint for flow in sorted(kept, key=_by_endpoint)))
    scale = (_HEIGHT - _GAP * (max(len(sources), len(targets)) - 1)) / total
    left = _Column(kept, sources, scale, of_client=True)
    right = _Column(kept, targets, scale, of_client=False)
    body = [
        _label(_LEFT - 8, 18, "clients in", "end"),
        _label(_RIGHT + _BLOCK + 8, 18, "endpoints in", "start"),
    ]
    for flow in sorted(kept):
        thick = flow.part * scale
        y, end = left.take(flow, thick), right.take(flow, thick)
        body.append(_band(flow, y, end, thick, total))
    for column, x, anchor in ((left, _LEFT, "end"), (right, _RIGHT, "start")):
        for zone, (top, height, part) in column.blocks.items():
            body.append(
                f'<rect class="block" x="{x:.1f}" y="{top:.1f}" width="{_BLOCK}"'
                f' height="{max(height, 1):.1f}"/>'
            )
            at = x - 8 if anchor == "end" else x + _BLOCK + 8
            name = f"{_shorten(_shown(zone))} {_percent(part / total)}"
            body.append(_label(at, top + height / 2 + 6, name, anchor))
    height = _TOP + _HEIGHT + 8
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" width="{_WIDTH:.0f}" role="img"'
        f' aria-label="{escape(title, quote=True)}"><title>{escape(title)}</title>'
        f"{''.join(body)}</svg>"
    )


class _Column:
    """The zones of one side, from top to bottom, and how far each one's bands have got."""

    def __init__(
        self, flows: Sequence[ZoneFlow], zones: Sequence[str], scale: float, *, of_client: bool
    ) -> None:
        self._of_client = of_client
        self.blocks: dict[str, tuple[float, float, float]] = {}
        top = _TOP
        for zone in zones:
            part = sum(flow.part for flow in flows if self._zone(flow) == zone)
            self.blocks[zone] = (top, part * scale, part)
            top += part * scale + _GAP
        self._next = {zone: block[0] for zone, block in self.blocks.items()}

    def take(self, flow: ZoneFlow, thick: float) -> float:
        """Return where the band of a flow begins."""
        top = self._next[self._zone(flow)]
        self._next[self._zone(flow)] = top + thick
        return top

    def _zone(self, flow: ZoneFlow) -> str:
        return flow.client if self._of_client else flow.endpoint


def _band(flow: ZoneFlow, y: float, end: float, thick: float, total: float) -> str:
    is_own = flow.client and flow.client == flow.endpoint != _REST
    kind = _IN_ZONE if is_own else _OTHER_ZONE
    start, middle = _LEFT + _BLOCK, (_LEFT + _BLOCK + _RIGHT) / 2
    path = (
        f"M{start:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {end:.1f} {_RIGHT:.1f} {end:.1f}"
        f"v{thick:.1f}C{middle:.1f} {end + thick:.1f} {middle:.1f} {y + thick:.1f} {start:.1f} "
        f"{y + thick:.1f}z"
    )
    words = f"{_shown(flow.client)} to {_shown(flow.endpoint)}: {_percent(flow.part / total)}"
    return f'<path class="{kind} band" d="{path}"><title>{escape(words)}</title></path>'


def _merge_small(flows: Sequence[ZoneFlow]) -> list[ZoneFlow]:
    """Return the flows with the zones of least traffic summed up, if there are too many."""
    sizes: dict[str, float] = {}
    for flow in flows:
        sizes[flow.client] = sizes.get(flow.client, 0.0) + flow.part
        sizes[flow.endpoint] = sizes.get(flow.endpoint, 0.0) + flow.part
    if len(sizes) <= _MOST_ZONES:
        return list(flows)
    largest = sorted(sizes, key=lambda zone: (-sizes[zone], zone))[: _MOST_ZONES - 1]
    merged: dict[tuple[str, str], float] = {}
    for flow in flows:
        client = flow.client if flow.client in largest else _REST
        endpoint = flow.endpoint if flow.endpoint in largest else _REST
        # NB: traffic within one of the other zones must not be shown as leaving its zone.
        if client == endpoint == _REST and flow.client == flow.endpoint:
            client = endpoint = f"within {_REST}"
        key = client, endpoint
        merged[key] = merged.get(key, 0.0) + flow.part
    return [ZoneFlow(client, endpoint, part) for (client, endpoint), part in merged.items()]


def _by_endpoint(flow: ZoneFlow) -> tuple[str, str]:
    return flow.endpoint, flow.client


def _shown(zone: str) -> str:
    return zone or _NO_ZONE


def _shorten(text: str) -> str:
    return text if len(text) <= 13 else f"{text[:5]}…{text[-7:]}"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.01 else f"{100 * part:.1f} %"


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

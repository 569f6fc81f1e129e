"""An explanation as plain data for programs, and as Markdown for a ticket.

Plain data has everything. Markdown has the sections of the terminal without cuts of causes; text
from outside cannot end a table, a code block or a line, nor become a link or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from keepclose.advise.explaining.causes import TrafficCause
from keepclose.advise.explaining.explanation import ExplainedNodes, Explanation
from keepclose.cli.explain.sections import (
    Listing,
    endpoint_listing,
    figures,
    headline,
    mechanism_lines,
    node_listings,
    slice_line,
    split_causes,
    zone_listing,
)
from keepclose.model.plain_text import make_plain
from keepclose.routing.selection import Outcome

_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]<>|~#])")
_COMMANDS: Final = ("kubectl ", "keepclose ")
_LISTED_ROWS: Final = 50


def explanation_document(answer: Explanation) -> dict[str, Any]:
    """Return the whole explanation as plain data."""
    target = answer.target
    return {
        "namespace": answer.service.metadata.namespace,
        "name": answer.service.metadata.name,
        "traffic": answer.flow.value,
        "from": {
            "kind": answer.clients.kind.value,
            "name": answer.clients.name,
            "nodes": list(answer.clients.nodes),
        },
        "to": None if target is None else str(target.key),
        "shares": [msgspec.to_builtins(share) for share in answer.shares],
        "figures": None if answer.traffic is None else _figures(answer),
        "causes": [_cause(cause) for cause in answer.causes],
        "mechanism": msgspec.to_builtins(answer.mechanism),
        "slices": msgspec.to_builtins(answer.slices),
        "zones": [msgspec.to_builtins(zone) for zone in answer.zones],
        "endpoints": [msgspec.to_builtins(endpoint) for endpoint in answer.endpoints],
        "nodes": [_nodes(group) for group in answer.nodes],
        "unknown": list(answer.unknown),
    }


def explanation_markdown(answer: Explanation) -> str:
    """Return the explanation as Markdown, ending in a line break."""
    return "\n".join(_markdown(answer)) + "\n"


def _figures(answer: Explanation) -> dict[str, Any]:
    traffic = answer.traffic
    assert traffic is not None  # noqa: S101 - asked for only then
    return {
        "inZone": traffic.in_zone,
        "onNode": traffic.on_node,
        "failed": traffic.failed,
        "busiest": traffic.busiest,
        "busiestEndpoint": traffic.busiest_endpoint,
    }


def _cause(cause: TrafficCause) -> dict[str, Any]:
    return {
        "code": cause.code.value,
        "weight": cause.weight.value,
        "sure": cause.is_sure,
        "message": cause.message,
        "subject": cause.subject,
        "fix": cause.fix,
        "effect": cause.effect,
    }


def _nodes(group: ExplainedNodes) -> dict[str, Any]:
    return {
        "zone": group.zone,
        "nodes": list(group.nodes),
        "ports": {
            port.title: {
                "mode": port.selection.mode.value,
                "internal": _outcome(port.selection.internal),
                "external": _outcome(port.selection.external)
                if port.port.is_externally_accessible
                else None,
            }
            for port in group.ports
        },
        "reasons": list(group.reasons),
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    if outcome.verdict:
        return {"verdict": outcome.verdict.value}
    return {"endpoints": sorted(endpoint.shown for endpoint in outcome.endpoints)}


def _markdown(answer: Explanation) -> Iterator[str]:
    yield f"# {_escape(headline(answer))}"
    yield ""
    if text := figures(answer):
        yield f"{_escape(text)}."
        yield ""
    blamed, notes = split_causes(answer)
    for title, causes in (("To blame", blamed), ("Notes", notes)):
        if causes:
            yield f"## {title}"
            yield ""
        for cause in causes:
            doubt = "" if cause.is_sure else "probably: "
            yield f"- **{cause.code}** {doubt}{_escape(cause.message)}"
            if cause.fix.startswith(_COMMANDS):
                yield from _code(cause.fix)
            elif cause.fix:
                yield from ("", f"  Fix: {_escape(cause.fix)}")
            if cause.effect:
                yield from ("", f"  Then: {_escape(cause.effect)}")
            yield ""
    yield from _bullets("Mechanism", mechanism_lines(answer))
    if answer.zones and answer.traffic is not None:
        yield from _table("Zones", zone_listing(answer, _LISTED_ROWS))
    if answer.endpoints:
        title = f"Endpoints: {_escape(slice_line(answer))}"
        yield from _table(title, endpoint_listing(answer, _LISTED_ROWS))
    for title, listing in node_listings(answer, _LISTED_ROWS):
        yield from _table(f"Nodes: {_escape(title)}", listing)
    if answer.unknown:
        yield from _bullets("Not known", list(answer.unknown))


def _bullets(title: str, texts: list[str]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    for text in texts:
        yield f"- {_escape(text)}"
    yield ""


def _table(title: str, listing: Listing) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield f"| {' | '.join(listing.head)} |"
    yield f"|{'---|' * len(listing.head)}"
    for row in listing.rows:
        yield f"| {' | '.join(map(_escape, row))} |"
    if listing.left_out:
        yield ""
        yield _escape(listing.left_out)
    yield ""


def _code(command: str) -> Iterator[str]:
    """Yield a block of code; one line of a command never ends it."""
    yield from ("", "  ```sh", f"  {make_plain(command)}", "  ```", "")


def _escape(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", make_plain(text))

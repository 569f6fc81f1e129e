"""`keepclose proxy status`: what the proxy of this node does with each Service, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.options import join_namespace, read_address
from keepclose.cli.render.output import AnswerForm, TableOrJson, echo_json

if TYPE_CHECKING:
    from keepclose.cli.render.screen import Line
    from keepclose.proxy.status import PortStatus, ProxyStatus, ServiceReport

_MODES = {
    "Everywhere": "everywhere",
    "PreferSameZone": "same zone",
    "PreferSameNode": "same node",
    "NodeLevel": "same node",
    "TopologyKeys": "topology keys",
}
MOST_BYTES: Final = 256 << 20
"""The largest answer of a proxy; one about 10,000 Services has a tenth of it."""


def status(
    service: Annotated[
        str, typer.Argument(metavar="[NAMESPACE/]SERVICE", help="One Service; default all.")
    ] = "",
    *,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", metavar="NAME", help="One namespace; default all.")
    ] = "",
    address: Annotated[
        str,
        typer.Option(
            "--metrics-address", metavar="HOST:PORT", help="Where the proxy serves its pages."
        ),
    ] = "127.0.0.1:10249",
    output: AnswerForm = TableOrJson.TABLE,
) -> None:
    """Show what this node's proxy does with each Service.

    And where connections went. Exit codes: 0 shown, 1 rules cannot be written at present, 2 bad
    input, 3 no such Service, 4 no proxy answers.
    """
    if "/" in service:
        namespace, _, service = join_namespace(service, namespace).partition("/")
    text = _fetch(address, namespace, service)

    import msgspec

    from keepclose.proxy.status import ProxyStatus

    try:
        found = msgspec.json.decode(text, type=ProxyStatus)
    except msgspec.DecodeError as error:
        fail(f"what answers at {address} is no keepclose proxy: {error}", code=ExitCode.UNREACHABLE)
    if output is TableOrJson.JSON:
        echo_json(msgspec.Raw(text))
    else:
        _print(found)
    if not found.services and (service or namespace):
        fail("no such Service is routed on this node", code=ExitCode.NOTHING)
    if any(one.failing for one in found.families.values()):
        sys.exit(1)


def _fetch(address: str, namespace: str, service: str) -> bytes:
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlencode

    query = urlencode({"namespace": namespace, "service": service})
    host, port = read_address("--metrics-address", address)
    try:
        connection = HTTPConnection(host, port, timeout=30)
        try:
            connection.request("GET", f"/debug/services.json?{query}")
            with connection.getresponse() as answer:
                body = answer.read(MOST_BYTES + 1)
        finally:
            connection.close()
    except (OSError, ValueError, HTTPException) as error:
        fail(
            f"no proxy answers at {address}: {error}; run this on a node "
            "where keepclose proxy runs, or say with --metrics-address where it serves its pages",
            code=ExitCode.UNREACHABLE,
        )
    if answer.status != 200:
        what = f"what answers at {address} is no keepclose proxy: status {answer.status}"
        fail(what, code=ExitCode.UNREACHABLE)
    if len(body) > MOST_BYTES:
        what = f"what answers at {address} is no keepclose proxy: more than {MOST_BYTES >> 20} MiB"
        fail(what, code=ExitCode.UNREACHABLE)
    return body


def _print(found: ProxyStatus) -> None:
    from keepclose.cli.render.screen import Line, Screen

    screen = Screen()
    for line in _head(found):
        screen.print(line)
    for one in found.services:
        screen.print()
        for line in _block(one, found):
            screen.print(line)
        for fix in dict.fromkeys(reason.fix for port in one.ports for reason in port.reasons):
            if fix:
                # Never folded: a command that is broken into lines cannot be copied.
                screen.print(Line.assemble(("  fix", "dim"), f"  {fix}"), soft_wrap=True)


def _head(found: ProxyStatus) -> list[Line]:
    from keepclose.cli.render.screen import Line

    head = Line(f"node {found.node}", style="bold")
    head.append(f"  {found.zone}" if found.zone else "  no zone", style="cyan")
    lines = [head]
    for family, one in found.families.items():
        state = "rules cannot be written" if one.failing else "in effect"
        if not one.synced and not one.failing:
            state = "not written yet"
        count = f"{one.service_ports} port" + ("" if one.service_ports == 1 else "s")
        lines.append(Line(f"  {family}  {count}, {state}", style="red" if one.failing else ""))
    return lines


def _block(one: ServiceReport, found: ProxyStatus) -> list[Line]:
    from keepclose.cli.render.screen import Line

    lines = [Line(f"{one.namespace}/{one.name}", style="bold")]
    for port in one.ports:
        line = Line(f"  {_title(port)}  ")
        line.append(_MODES.get(port.mode, port.mode), style="cyan")
        lines.append(line.append(f"  {_uses(port)}"))
        lines += [Line(f"    {text}") for text in _zones(port)]
    for message in dict.fromkeys(reason.message for port in one.ports for reason in port.reasons):
        lines.append(Line(f"  why  {message}", style="dim"))
    if found.counted:
        lines.append(Line(f"  went to  {_shares(one.connections)}"))
    if one.unserved:
        lines.append(Line(f"  unserved  {_unserved(one.unserved)}", style="red"))
    return lines


def _unserved(packets: dict[str, int]) -> str:
    words = {"reject": "refused", "drop": "dropped"}
    return ", ".join(
        f"{count:,} opening packet{'' if count == 1 else 's'} {words.get(action, action)}"
        for action, count in sorted(packets.items())
    )


def _title(port: PortStatus) -> str:
    host = f"[{port.cluster_ip}]" if ":" in port.cluster_ip else port.cluster_ip
    name = f" ({port.name})" if port.name else ""
    return f"{host}:{port.port}/{port.protocol}{name}"


def _uses(port: PortStatus) -> str:
    text = port.internal
    if port.external and port.external != port.internal:
        text += f", from outside {port.external}"
    return f"{text} of {len(port.endpoints)}" if port.internal.endswith(("t", "s")) else text


def _zones(port: PortStatus) -> list[str]:
    """Return a line a zone: the endpoints that are used there, and how many are not."""
    lines: list[str] = []
    for zone in sorted({one.zone for one in port.endpoints}):
        here = [one for one in port.endpoints if one.zone == zone]
        used = [f"{one.address}" for one in here if one.used]
        shown = ", ".join(used[:6]) + (f" and {len(used) - 6} more" if len(used) > 6 else "")
        rest = len(here) - len(used)
        parts = [shown] if shown else []
        if rest:
            parts.append(f"{rest} not used")
        lines.append(f"{zone or 'no zone'}: {', '.join(parts)}")
    return lines


def _shares(connections: dict[str, int]) -> str:
    total = sum(connections.values())
    if not total:
        return "no connections yet"
    parts = [
        f"{zone or 'no zone'} {100 * count / total:.1f}% ({count})"
        for zone, count in connections.items()
    ]
    return ", ".join(parts)

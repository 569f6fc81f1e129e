"""`keepclose proxy status`: how the proxy of this node routes each Service, and why.

Asks the proxy's own page on its metrics address. The answer may come from any program that listens
there, so its size is bounded and its text made plain.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.options import join_namespace, read_address
from keepclose.cli.render.output import OutputFormat, TableOrJson, echo_json

if TYPE_CHECKING:
    from keepclose.cli.render.screen import Line
    from keepclose.proxy.status import PortStatus, ProxyStatus, ServiceReport

MAX_STATUS_BYTES: Final = 256 << 20
"""The largest answer that is read; the answer about 10,000 Services has a tenth of it."""
_SHOWN_ADDRESSES: Final = 6
_MODES: Final = {
    "Everywhere": "everywhere",
    "PreferSameZone": "same zone",
    "PreferSameNode": "same node",
    "NodeLevel": "same node",
    "Weights": "by weights",
    "TopologyKeys": "topology keys",
}

_VERDICTS: Final = {
    "reject": "rejected, no endpoint",
    "drop": "dropped, no endpoint on this node",
}


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
    output: OutputFormat = TableOrJson.TABLE,
) -> None:
    """Show how this node's proxy routes each Service.

    Shows also where connections went. Exit codes: 0 shown, 1 the proxy cannot write rules now, 2
    bad input, 3 no such Service, 4 no proxy answers.
    """
    if "/" in service:
        namespace, _, service = join_namespace(service, namespace).partition("/")
    text = _fetch(address, namespace, service)

    import msgspec

    from keepclose.proxy.status import ProxyStatus

    try:
        proxy_status = msgspec.json.decode(text, type=ProxyStatus)
    except msgspec.DecodeError as error:
        _fail_foreign(address, str(error))
    if output is TableOrJson.JSON:
        echo_json(msgspec.Raw(text))
    else:
        _print(proxy_status)
    if not proxy_status.services and (service or namespace):
        asked = "/".join(filter(None, (namespace, service))) if service else f"in {namespace}"
        fail(f"no Service {asked} is routed on this node", code=ExitCode.NOTHING)
    if any(family.failing for family in proxy_status.families.values()):
        sys.exit(1)


def _fetch(address: str, namespace: str, service: str) -> bytes:
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlencode

    from keepclose.system.bounded_http import get_bounded

    query = urlencode({"namespace": namespace, "service": service})
    host, port = read_address("--metrics-address", address)
    try:
        connection = HTTPConnection(host, port, timeout=30)
        status, body = get_bounded(
            connection, f"/debug/services.json?{query}", {}, most=MAX_STATUS_BYTES
        )
    except (OSError, ValueError, HTTPException) as error:
        fail(
            f"no proxy answers at {address}: {error}; run this on a node where keepclose proxy "
            "runs, or set --metrics-address to where it serves its pages",
            code=ExitCode.UNREACHABLE,
        )
    if status != 200:
        _fail_foreign(address, f"status {status}")
    if len(body) > MAX_STATUS_BYTES:
        _fail_foreign(address, f"more than {MAX_STATUS_BYTES >> 20} MiB")
    return body


def _fail_foreign(address: str, why: str) -> NoReturn:
    fail(f"the server at {address} is no keepclose proxy: {why}", code=ExitCode.UNREACHABLE)


def _print(proxy_status: ProxyStatus) -> None:
    from keepclose.cli.render.screen import Line, Screen

    screen = Screen()
    for line in _head(proxy_status):
        screen.print(line)
    for service in proxy_status.services:
        screen.print()
        for line in _block(service, is_counted=proxy_status.counted):
            screen.print(line)
        for fix in dict.fromkeys(reason.fix for port in service.ports for reason in port.reasons):
            if fix:
                # Never wrapped: a command that is broken into lines cannot be copied.
                screen.print(Line.assemble(("  fix", "dim"), f"  {fix}"), soft_wrap=True)


def _head(proxy_status: ProxyStatus) -> list[Line]:
    from keepclose.cli.render.screen import Line

    head = Line(f"node {proxy_status.node}", style="bold")
    head.append(f"  {proxy_status.zone}" if proxy_status.zone else "  no zone", style="cyan")
    lines = [head]
    for name, family in proxy_status.families.items():
        state = "rules cannot be written" if family.failing else "in effect"
        if not family.synced and not family.failing:
            state = "not written yet"
        count = f"{family.service_ports} port" + ("" if family.service_ports == 1 else "s")
        lines.append(Line(f"  {name}  {count}, {state}", style="red" if family.failing else ""))
    return lines


def _block(service: ServiceReport, *, is_counted: bool) -> list[Line]:
    from keepclose.cli.render.screen import Line

    lines = [Line(f"{service.namespace}/{service.name}", style="bold")]
    for port in service.ports:
        line = Line(f"  {_title(port)}  ")
        line.append(_MODES.get(port.mode, port.mode), style="cyan")
        lines.append(line.append(f"  {_uses(port)}"))
        lines += [Line(f"    {text}") for text in _zones(port)]
    reasons = (reason for port in service.ports for reason in port.reasons)
    for message in dict.fromkeys(reason.message for reason in reasons):
        lines.append(Line(f"  why  {message}", style="dim"))
    if is_counted:
        lines.append(Line(f"  went to  {_shares(service.connections)}"))
    if service.unserved:
        lines.append(Line(f"  unserved  {_unserved(service.unserved)}", style="red"))
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
    text = _describe(port.internal, len(port.endpoints))
    if port.external and port.external != port.internal:
        text += f", from outside {_describe(port.external, len(port.endpoints))}"
    return text


def _describe(outcome: str, endpoints: int) -> str:
    return _VERDICTS.get(outcome) or f"{outcome} of {endpoints}"


def _zones(port: PortStatus) -> list[str]:
    """Return a line for each zone: the endpoints that are used there, and how many are not."""
    lines: list[str] = []
    for zone in sorted({endpoint.zone for endpoint in port.endpoints}):
        in_zone = [endpoint for endpoint in port.endpoints if endpoint.zone == zone]
        used = [f"{endpoint.address}" for endpoint in in_zone if endpoint.used]
        more = len(used) - _SHOWN_ADDRESSES
        shown = ", ".join(used[:_SHOWN_ADDRESSES]) + (f" and {more} more" if more > 0 else "")
        unused = len(in_zone) - len(used)
        parts = [shown] if shown else []
        if unused:
            parts.append(f"{unused} not used")
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

"""Finds the Service that an argument names, [NAMESPACE/]NAME, or suggests what was meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.options import join_namespace

if TYPE_CHECKING:
    from keepclose.advise.inventory import Inventory
    from keepclose.cli.inputs.cluster_input import ClusterInput
    from keepclose.model.meta import NamespacedName
    from keepclose.model.service.types import Service

ServiceArgument = Annotated[
    str,
    typer.Argument(
        metavar="[NAMESPACE/]SERVICE",
        help="One Service, in full; default: all of them.",
        show_default=False,
    ),
]
ServiceOption = Annotated[
    str, typer.Option("--service", metavar="[NS/]NAME", help="The same as the argument.")
]


def join_service(argument: str, option: str) -> str:
    """Return the Service that the argument or --service names, "" if neither does."""
    if argument and option and argument != option:
        fail(f"--service {option}: the argument names another Service, {argument}", "name one")
    service = argument or option
    # NB: names of Services and namespaces have no dots.
    if argument and "." in argument:
        fail(f"{argument}: this is no name of a Service", f"name a file with -f {argument}")
    return service


def choose_service(source: ClusterInput, text: str, namespace: str = "") -> Service:
    """Return the Service that an argument names; if there is none, end the command with advice.

    A bare name means the namespace of -n, else that of the kubeconfig's context.
    """
    key = service_key(text, namespace, default=source.default_namespace)
    (service,) = narrow_services(source.inventory, key, namespace, source.name).services
    return service


def choose_services(source: ClusterInput, text: str, namespace: str = "") -> Inventory:
    """Return the objects with only the Service that an argument names, "" for all of a namespace.

    Without any Service the command ends with advice.
    """
    key = service_key(text or None, namespace, default=source.default_namespace)
    return narrow_services(source.inventory, key, namespace, source.name)


def narrow_services(
    inventory: Inventory, key: NamespacedName | None, namespace: str, files: str
) -> Inventory:
    """Return the inventory with only the selected Services; ends the command if there are none."""
    from msgspec.structs import replace

    services = tuple(
        service
        for service in inventory.services
        if key in (None, service.key) and namespace in ("", service.metadata.namespace)
    )
    if not services and key is not None:
        hint = suggest_services(key, [service.key for service in inventory.services])
        fail(f"no Service {key} in {files}{hint}", code=ExitCode.NOTHING)
    if not services:
        where = f" of namespace {namespace}" if namespace else ""
        fail(f"no Service{where} in {files}", code=ExitCode.NOTHING)
    return replace(inventory, services=services)


def suggest_services(key: NamespacedName, known: Sequence[NamespacedName]) -> str:
    """Return which of the known Services may have been meant, as the end of a sentence."""
    from keepclose.model.meta import find_similar_names

    near = find_similar_names(key.name, known)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    more = f" and {len(known) - 3:,} more" if len(known) > 3 else ""
    names = ", ".join(map(str, known[:3]))
    return f"; there {'is' if len(known) == 1 else 'are'} {names}{more}" if known else ""


def service_key(
    text: str | None, namespace: str, *, default: str = "default"
) -> NamespacedName | None:
    """Return the Service that an argument names, None if it names none.

    A bare name without a namespace is in the default one.
    """
    from keepclose.model.meta import NamespacedName

    if text is None:
        return None
    whole = text if not namespace and "/" in text else join_namespace(text, namespace or default)
    own, _, name = whole.partition("/")
    return NamespacedName(own, name)

"""Who answers to real connections in a network of namespaces, by name alone or with the source."""

from __future__ import annotations

from keepclose.model.addresses import IPV4
from keepclose.model.service.types import Service
from support.netanswers import SILENCE, Answer, Silence
from support.packets.packetflows import find_answers
from support.packets.tabledbeds import TabledBed, address_of
from support.packets.webobjects import addresses_of


def names_at_cluster_ip(
    bed: TabledBed, client: str, service: Service, *, want: int = 1, udp: bool = False
) -> set[str] | Silence:
    """Return which pods answer a client at the cluster IP; `want` different ones are waited for.

    A client is a pod, a node or the outside host.
    """
    target = addresses_of(service, IPV4).cluster
    found = find_answers(bed.namespace(client), target, 53 if udp else 80, want=want, udp=udp)
    return found if isinstance(found, Silence) else {answer.name for answer in found}


def answers_at_node_port(
    bed: TabledBed, node: str, service: Service, *, want: int = 1, is_silent: bool = False
) -> set[Answer] | Silence:
    """Return which pods answer the outside host at a node's port, and whose address they see.

    Where silence is wanted, it is not waited for as long as for an answer.
    """
    port = addresses_of(service, IPV4).node_port
    address = address_of(bed.bed.node(node), IPV4)
    namespace = bed.namespace(bed.bed.outside.name)
    if is_silent:
        found = find_answers(namespace, address, port, seconds=SILENCE)
    else:
        found = find_answers(namespace, address, port, want=want)
    return found if isinstance(found, Silence) else set(found)

"""From the settings of a proxy and what its node says to the layout of a table."""

from __future__ import annotations

from keepclose.model.gates import Gate
from keepclose.proxy.nodeports import addresses_within, ranges_of, read_interface_addresses
from keepclose.proxy.own_node import NodeAddresses
from keepclose.proxy.settings import DetectLocalMode, ProxySettings, family_of_range
from keepclose.ruleset.settings import CountBy, DetectLocal, LocalTraffic, RulesetSettings


def layout_of(
    settings: ProxySettings,
    addresses: NodeAddresses,
    family: str,
    *,
    is_counting: bool,
    counts_chains: bool = True,
) -> RulesetSettings:
    """Return how the table of a family is laid out on a node with these addresses.

    Ranges of cluster IPs are not known here, and are left open.
    """
    return RulesetSettings(
        family=family,
        table=settings.table,
        node_name=settings.node_name,
        node_ip=addresses.ips.get(family, ""),
        local_traffic=local_traffic_of(settings, addresses, family),
        masquerade_all=settings.masquerade_all,
        masquerade_bit=settings.masquerade_bit,
        nodeport_ips=node_port_ips(settings, addresses, family),
        count_by=CountBy.ZONE if is_counting else CountBy.NOTHING,
        count_chains=counts_chains,
        uses_external_ips=settings.gates.on(Gate.ALLOW_SERVICE_EXTERNAL_IPS),
        pooled=settings.pooled,
    )


def local_traffic_of(
    settings: ProxySettings, addresses: NodeAddresses, family: str
) -> LocalTraffic:
    """Return by what traffic of the node's pods is told; by nothing where no range is known."""
    match settings.detect_local:
        case DetectLocalMode.NODE_CIDR:
            value = addresses.pod_cidrs.get(family, "")
            return LocalTraffic(DetectLocal.CIDR, value) if value else LocalTraffic()
        case DetectLocalMode.CLUSTER_CIDR:
            own = [one for one in settings.cluster_cidrs if family_of_range(one) == family]
            return LocalTraffic(DetectLocal.CIDR, own[0]) if own else LocalTraffic()
        case DetectLocalMode.BRIDGE_INTERFACE:
            return LocalTraffic(DetectLocal.INTERFACE, settings.pod_interface)
    return LocalTraffic(DetectLocal.INTERFACE_PREFIX, settings.pod_interface)


def node_port_ips(
    settings: ProxySettings, addresses: NodeAddresses, family: str
) -> tuple[str, ...] | None:
    """Return the addresses at which node ports answer now; None for all of the node's."""
    ranges = ranges_of(settings.node_port_addresses, addresses, family)
    if ranges is None:
        return None
    return addresses_within(ranges, read_interface_addresses(family))

"""The node proxy: programs what `routing` and `ruleset` decide into the kernel of one node.

In: Services, EndpointSlices, the own Node and ServiceCIDRs, as the API server has them. Out:
nftables transactions, deleted UDP flows, health-check listeners, metrics, and the acknowledgement
of the node. `nft` writes and lists tables, `conntrack` deletes stale flows, `counters` reads
counters and serves metrics. This package never decides where traffic goes, and never removes
working rules because of a failure.
"""

"""Counters of the kernel and the metrics of the proxy.

In: counters of nftables, read over netlink, and the results of syncs. Out: connections by Service,
zone and routing mode, packets without an endpoint, and the page for Prometheus, with kube-proxy's
names where it has them. Reading counters never blocks the event loop or the writers of rules.
"""

"""Flows: an agent that counts the connections and bytes of a node, whatever routes them.

In: connections that the kernel tracks; Services, slices, pods and nodes from the API server. Out:
flows by Service and zone, as metrics and as a table, and a checkpoint that survives a restart.

It never changes how traffic is routed. Only the probe of `keepclose verify --probe` writes to the
cluster: pods that it deletes again.
"""

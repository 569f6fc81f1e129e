"""The network of the lab: namespaces for nodes, pods, clients and a host outside the cluster.

Names of nodes and pods come in; namespaces with addresses, links and routes come out. `underlay`
builds them with the `ip` lines of `links` and the numbers of `addresses`; `relays` carry nodes to
the API server; `privilege` tries out whether the machine allows all this.

Nothing here depends on Services, and nothing is changed outside the namespaces that it created.
"""

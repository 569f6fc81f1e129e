"""Advice: what would happen to the traffic of each Service, why, and which change would help.

Objects from files or from an API server come in, as an `Inventory`. For each Service the answer is
its mechanism, its slices, its events, the endpoints that each node would use, and the commands of
changes that help. The answers come from the same planner and selection as those of the controller
and the proxy. Nothing here writes to a cluster, and no advice is given that was not tried on the
whole cluster first.
"""

"""Plans: what each mechanism would do to each Service, which one is worth it, and what it costs.

An `Inventory` comes in, with what is known about clients, traffic and prices; a `ClusterPlan` goes
out: totals first, then Services ranked by what they gain. `scenarios` changes the inventory for
questions such as a drained node. Every figure comes from the planner of slices and the selection of
nodes, and every recommendation from `advise.advice`. Nothing here writes or reads anything.
"""

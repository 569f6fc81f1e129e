"""`keepclose traffic`: real connections to a Service, compared with where they should go.

A Service name and options come in; a TrafficReport comes out. `targets` chooses address and
sources, `connections` connects, `answers` reads the replies, `expected_shares` asks the routing
decisions what should happen, `failure_causes` explains failures, `report` sums up.

Nothing is written to the API, and no routing decision is made here: only the outside host's route
to a load balancer is changed for a while.
"""

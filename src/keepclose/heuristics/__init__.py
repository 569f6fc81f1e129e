"""Custom heuristics of trafficDistribution: how keepclose finds them and runs them (KEP-4444).

In: the installed entry points of the group `keepclose.heuristics`, and the zone demand of a
Service. Out: a registry of heuristics by value, and for each question an allotment, a refusal or a
failure. `routing.heuristics` turns these answers into hints; nothing here decides on hints.

Third-party code never runs in the process of a controller or a command: each heuristic gets a
worker process with limits on time and memory.
"""

"""`keepclose replay`: what a change of the cluster does to the traffic of a Service over time.

In: the objects of a cluster, a scenario, and the mechanisms to compare. Out: for each mechanism how
long nodes routed without regard to zones, the busiest endpoint, hints that were taken back, slices
written, and the connections that failed or left their zone.

`scenario` has the types of scenarios, `scenario_reading` reads them. `scenario_run` plays one by a
clock of discrete events: pods, nodes and workloads change as the rules of `model.workloads` say,
and the result is a list of steps that is the same for every mechanism. `mechanism_run` takes each
mechanism through these steps: the planner of the controller writes the slices, and the selection of
the proxy routes. Figures (`mechanism_figures`) are integrals over time. Nothing here reads a clock
or a file, and the same seed gives the same result.
"""

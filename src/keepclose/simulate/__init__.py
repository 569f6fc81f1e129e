"""The simulator: what an allocation does to traffic, for one region or for millions of regions.

Rows of nodes and endpoints by zone come in, from KEP-2004's data sets, random ones or CSV files. An
algorithm divides the endpoints; scores, deviations of load and slice counts go out, as a summary, a
comparison or a CSV file. `churn` measures what a mechanism costs over time, with the planner of the
controller. Results never depend on threads, block sizes or compilation, and agree digit by digit
with the reference simulator of KEP-2004. Nothing here talks to a cluster.
"""

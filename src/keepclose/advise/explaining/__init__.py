"""Explanation of one Service: which mechanism governs, what it decided, and what is to blame.

An `Inventory`, the name of a Service, and perhaps a client and a Pod come in; an `Explanation` goes
out: the chain from the Service's fields to each node's endpoints, and causes with their fixes.
Every fact comes from the planner and the selection. Causes only name what led to a decision; none
is decided here, and nothing is read or written.
"""

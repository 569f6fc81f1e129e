"""Accounting: whose traffic a connection is, where it went, and what that costs.

In: connections as a kernel, a flow log or a monitoring system describes them; Services, slices,
pods and nodes. Out: tables of flows by Service and zone, in files, and their price.

It must never do I/O, read a clock, or decide where traffic should go: that is what `routing` does.
"""

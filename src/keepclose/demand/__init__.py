"""Measured demand: the rates that clients in each zone send to each Service, from outside.

In: pages of flow agents, answers of a Prometheus, or a file, all untrusted and read within limits.
Out: the traffic shares of a Service with their reasons, and the Services whose shares changed. The
decision itself is `routing.demand`. Nothing here reads or writes slices, and no reading may delay
a sync; only the first one is awaited for some seconds at the start of a program.
"""

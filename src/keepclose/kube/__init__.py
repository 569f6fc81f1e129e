"""A client of the Kubernetes API: requests, watches, caches, work queues, leases and Events.

In: connection settings, and the objects of any API server; it must never depend on which
implementation serves them. Out: typed objects, cache events, and the errors of `errors`. All time
goes through a Clock and all bytes through a Transport, so that a test can script every fault.
Nothing here decides anything about Services or endpoints.
"""

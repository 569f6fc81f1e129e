"""The Kubernetes API as its clients see it: client, cache, queue, leases, events.

Speaks to any API server and never asks which one it is. All time goes through a Clock and all
bytes through a Transport, so that every fault can be scripted.
"""

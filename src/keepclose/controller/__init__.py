"""The EndpointSlice controller: keeps the slices of every Service as the pure core wants them.

Reads Services, pods, nodes and slices through caches, asks `slices` what to write, and writes it.
Nothing here decides what a slice should say.
"""

"""Allocators: how many endpoints of one zone serve the clients of another.

Each is written once, over flat sequences of numbers and in the subset of Python that a compiler for
numeric code accepts, so that the controller and the simulator run the very same function.
"""

"""Allocators: how many endpoints of one zone serve the clients of another.

In: the traffic share and the number of ready endpoints of each zone, in flat sequences. Out: a
flat matrix of counts by location and served zone, and a code for the outcome. Which endpoints these
are is decided elsewhere.

Each allocator is written once, in the subset of Python that a compiler for numeric code accepts, so
that the controller and the simulator run the very same function. None may use objects, I/O or
randomness. "local-shared", "local-weighted" and "local-opt" follow the reference simulator of
KEP-2004 exactly: there every float operation and every step of a heap decides ties.
"""

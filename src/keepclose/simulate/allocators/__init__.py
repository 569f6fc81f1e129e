"""Allocators of KEP-2004 that only the simulator uses, for comparison.

Shares of clients and numbers of endpoints by zone come in; groups of endpoints with weights go out,
in flat sequences. They are plain functions that numba can compile. They reproduce the reference
simulator of the proposal exactly: every float operation and every step of a heap decides ties, so
nothing may be rearranged or "repaired". No controller and no proxy uses them.
"""

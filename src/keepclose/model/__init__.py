"""Kubernetes objects as frozen structs, their defaults and rules, and the feature gates.

Nothing here does I/O, reads a clock or raises on bad input: decoding answers with a value or a
`Rejected`, validation answers with an ordered list of causes.
"""

"""Kubernetes objects as frozen structs, their defaults and validation, and the feature gates.

In: JSON of any Kubernetes version, or plain values. Out: typed objects with the fields that some
decision reads, and ordered lists of `FieldError` worded as kube-apiserver words them.

Nothing here does I/O, reads a clock or raises on bad input: decoding returns a value or a
`Rejected`, validation returns field errors. Other packages use these types and never redefine them.
"""

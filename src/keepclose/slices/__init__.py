"""Pods to desired endpoints to the smallest plan of EndpointSlice writes; no I/O."""

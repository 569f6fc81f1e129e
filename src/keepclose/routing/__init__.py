"""Every routing decision, each returned together with its reasons.

In: Services, EndpointSlices, nodes and feature gates as values of `model`. Out: which mechanism
governs a Service, which hints and conditions its slices and status should have, and which endpoints
a node uses for a service port; each with `Reason`s that explain it.

Decisions are total functions over plain data: no I/O, no clock, no randomness, and no input makes
them raise. They follow the KEPs and kube-proxy; each module names its rule.
"""

"""The EndpointSlice controller: reconciles the EndpointSlices of every Service with a selector.

In: Services, Pods, Nodes, EndpointSlices, Endpoints and the acknowledgements of nodes, through
caches. Out: writes of EndpointSlices, status conditions, Events and metrics. The package `slices`
plans every write; nothing here decides what a slice contains. The controller must never plan from
a cache that is older than its own writes, and never remove an endpoint before it is in another
slice.
"""

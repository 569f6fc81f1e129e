"""From the pods of a Service to the smallest plan of EndpointSlice writes.

In: a Service, its selected pods, the nodes of the cluster, the slices as last observed, and the
settings of the controller. Out: a `ServicePlan` with the slices to create, update and delete, the
events and conditions of the Service, and the reasons for all of these.

Nothing here does I/O, reads a clock or writes to the API. The rules are those of the EndpointSlice
controller of Kubernetes; decisions about hints and subsets are made in `routing`.
"""

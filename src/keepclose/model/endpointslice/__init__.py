"""EndpointSlice and Endpoints: types, defaults, validation, and the strategy of writes.

In: objects of discovery.k8s.io/v1 and core/v1 as clients send them. Out: the object as the API
server stores it, its field errors and its warnings.

The rules are those of kube-apiserver. Nothing here stores an object or raises on bad input.
"""

"""Service: types, defaults, validation, and the strategy of writes.

In: a Service as a client sends it, on update also the stored one, the IP families of the cluster
and the feature gates. Out: the Service as the API server stores it, its field errors and warnings.

The rules are those of kube-apiserver, with the fields of the proposals behind their gates. Nothing
here allocates an address or a port, stores an object or raises on bad input.
"""

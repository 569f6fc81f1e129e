"""The transport of requests to one API server: connections, TLS, retries and backoff.

In: requests without a host, and credentials. Out: answers of any status, as bytes, or errors of the
tree in `kube.errors`. A request that may have been served must never be repeated unless it is
idempotent. Nothing here knows kinds of objects.
"""

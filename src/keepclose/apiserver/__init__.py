"""A Kubernetes API server on one machine: raw JSON in memory, SQLite beneath, kubectl as judge.

It stands in for kube-apiserver and etcd where there is no cluster. What may be written, and what
becomes of it, is decided by `model`; this package carries, stores and serves. It never imports the
controller or the proxy: they meet through the API alone.
"""

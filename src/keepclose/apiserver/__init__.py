"""A Kubernetes API server on one machine: JSON in memory, SQLite for durability, kubectl as judge.

It stands in for kube-apiserver and etcd where there is no cluster. Requests of Kubernetes clients
come in; responses and watch events go out. Defaulting and validation are decided by `model`; this
package authenticates, authorizes, stores and serves. It never imports the controller or the proxy:
they communicate through the API alone.
"""

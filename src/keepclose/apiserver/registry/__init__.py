"""Strategies: what the API server does with a write of each kind; the registry of kube-apiserver.

An `ObjectWrite` comes in, with the stored object on update. A strategy sets defaults, allocates
cluster IPs and node ports, drops fields without a gate, and returns validation errors and warnings
in the words of kube-apiserver. The write path of `apiserver.serving` stores the result. A strategy
never stores anything itself, and never encodes a typed subset over a user's object, because that
would lose unknown fields.
"""

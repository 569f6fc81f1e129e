"""The HTTP/1.1 server of the API server, over TLS: sockets, connections, requests and responses.

Bytes of clients come in; complete requests go to one handler, and its responses go back to the
clients. Connections, heads, bodies and buffered responses are bounded, so that slow or hostile
clients cannot exhaust descriptors or memory. The errors are those of kube-apiserver. The room never
interprets a path or decides what a caller may do.
"""

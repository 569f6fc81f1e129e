"""Authentication and authorization of requests, and the credentials that the server issues.

The headers and the client certificate of a request come in; the user and the decision of whether
the user may do what the request asks for go out. The room also creates and keeps the CA, the
server certificate, the tokens and the kubeconfigs in the data directory. Users and errors are those
of Kubernetes. The room never stores objects, and it never replaces a damaged credential in silence.
"""

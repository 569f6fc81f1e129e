"""The types of the Kubernetes API: what a JSON or protobuf body may hold, and OpenAPI documents.

Comes in: a decoded body or a protobuf message, and the type of its kind, read from data files that
scripts write. Goes out: the value in its stored form, unknown and duplicate fields and wrong types
in the words of kube-apiserver, and the documents that kubectl downloads. The room knows structure
only: it never sets defaults and never validates rules or required fields, which belong to
`apiserver.registry`.
"""

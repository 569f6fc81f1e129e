"""Reads Kubernetes objects from YAML and JSON manifests, and reports problems with their lines.

In come files, directories and standard input; out go typed objects, each with its place, and all
problems at once. Nothing here prints, exits or raises for a bad manifest: the commands decide what
to do about a problem. Limits hold against nested, repeated and oversized input.
"""

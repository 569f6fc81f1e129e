"""Authentication to an API server, as client-go does it.

In: kubeconfig files, the service account of a pod, exec plugins. Out: ConnectionSettings, and
Credentials that authenticate each request. Settings that cannot be used raise a ConfigError with
file, field and fix. Secrets must never appear in a repr, an error or a log line.
"""

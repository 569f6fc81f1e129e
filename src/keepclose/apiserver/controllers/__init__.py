"""Controllers that run inside the API server, because it may run without kube-controller-manager.

Changes of the store come in; creates, updates and deletes of objects go out. They take the path of
the requests of clients, so that validation, finalizers and grace periods hold. The controllers
collect garbage, end grace periods of pods, and keep the Service default/kubernetes, the default
objects of namespaces and the conditions of ServiceCIDRs. A controller works a few milliseconds at a
time and never blocks the event loop.
"""

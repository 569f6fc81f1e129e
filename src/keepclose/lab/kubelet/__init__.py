"""The kubelets of the lab: they run pods by the clock and report their status as a kubelet does.

Pods that are bound to a node come in from the API; addresses, listening sockets, pod statuses,
Events and Node objects go out. `kubelets` is the loop, `pod_runtime` and `container_runtime` decide
what is due, `pod_networks` and `pod_servers` give pods addresses and servers.

No image is pulled and no command is executed: the spec alone decides how a container behaves.
"""

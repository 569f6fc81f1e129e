"""The operating system: files, private directories, sockets, netlink, network namespaces, threads.

In: paths, addresses and commands of users. Out: bytes, open sockets and descriptors, or an error
that names the object and the fix. Nothing here may block forever, follow a link of another user, or
change the network namespace of the machine. Nothing here knows Kubernetes.
"""

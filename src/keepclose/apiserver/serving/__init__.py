"""The Kubernetes API over HTTP: paths, options, bodies, reads, writes, watches and responses.

Complete HTTP requests come in; responses and streams go out. Every rejection is a Status in the
words of kube-apiserver. Small requests are answered on the event loop; large ones run in threads,
fairly shared among users, and only the event loop writes to the store. The room never touches a
socket, and it never decides what an object of a kind may be: the registry does.
"""

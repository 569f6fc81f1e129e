"""Tables: the rows that `kubectl get` prints, filled as kube-apiserver fills them.

Stored objects of one kind come in; a Table with columns and cells goes out, in the versions v1 and
v1beta1. Each kind has a `Printer`; a kind without one gets its name and time of creation. Printing
never fails because of an object: a stored object may be older than any rule, so a field that is
absent or of a wrong type reads as empty.
"""

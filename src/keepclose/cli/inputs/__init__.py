"""What the advising commands read: the objects of a cluster, live or from files.

Options and files or an API server come in, a `ClusterInput` goes out: typed objects, the name of
their source for messages, and the gaps: what could not be read, and which answers suffer.
`cluster_input` decides which source is read; `object_files` reads files and `live_objects` an API
server; `service_choice` finds the Service that an argument names. Nothing here writes to a cluster.
"""

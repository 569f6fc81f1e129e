"""What the EndpointSlice controller and the webhook's hint keeper share.

In: the caches of Services, Pods, Nodes and EndpointSlices. Out: status conditions, Events, and the
decision whether a write is worth sending: not while another controller keeps reverting it, and not
when the API server does not store its fields. Nothing here decides hints or endpoints, and nothing
here runs a loop of its own.
"""

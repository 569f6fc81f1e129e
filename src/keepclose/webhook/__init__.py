"""Topology hints beside the built-in EndpointSlice controller, by a mutating admission webhook.

In: AdmissionReviews of EndpointSlices, and caches of Services, Nodes, EndpointSlices and Pods. Out:
JSON patches of hints, as answers to reviews or, from the leader, as writes of its own; conditions
and Events. The webhook must never reject or delay a write, and never change anything but hints of
Services that ask for a mechanism which the built-in controller does not know.
"""

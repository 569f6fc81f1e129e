"""Fault injection: nodes of the lab fail, are partitioned, cordoned, drained, relabelled, healed.

Requests of `keepclose lab` come in; cut links, silent kubelets, and patches of Nodes and
pods go out. `injector` does it, `node_status` has the patches, `node_states` shows the result.

Every fault is idempotent and can be undone by `heal`. Nothing here changes Services or their
endpoints: the controllers of the cluster react to the faults as in a real one.
"""

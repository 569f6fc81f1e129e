"""Deployments, ReplicaSets and their pods: types, and the rules of rollouts and scheduling.

In: workloads, their pods and the nodes, as the API shows them, and the time. Out: plain values: the
next step of a rollout, the pods to create or delete, and the node of each pod.

The lab's controllers carry these plans out on a cluster, `keepclose replay` on a clock of its own.
"""

"""The workload controllers of the lab: Deployments, ReplicaSets, DaemonSets, scheduler, pod GC.

Objects come in from the API; pods, bindings, ReplicaSets, statuses and Events go out, as
kube-controller-manager and kube-scheduler write them. Decisions are the pure functions of
`model.workloads` (`plan_*`, `place_pods`); the `*Sync` classes read the caches and carry the
decisions out.

A pod is never evicted to make room, and pods are never ended here: the kubelets end them.
"""

"""`keepclose lab slo`: availability, hops and latency of traffic policies during disruptions.

A duration comes in; figures of each policy come out, beside what KEP-3015's first draft guesses.
`setup` creates Services and workloads and disrupts them, `measurement` sends the connections,
`figures` computes and judges.

Nothing remains in the cluster: the namespace, the cordons and the delays are undone at the end.
"""

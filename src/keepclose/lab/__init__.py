"""The lab: a multi-zone cluster on one machine, behind `keepclose up` and its commands.

`cluster` starts and stops its programs and answers commands; `network` links its nodes and pods;
`kubelet` runs pods and `workloads` creates and schedules them; `faults` breaks nodes on request;
`traffic` and `slo` send connections and judge where they went. `pods` and `caches` have the objects
that these folders read, and `access` is what they may use of a running lab.

The lab runs the same API server, controller and proxies as a real cluster. It never decides where
packets go, and it changes nothing outside its own namespaces and its data directory.
"""

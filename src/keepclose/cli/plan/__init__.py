"""`keepclose plan`: what each mechanism would do to each Service, and which one is worth it.

`command` reads the options and the cluster, `scenario_options` the questions "what if"; `document`
is the answer as plain data, `table` for terminals and `markdown` for reports. Each renderer takes
the `ClusterPlan` and never computes a figure.
"""

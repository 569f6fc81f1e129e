"""`keepclose dashboard`: one cluster as a web page that follows it.

In: a cluster, by its API server alone, and its flow agents if there are any. Out: pages over HTTP
for a browser on this machine, and one kind of write, if it is allowed: the patch that gives a
Service another mechanism. What the pages say comes from `advise.overview`; nothing is decided here.
"""

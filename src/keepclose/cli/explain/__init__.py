"""`keepclose explain`: why the traffic of one Service goes where it goes, and what is to blame.

`command` reads the options and the cluster, `text` prints for people, `documents` for programs and
for tickets. The answer itself is that of `advise.explaining`.
"""

"""`keepclose up`: starts the programs of a lab, keeps them running, answers commands, stops them.

Settings come in; a running cluster with a kubeconfig and a control socket comes out. `launch` leads
from the command to the `supervisor`, which builds everything; `process_keeper` restarts programs
that the `fork_server` starts; `data_dir` owns the directory; `control` and `handlers` answer
commands; `tour` is `keepclose demo`.

No process and no namespace outlives the cluster, and no file of another program is ever removed.
"""

"""`keepclose snapshot`: one file with what the other commands read of a cluster, and nothing else.

A live cluster or files come in, a file goes out that `-f` accepts everywhere. `allowed_fields` says
which fields of each kind may be in it; `anonymizing` replaces names and addresses so that answers
stay the same; `command` reads and writes. No Secret, no environment and no text that people wrote
is ever in it.
"""

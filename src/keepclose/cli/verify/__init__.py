"""`keepclose verify`: whether traffic goes where Services ask.

Objects of a cluster and its flows come in, a verdict with an exit code goes out.
`command` reads the options, the objects and the flows; `probing` creates pods that connect where no
agent counts. The verdict is made by `advise.verification`, the table by `cli.render.verify`. Only
`probing` writes to a cluster, and never without the user's consent.
"""

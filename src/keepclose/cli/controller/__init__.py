"""`keepclose controller`: the EndpointSlice controller, or the webhook beside a built-in one.

`command` reads the options of both modes and runs the program; `demand_options` has those of
measured demand. Nothing here decides what the program does.
"""

"""What a person sees of a cluster at a glance: zones, nodes, Services and where traffic goes.

In: the objects of a cluster as an API server has them, and the settings of a controller. Out: plain
structs for a page, in which every text of an object is one visible line. Rows and pages show the
slices that exist; previews show those that a controller would write. Nothing here reads, writes or
decides: plans, selections, reasons and advice come from the rooms that own them.
"""

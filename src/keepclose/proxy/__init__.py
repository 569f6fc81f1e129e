"""The node proxy: carries what `routing` and `ruleset` decide into the kernel of one node.

Nothing in here decides where traffic goes.
"""

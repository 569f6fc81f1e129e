"""Connection tracking: deletion of stale UDP flows, and the kernel settings (sysctls) for it.

In: the addresses of Services and the endpoints that serve there. Out: flows deleted from the
kernel's table over netlink, and sysctls set at start. TCP flows are never deleted.
"""

"""Access to nftables: checks of the host, writers, and listings of tables.

In: the transactions of `ruleset`. Out: rules in the kernel of one network namespace, through
libnftables and netlink or the nft program, and listings of what the kernel has. All blocking calls
run in threads of their own. A writer never changes or lists a table that its caller does not name.
"""

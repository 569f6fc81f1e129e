"""The store of the API server, in the place of etcd: objects, their history and their watchers.

Encoded objects come in through `Store`; entries, changes and subscriptions go out. Reads are
served from maps in memory, and SQLite holds what must survive a restart. A write is durable before
any reader or watcher sees it. Damaged files are never used or overwritten in silence. The store
knows names, versions, labels and owners; it never decides whether an object is valid.
"""

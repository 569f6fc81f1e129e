"""Lists and watches: they fill a cache with the objects of one kind and keep it up to date.

In: answers of an API server, as bytes. Out: typed objects and events, in order, each exactly once.
An object that cannot be read must never hide the others, and a cache must never go back in time.
"""

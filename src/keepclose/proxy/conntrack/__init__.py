"""conntrack: to be described."""

"""patch: to be described."""

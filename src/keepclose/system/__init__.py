"""system: to be described."""

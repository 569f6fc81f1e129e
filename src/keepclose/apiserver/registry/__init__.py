"""registry: to be described."""

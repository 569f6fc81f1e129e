"""cluster: to be described."""

"""runtime: to be described."""

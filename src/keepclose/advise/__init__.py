"""advise: to be described."""

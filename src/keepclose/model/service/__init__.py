"""service: to be described."""

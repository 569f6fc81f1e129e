"""controllers: to be described."""
